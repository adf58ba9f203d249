// SPDX-License-Identifier: Apache-2.0
#include "collective/launch_order.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headrace::collective {
LaunchOrder::LaunchOrder(Transport& messages, Lane lane, std::function<void()> changed)
    : messages_(messages),
      lane_(lane),
      changed_(std::move(changed)),
      in_one_(messages.world_size()) {}

LaunchOrder::~LaunchOrder() {
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [&] { return !under_way_; });
}

void LaunchOrder::exchange(Step step, const std::vector<Transport::Piece>& give,
                           const std::vector<Transport::Piece>& take) {
  const auto passed = [](void* context, const char* error) noexcept {
    auto& self = *static_cast<LaunchOrder*>(context);
    const std::lock_guard lock(self.mutex_);
    self.under_way_ = false;
    if (error != nullptr) self.error_ = std::string(self.messages_.name()) + ": " + error;
    self.passed_.notify_all();
    self.changed_();
  };
  step_ = step;
  {
    const std::lock_guard lock(mutex_);
    under_way_ = true;
  }
  messages_.all_to_all(lane_, {}, give, take, {passed, this});
}

void LaunchOrder::come(bool in_one) {
  const std::uint32_t own = messages_.rank();
  in_one_[own] = in_one;
  std::vector<Transport::Piece> give(in_one_.size()), take(in_one_.size());
  for (std::uint32_t r = 0; r < in_one_.size(); ++r) {
    if (own == 0) take[r] = {&in_one_[r], 1};
  }
  if (own != 0) give[0] = {&in_one_[own], 1};
  exchange(Step::kCome, give, take);
}

std::optional<LaunchOrder::Place> LaunchOrder::take_place(std::uint64_t& next) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) throw std::runtime_error(error_);
    if (under_way_ || step_ == Step::kIdle) return std::nullopt;
  }
  if (step_ == Step::kTold) {
    step_ = Step::kIdle;
    return place_;
  }
  std::vector<Transport::Piece> give(in_one_.size()), take(in_one_.size());
  if (messages_.rank() == 0) {
    const auto one = [](std::uint8_t byte) { return byte != 0; };
    place_ = {next++, std::ranges::all_of(in_one_, one)};
    std::ranges::fill(give, Transport::Piece{&place_, sizeof(place_)});
  } else {
    take[0] = {&place_, sizeof(place_)};
  }
  exchange(Step::kTold, give, take);
  return std::nullopt;
}
}  // namespace headrace::collective
