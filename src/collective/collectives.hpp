// SPDX-License-Identifier: Apache-2.0
// collectives.hpp: the collectives that come with the library.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "headrace/collective.hpp"

namespace headrace::collective {
// One rank: every call is a copy of nothing.
std::shared_ptr<Collective> make_collective_self();

// `world_size` ranks in one process, one thread each; result[r] is rank r's. Work queued on a
// stream is waited for with `devices[r]` before memory is touched. A rank that does not come within
// `deadline` ends everybody's call in kPeerLost naming both tags, or the missing rank.
std::vector<std::shared_ptr<Collective>> make_collective_threads(
    std::vector<std::shared_ptr<Device>> devices, std::chrono::milliseconds deadline);
}  // namespace headrace::collective
