// SPDX-License-Identifier: Apache-2.0
#include "swap/transfer_schedule.hpp"

#include <algorithm>

namespace headrace::swap {
void TransferSchedule::set_up(std::uint32_t blocks) {
  // A transfer that has begun has a block in progress. The exceptions are the first of each
  // priority, which waits for a block while transfers of a higher priority take them.
  actives_.resize(blocks + kPriorities);
  for (Active& active : actives_) free_.push(active);
}

void TransferSchedule::add(Transfer& transfer) noexcept {
  waiting_[static_cast<std::size_t>(transfer.priority)].push(transfer);
}

Active* TransferSchedule::next() noexcept {
  for (std::size_t priority = 0; priority < kPriorities; ++priority) {
    if (begun_[priority] != nullptr) return begun_[priority];
    if (!waiting_[priority].empty()) return begin(priority);
  }
  return nullptr;
}

Active* TransferSchedule::begin(std::size_t priority) noexcept {
  Transfer& transfer = *waiting_[priority].front();
  Active& active = *free_.pop();
  ++in_use_;
  active = {.transfer = &transfer, .whole = transfer.size_bytes};
  begun_[priority] = &active;
  return &active;
}

void TransferSchedule::withdraw(const Active& active) noexcept {
  const auto priority = static_cast<std::size_t>(active.transfer->priority);
  if (begun_[priority] != &active) return;
  waiting_[priority].pop();
  begun_[priority] = nullptr;
}

void TransferSchedule::release(Active& active) noexcept {
  free_.push(active);
  --in_use_;
}

bool TransferSchedule::idle() const noexcept {
  return in_use_ == 0 && std::all_of(waiting_.begin(), waiting_.end(),
                                     [](const auto& queue) { return queue.empty(); });
}
}  // namespace headrace::swap
