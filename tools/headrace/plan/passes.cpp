// SPDX-License-Identifier: Apache-2.0
#include "plan/passes.hpp"

#include <algorithm>
#include <utility>

namespace headrace::tools {
Passes::Passes(const std::vector<GroupCost>& groups, std::uint32_t slots, std::uint32_t prefetch,
               bool verify_on_device, std::vector<Span>* spans)
    : groups_(groups),
      slots_(slots),
      prefetch_(slots == 0 ? 0 : std::min(prefetch, slots - 1)),
      verify_on_device_(verify_on_device),
      spans_(spans) {}

void Passes::note(StepLane lane, std::uint32_t group, double begin, double end) {
  if (spans_ != nullptr && end > begin) spans_->push_back({lane, group, begin, end});
}

// When it is all there. Tiles are copied while later ones are read.
double Passes::fetch(std::uint32_t group, const GroupCost::Fetch& fetch, double start,
                     PhaseCost& cost) {
  double there = start;
  if (fetch.read > 0) {
    const double begin = std::max(start, drive_free_);
    drive_free_ = begin + fetch.read;
    cost.of(StepLane::kNvmeRead) += fetch.read;
    note(StepLane::kNvmeRead, group, begin, drive_free_);
    there = verify_on_device_ ? drive_free_ : std::max(drive_free_, begin + fetch.verify);
  }
  if (fetch.copy > 0) {
    const double begin = std::max(start, copy_free_);
    copy_free_ = std::max(begin + fetch.copy, there + fetch.last_copy);
    cost.of(StepLane::kCopyToDevice) += fetch.copy;
    note(StepLane::kCopyToDevice, group, copy_free_ - fetch.copy, copy_free_);
    there = copy_free_;
  }
  if (fetch.network > 0) {
    const double begin = std::max(there, network_free_);
    network_free_ = begin + fetch.network;
    cost.of(StepLane::kNetwork) += fetch.network;
    note(StepLane::kNetwork, group, begin, network_free_);
    there = network_free_;
  }
  return there;
}

const GroupCost::Fetch& Passes::next_fetch(std::uint32_t group, Weights weights) {
  const GroupCost& cost = groups_[group];
  if (!kept_in_node_.empty()) {
    if (kept_in_node_[group]) return cost.again;
    kept_in_node_[group] = true;
  }
  return weights == Weights::kFetched ? cost.all : cost.at_hand;
}

void Passes::leave_gradients(std::uint32_t group, PhaseCost& cost) {
  const GroupCost& g = groups_[group];
  if (g.gradient_network > 0) {
    const double begin = std::max(compute_free_, network_free_);
    network_free_ = begin + g.gradient_network;
    cost.of(StepLane::kNetwork) += g.gradient_network;
    note(StepLane::kNetwork, group, begin, network_free_);
  }
  if (g.gradient_copy > 0) {
    const double begin = std::max({compute_free_, network_free_, down_free_});
    down_free_ = begin + g.gradient_copy;
    cost.of(StepLane::kCopyToHost) += g.gradient_copy;
    note(StepLane::kCopyToHost, group, begin, down_free_);
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
      const GroupCost::Fetch& how = next_fetch(group, weights);
      const std::size_t use = begins_.size() - 1;
      const double asked = use >= prefetch_ ? begins_[use - prefetch_] : 0;
      const double slot =
          slot_ends_.size() >= slots_ && slots_ > 0 ? slot_ends_[slot_ends_.size() - slots_] : 0;
      there = fetch(group, how, std::max(asked, slot), cost);
      if (verify_on_device_) verify = how.verify;
    }
    const double begin = std::max(compute_free_, there);
    const double work = verify + (back ? g.backward + g.gradient_pass : g.forward);
    compute_free_ = begin + work;
    cost.of(StepLane::kCompute) += work;
    note(StepLane::kCompute, group, begin, compute_free_);
    if (!g.in_place) slot_ends_.push_back(compute_free_);
    if (back) leave_gradients(group, cost);
  }
  cost.seconds = compute_free_ - began;
  return cost;
}
}  // namespace headrace::tools
