// SPDX-License-Identifier: Apache-2.0
// local_ranks.hpp: which ranks share this rank's machine, its CPUs and its memory. No launcher is
// asked: the ranks tell each other what they see.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/collective.hpp"
#include "platform/machine.hpp"

namespace headrace::ranks {
struct LocalRanks {
  std::uint32_t local_rank = 0;  // among those of this machine, by rank
  std::uint32_t of_machine = 1;
  // Those that may run on the very same CPUs, within the same quota. A launcher that binds each
  // rank to CPUs of its own leaves each of them alone.
  std::uint32_t sharing_cpus = 1;
  // What the machine leaves each of the ranks that take memory from the same place.
  platform::Limit memory_left;
};

// Collective, before any of the ranks allocates: every one of them sees the same memory.
LocalRanks find_local_ranks(Collective& collective);

// "{rank}" and "{local_rank}" in `path` become numbers.
std::string path_of_rank(const std::string& path, std::uint32_t rank, std::uint32_t local_rank);
}  // namespace headrace::ranks
