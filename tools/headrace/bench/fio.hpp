// SPDX-License-Identifier: Apache-2.0
// fio.hpp: fio on the same work: the same blocks of the same file, in the same rounds.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "bench/target.hpp"

namespace headrace::tools {
// "fio-3.33". Throws Error kUnsupported where there is none.
std::string fio_version();
// The engines that are tried in the pilot.
const std::vector<std::string>& fio_engines();
// `bytes` per direction from the block that a SampleThread would begin with; `seed` as
// fio_arguments() has it. The pages it writes are unknown to us from then on.
TimedSample take_by_fio(Target& target, const Workload& workload, std::uint64_t bytes,
                        std::uint32_t turn, std::uint32_t seed);
}  // namespace headrace::tools
