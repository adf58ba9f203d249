// SPDX-License-Identifier: Apache-2.0
// rank_side.hpp: one rank's memory, and its calls both ways.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench_ranks/rank_contest.hpp"

namespace headrace::tools {
enum class RankSide : std::uint8_t { kOurs, kRaw };

class RankMemory {
 public:
  RankMemory(Collective& collective, RawCalls& raw, std::uint64_t largest_piece);
  // Throws what the Collective throws; kIo: the raw call failed.
  void call(RankCall call, RankSide side, std::uint64_t piece_bytes);
  // Before a call that is to be compared: what this rank gives, and other bytes where it takes.
  void fill(RankCall call, std::uint64_t piece_bytes);
  bool has_arrived(RankCall call, std::uint64_t piece_bytes) const;

 private:
  std::byte* place(RankCall call, std::uint32_t from, std::uint64_t piece_bytes) const;

  Collective& collective_;
  RawCalls& raw_;
  const std::uint32_t rank_, world_size_;
  // The bytes that all_gather and exchange complete and all_to_all takes; those that the last two
  // give.
  mutable std::vector<std::byte> whole_, give_;
  std::vector<DeviceSpan> spans_;
  std::uint64_t sequence_ = 0;
};
}  // namespace headrace::tools
