// SPDX-License-Identifier: Apache-2.0
#include "tiles/pending_updates.hpp"

#include <algorithm>
#include <numeric>

namespace headrace::tiles {
PendingUpdates::PendingUpdates(const partition::Partition& partition, const residency::Plan& plan)
    : groups_(partition.group_sections.size()), order_(groups_.size()) {
  std::iota(order_.begin(), order_.end(), 0u);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].held_back =
        !plan.group_in_place[g] &&
        std::ranges::any_of(partition.group_sections[g], [&](std::uint32_t section) {
          return plan.sections[section].weight == Tier::kNvme;
        });
  }
}

std::uint64_t PendingUpdates::bookkeeping_bytes(const partition::Partition& partition) noexcept {
  return partition.group_sections.size() * (sizeof(Group) + sizeof(std::uint32_t));
}

void PendingUpdates::note_use(GroupId group) noexcept {
  std::atomic<std::uint32_t>& first_use = groups_[group.index].first_use;
  if (first_use.load(std::memory_order_relaxed) != 0) return;
  first_use.store(uses_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

async::Task<> PendingUpdates::until_passed(GroupId group, Waiting waiting,
                                           const async::GiveUp* give_up) {
  if (passes_left(group) && waiting == Waiting::kNow) want(group);
  while (passes_left(group)) {
    if (error_) std::rethrow_exception(error_);
    if (async::given_up(give_up)) give_up->refuse();
    co_await waiters_.changed();
  }
}

async::Task<> PendingUpdates::until_written(GroupId group) {
  const std::uint32_t& left = groups_[group.index].writes_left;
  while (left != 0 && !error_) co_await waiters_.changed();
  if (left != 0) std::rethrow_exception(error_);
}

void PendingUpdates::note_place(GroupId group) noexcept { set(groups_[group.index].has_place); }

void PendingUpdates::want(GroupId group) noexcept { set(groups_[group.index].wanted); }

void PendingUpdates::want_all() noexcept { set(all_wanted_); }

// A new flag may let another group start.
void PendingUpdates::set(bool& flag) noexcept {
  if (std::exchange(flag, true) || unstarted_ == 0) return;
  waiters_.wake();
}

// Groups in the order of their first uses; those without one behind them, as they were registered.
void PendingUpdates::put_in_order() noexcept {
  const auto place = [&](std::uint32_t g) {
    const std::uint32_t use = groups_[g].first_use.load(std::memory_order_relaxed);
    return std::pair(use == 0 ? ~0u : use, g);
  };
  std::ranges::sort(order_, {}, place);
  for (Group& group : groups_) group.first_use.store(0, std::memory_order_relaxed);
  uses_.store(0, std::memory_order_relaxed);
}

void PendingUpdates::begin(const std::vector<std::uint32_t>& tiles) {
  put_in_order();
  error_ = nullptr;
  all_wanted_ = false;
  first_unstarted_ = 0;
  unstarted_ = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.writes_left = tiles[g];
    group.has_place = group.wanted = false;
    group.unstarted = tiles[g] != 0;
    if (group.unstarted) ++unstarted_;
    group.passes_left.store(tiles[g], std::memory_order_release);
  }
}

std::optional<GroupId> PendingUpdates::start_next() {
  while (first_unstarted_ < order_.size() && !groups_[order_[first_unstarted_]].unstarted)
    ++first_unstarted_;
  std::optional<std::uint32_t> next;
  for (std::size_t i = first_unstarted_; i < order_.size(); ++i) {
    const Group& group = groups_[order_[i]];
    if (!group.unstarted) continue;
    if (!next && (all_wanted_ || group.has_place || !group.held_back)) next = order_[i];
    if (!group.wanted) continue;
    next = order_[i];
    break;
  }
  if (!next) return std::nullopt;
  groups_[*next].unstarted = false;
  --unstarted_;
  return GroupId{*next};
}

void PendingUpdates::note_pass(GroupId group) noexcept {
  if (groups_[group.index].passes_left.fetch_sub(1, std::memory_order_acq_rel) == 1)
    waiters_.wake();
}

void PendingUpdates::note_write(GroupId group) noexcept {
  if (--groups_[group.index].writes_left == 0) waiters_.wake();
}

void PendingUpdates::fail(const std::exception_ptr& error) noexcept {
  error_ = error;
  unstarted_ = 0;
  for (Group& group : groups_) group.unstarted = false;
  waiters_.wake();
}

void PendingUpdates::forget() noexcept {
  unstarted_ = 0;
  for (Group& group : groups_) {
    group.unstarted = false;
    group.writes_left = 0;
    group.passes_left.store(0, std::memory_order_release);
  }
  waiters_.wake();
}
}  // namespace headrace::tiles
