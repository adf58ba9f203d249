// SPDX-License-Identifier: Apache-2.0
#include "plan/passes.hpp"

#include <algorithm>
#include <utility>

namespace headrace::tools {
Passes::Passes(const std::vector<GroupCost>& groups, const Slots& slots, std::vector<Span>* spans)
    : groups_(groups),
      slots_(slots.slots),
      prefetch_(slots.slots == 0 ? 0
                                 : std::min(slots.one_per_group ? slots.slots : slots.prefetch,
                                            slots.slots - 1)),
      ahead_(slots.one_per_group ? prefetch_ : std::min(slots.ahead, prefetch_)),
      verify_on_device_(slots.verify_on_device),
      spans_(spans) {}

void Passes::note(StepLane lane, std::uint32_t group, double begin, double end) {
  if (spans_ != nullptr && end > begin) spans_->push_back({lane, group, begin, end});
}

// When it is all there. Tiles are copied while later ones are read.
double Passes::fetch(std::uint32_t group, const GroupCost::Fetch& fetch, const Asked& asked,
                     PhaseCost& cost) {
  const double start = asked.read;
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
    there = std::max(there, asked.join);
    send_while([&](const Left& left) { return left.ready <= there; });
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

// When the activations that forward saved are back too: asked for while the group before computes.
double Passes::bring_saved(std::uint32_t group, double there, PhaseCost& cost) {
  const double copy = groups_[group].saved_copy;
  if (copy <= 0) return there;
  const double asked = begins_.size() > 1 ? begins_[begins_.size() - 2] : begins_.back();
  const double begin = std::max(asked, copy_free_);
  copy_free_ = begin + copy;
  cost.of(StepLane::kCopyToDevice) += copy;
  note(StepLane::kCopyToDevice, group, begin, copy_free_);
  return std::max(there, copy_free_);
}

void Passes::leave_saved(std::uint32_t group, PhaseCost& cost) {
  const double copy = groups_[group].saved_copy;
  if (copy <= 0) return;
  const double begin = std::max(compute_free_, down_free_);
  down_free_ = begin + copy;
  cost.of(StepLane::kCopyToHost) += copy;
  note(StepLane::kCopyToHost, group, begin, down_free_);
}

void Passes::leave_gradients(const Left& left, PhaseCost& cost) {
  left_.push_back(left);
  cost.of(StepLane::kNetwork) += groups_[left.group].gradient_network;
  cost.of(StepLane::kCopyToHost) += groups_[left.group].gradient_copy;
}

void Passes::send(const Left& left) {
  const GroupCost& g = groups_[left.group];
  double there = left.ready;
  if (g.gradient_network > 0) {
    const double begin = std::max(there, network_free_);
    there = network_free_ = begin + g.gradient_network;
    note(StepLane::kNetwork, left.group, begin, network_free_);
  }
  if (g.gradient_copy > 0) {
    const double begin = std::max(there, down_free_);
    down_free_ = begin + g.gradient_copy;
    note(StepLane::kCopyToHost, left.group, begin, down_free_);
  }
}

template <class Goes>
void Passes::send_while(Goes goes) {
  while (!left_.empty() && goes(left_.front())) {
    send(left_.front());
    left_.pop_front();
  }
}

double Passes::drain() {
  send_while([](const Left&) { return true; });
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
    const std::size_t use = begins_.size() - 1;
    send_while([&](const Left& left) { return left.use + ahead_ < use; });
    double there = compute_free_, own = 0;
    if (!g.in_place && kept > 0) {
      --kept;
    } else if (!g.in_place) {
      const GroupCost::Fetch& how = next_fetch(group, weights);
      const auto asked = [&](std::uint32_t uses) { return use >= uses ? begins_[use - uses] : 0; };
      const double slot =
          slot_ends_.size() >= slots_ && slots_ > 0 ? slot_ends_[slot_ends_.size() - slots_] : 0;
      there = fetch(group, how, {std::max(asked(prefetch_), slot), asked(ahead_)}, cost);
      own = how.carry + (verify_on_device_ ? how.verify : 0);
    }
    if (back) there = bring_saved(group, there, cost);
    const double begin = std::max(compute_free_, there);
    const double work = own + (back ? g.backward + g.gradient_pass : g.forward);
    compute_free_ = begin + work;
    cost.of(StepLane::kCompute) += work;
    note(StepLane::kCompute, group, begin, compute_free_);
    if (!g.in_place) slot_ends_.push_back(compute_free_);
    back ? leave_gradients({group, use, compute_free_}, cost) : leave_saved(group, cost);
  }
  cost.seconds = compute_free_ - began;
  return cost;
}
}  // namespace headrace::tools
