// SPDX-License-Identifier: Apache-2.0
#include "ranks/local_ranks.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/hash.hpp"

namespace headrace::ranks {
namespace {
// A rank's view of its machine. Numbers that are equal on two ranks name the same thing.
struct Seen {
  std::uint64_t machine = 0, cpus = 0, memory = 0;
  std::uint64_t memory_left = 0;
};

std::uint64_t number_of(const std::string& text) {
  return kernels::xxh3_64(std::as_bytes(std::span(text)), 0);
}

std::string replace_all(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at))
    text.replace(at, what.size(), by);
  return text;
}
}  // namespace

LocalRanks find_local_ranks(Collective& collective) {
  LocalRanks found;
  found.memory_left = platform::memory_left();
  if (collective.world_size() == 1) return found;
  const std::string machine = platform::machine_identity();
  const Seen mine = {number_of(machine), number_of(machine + platform::cpu_identity()),
                     number_of(machine + found.memory_left.place), found.memory_left.value};
  std::vector<Seen> all(collective.world_size());
  collective.exchange({0, "freeze: machines"}, std::as_bytes(std::span(&mine, 1)),
                      std::as_writable_bytes(std::span(all)));
  found.of_machine = found.sharing_cpus = 0;
  std::uint32_t sharing_memory = 0;
  for (std::uint32_t r = 0; r < all.size(); ++r) {
    if (all[r].machine == mine.machine) {
      ++found.of_machine;
      found.local_rank += r < collective.rank();
    }
    found.sharing_cpus += all[r].cpus == mine.cpus;
    if (all[r].memory != mine.memory) continue;
    ++sharing_memory;
    found.memory_left.value = std::min(found.memory_left.value, all[r].memory_left);
  }
  if (sharing_memory > 1) {
    found.memory_left.value /= sharing_memory;
    found.memory_left.source += ", shared by " + std::to_string(sharing_memory) + " ranks";
  }
  return found;
}

std::string path_of_rank(const std::string& path, std::uint32_t rank, std::uint32_t local_rank) {
  return replace_all(replace_all(path, "{rank}", std::to_string(rank)), "{local_rank}",
                     std::to_string(local_rank));
}
}  // namespace headrace::ranks
