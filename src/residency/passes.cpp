// SPDX-License-Identifier: Apache-2.0
#include "residency/passes.hpp"

#include <algorithm>
#include <utility>

namespace headrace::residency {
namespace {
double& busy(PhaseCost& cost, Lane lane) { return cost.busy[static_cast<std::size_t>(lane)]; }
}  // namespace

Passes::Passes(const std::vector<GroupCost>& groups, std::uint32_t slots, std::uint32_t prefetch,
               bool verify_on_device, std::vector<Span>* spans)
    : groups_(groups),
      slots_(slots),
      prefetch_(slots == 0 ? 0 : std::min(prefetch, slots - 1)),
      verify_on_device_(verify_on_device),
      spans_(spans) {}

void Passes::note(Lane lane, std::uint32_t group, double begin, double end) {
  if (spans_ != nullptr && end > begin) spans_->push_back({lane, group, begin, end});
}

// When it is all there. Tiles are copied while later ones are read.
double Passes::fetch(std::uint32_t group, double start, bool read, PhaseCost& cost) {
  const GroupCost& g = groups_[group];
  double there = start;
  if (read && g.read > 0) {
    const double begin = std::max(start, drive_free_);
    drive_free_ = begin + g.read;
    busy(cost, Lane::kNvmeRead) += g.read;
    note(Lane::kNvmeRead, group, begin, drive_free_);
    there = verify_on_device_ ? drive_free_ : std::max(drive_free_, begin + g.verify);
  }
  if (const double copy = read ? g.copy : g.copy_at_hand; copy > 0) {
    const double begin = std::max(start, copy_free_);
    copy_free_ = std::max(begin + copy, there + (read ? g.last_copy : 0));
    busy(cost, Lane::kCopy) += copy;
    note(Lane::kCopy, group, copy_free_ - copy, copy_free_);
    there = copy_free_;
  }
  if (g.network > 0) {
    const double begin = std::max(there, network_free_);
    network_free_ = begin + g.network;
    busy(cost, Lane::kNetwork) += g.network;
    note(Lane::kNetwork, group, begin, network_free_);
    there = network_free_;
  }
  return there;
}

void Passes::leave_gradients(std::uint32_t group, PhaseCost& cost) {
  const GroupCost& g = groups_[group];
  if (g.gradient_network > 0) {
    const double begin = std::max(compute_free_, network_free_);
    network_free_ = begin + g.gradient_network;
    busy(cost, Lane::kNetwork) += g.gradient_network;
    note(Lane::kNetwork, group, begin, network_free_);
  }
  if (g.gradient_copy > 0) {
    const double begin = std::max({compute_free_, network_free_, down_free_});
    down_free_ = begin + g.gradient_copy;
    busy(cost, Lane::kCopy) += g.gradient_copy;
    note(Lane::kCopy, group, begin, down_free_);
  }
}

double Passes::drain() const noexcept {
  return std::max(0.0, std::max(down_free_, network_free_) - compute_free_);
}

PhaseCost Passes::play(Direction direction, Weights weights) {
  PhaseCost cost;
  const double began = compute_free_;
  std::uint32_t kept = std::exchange(first_, false) ? 0 : slots_;
  const auto count = static_cast<std::uint32_t>(groups_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool back = direction == Direction::kBackward;
    const std::uint32_t group = back ? count - 1 - i : i;
    const GroupCost& g = groups_[group];
    begins_.push_back(compute_free_);
    double there = compute_free_, verify = 0;
    if (!g.in_place && kept > 0) {
      --kept;
    } else if (!g.in_place) {
      const bool read = weights == Weights::kFetched || g.frozen;
      const std::size_t use = begins_.size() - 1;
      const double asked = use >= prefetch_ ? begins_[use - prefetch_] : 0;
      const double slot =
          slot_ends_.size() >= slots_ && slots_ > 0 ? slot_ends_[slot_ends_.size() - slots_] : 0;
      there = fetch(group, std::max(asked, slot), read, cost);
      if (read && verify_on_device_) verify = g.verify;
    }
    const double begin = std::max(compute_free_, there);
    const double work = verify + (back ? g.backward + g.gradient_pass : g.forward);
    compute_free_ = begin + work;
    busy(cost, Lane::kCompute) += work;
    note(Lane::kCompute, group, begin, compute_free_);
    if (!g.in_place) slot_ends_.push_back(compute_free_);
    if (back) leave_gradients(group, cost);
  }
  cost.seconds = compute_free_ - began;
  return cost;
}
}  // namespace headrace::residency
