// SPDX-License-Identifier: Apache-2.0
// transfer_schedule.hpp: the transfers of a drive that are not yet fully cut into blocks. Demand
// goes before prefetch, prefetch before write-back, and write-back before background; within each,
// first come, first served.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/intrusive_list.hpp"
#include "swap/block.hpp"

namespace headrace::swap {
// For the drive's thread only. Allocates only in set_up().
class TransferSchedule {
 public:
  void set_up(std::uint32_t blocks);  // the most that are ever in progress

  void add(Transfer& transfer) noexcept;
  // Returns the transfer to cut the next block from, and begins it if necessary; null if none
  // waits. Call it while there is a free block.
  Active* next() noexcept;
  // No further block is cut from `active`: all are, or it has ended early.
  void withdraw(const Active& active) noexcept;
  // Its transfer has ended; `active` may serve another.
  void release(Active& active) noexcept;
  bool idle() const noexcept;  // nothing waits, and nothing has begun

 private:
  static constexpr std::size_t kPriorities = 4;
  Active* begin(std::size_t priority) noexcept;

  std::array<base::IntrusiveQueue<&Transfer::next_transfer>, kPriorities> waiting_;
  // Per queue: its first transfer, if some of its blocks are not cut yet.
  std::array<Active*, kPriorities> begun_{};
  std::vector<Active> actives_;
  base::IntrusiveStack<&Active::next> free_;
  std::uint32_t in_use_ = 0;
};
}  // namespace headrace::swap
