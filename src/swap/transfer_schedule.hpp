// SPDX-License-Identifier: Apache-2.0
// transfer_schedule.hpp: the transfers of a drive that are not yet cut up: demand before prefetch
// before write-back, first come within each.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/intrusive_list.hpp"
#include "swap/block.hpp"

namespace headrace::swap {
// The drive's thread only. Allocates in set_up() alone.
class TransferSchedule {
 public:
  void set_up(std::uint32_t blocks);  // as many as are ever under way

  void add(Transfer& transfer) noexcept;
  // The transfer to cut the next block from, begun if it was not; null when none waits. To be
  // called while a block is free to cut it into.
  Active* next() noexcept;
  // No further block is cut from `active`: all are, or it has ended early.
  void withdraw(const Active& active) noexcept;
  // Its transfer is over; `active` may serve another.
  void release(Active& active) noexcept;
  bool idle() const noexcept;  // nothing waits, nothing has begun

 private:
  static constexpr std::size_t kPriorities = 3;
  Active* begin(std::size_t priority) noexcept;

  std::array<base::IntrusiveQueue<&Transfer::next_transfer>, kPriorities> waiting_;
  // Of each queue's first, if some of its blocks are not cut yet.
  std::array<Active*, kPriorities> begun_{};
  std::vector<Active> actives_;
  base::IntrusiveStack<&Active::next> free_;
  std::uint32_t in_use_ = 0;
};
}  // namespace headrace::swap
