// SPDX-License-Identifier: Apache-2.0
// local_ranks.hpp: finds the ranks that share this rank's machine, its CPUs and its memory. The
// ranks tell each other what they see; no launcher is asked.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/collective.hpp"
#include "platform/machine.hpp"

namespace headrace::ranks {
struct LocalRanks {
  std::uint32_t local_rank = 0;  // among those of this machine, by rank
  std::uint32_t of_machine = 1;
  // The number of ranks that may run on exactly the same CPUs, within the same quota. If a launcher
  // binds each rank to CPUs of its own, this is 1.
  std::uint32_t sharing_cpus = 1;
  // The memory that the machine leaves to each of the ranks that share it.
  platform::Limit memory_left;
};

// Collective. Call it before any of the ranks allocates, so that all of them see the same memory.
LocalRanks find_local_ranks(Collective& collective);

// Replaces "{rank}" and "{local_rank}" in `path` with numbers.
std::string path_of_rank(const std::string& path, std::uint32_t rank, std::uint32_t local_rank);
}  // namespace headrace::ranks
