// SPDX-License-Identifier: Apache-2.0
// raw_threads.hpp: the baseline of ranks that are threads of one process: plain copies.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "ranks/rank_module.hpp"

namespace headrace::tools {
// One for each of `world_size` threads. Each copies what it takes from the others' memory, with
// std::memcpy, between two meetings of all. Where one is destroyed, the others' calls fail.
std::vector<std::unique_ptr<RawCalls>> make_raw_thread_calls(std::uint32_t world_size);
}  // namespace headrace::tools
