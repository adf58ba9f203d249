// SPDX-License-Identifier: Apache-2.0
// stretch.hpp: the blocks of a file that one sample covers, in their order.
#pragma once
#include <cstdint>
#include <vector>

#include "bench/workload.hpp"

namespace headrace::tools {
// A part of a file as blocks: the n-th request of a job goes to offset_of(n). A region of blocks()
// blocks, over and over; in a random pattern each block of it once per pass.
class BlockOrder {
 public:
  //   part   [begin, begin + size) of the file, bytes; at least one block
  //   bytes  what one sample moves in it per direction; 0: as much as its time allows
  //   turn   samples that cover less than the part wander over it, one place further each turn
  BlockOrder(const Workload& workload, std::uint64_t part_begin, std::uint64_t part_bytes,
             std::uint64_t bytes, std::uint32_t turn);

  std::uint64_t blocks() const noexcept { return region_; }
  std::uint64_t begin_bytes() const noexcept { return begin_; }
  std::uint64_t offset_of(std::uint64_t n) const noexcept {
    const std::uint64_t index = n % region_;
    return begin_ + (shuffled_.empty() ? index : shuffled_[index]) * block_bytes_;
  }

 private:
  std::uint64_t block_bytes_, region_ = 1, begin_ = 0;
  std::vector<std::uint32_t> shuffled_;  // of a random pattern
};
}  // namespace headrace::tools
