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
      facts_(messages.world_size()) {}

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

void LaunchOrder::come(std::uint8_t facts) {
  const std::uint32_t own = messages_.rank();
  facts_[own] = facts;
  std::vector<Transport::Piece> give(facts_.size()), take(facts_.size());
  for (std::uint32_t r = 0; r < facts_.size(); ++r) {
    if (own == 0) take[r] = {&facts_[r], 1};
  }
  if (own != 0) give[0] = {&facts_[own], 1};
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
  std::vector<Transport::Piece> give(facts_.size()), take(facts_.size());
  if (messages_.rank() == 0) {
    std::uint8_t common = facts_[0];
    for (const std::uint8_t of_rank : facts_) common &= of_rank;
    place_ = {next++, common};
    std::ranges::fill(give, Transport::Piece{&place_, sizeof(place_)});
  } else {
    take[0] = {&place_, sizeof(place_)};
  }
  exchange(Step::kTold, give, take);
  return std::nullopt;
}
}  // namespace headrace::collective
