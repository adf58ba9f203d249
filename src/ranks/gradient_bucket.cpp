// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradient_bucket.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::ranks {
GradientBucket::GradientBucket(const GradientParts& parts, GradientSums& sums, StepRecord& record)
    : p_(parts),
      sums_(sums),
      record_(record),
      exchange_(p_, sums_),
      wide_(p_.partition.group_sections.size()) {
  for (std::uint32_t b = 0; b < p_.plan.buckets; ++b)
    held_[b].has.resize(p_.partition.parameters.size());
  present_.reserve(p_.partition.parameters.size());
  take_memory();
}

void GradientBucket::take_memory() {
  if (memory_ != nullptr) return;
  if (p_.plan.bucket_memory.size_bytes > 0) {
    memory_ = p_.arena.range(p_.plan.bucket_memory.offset_bytes, p_.plan.bucket_bytes).data();
  } else {
    memory_ = static_cast<std::byte*>(p_.device.allocate(p_.plan.bucket_bytes));
    if (memory_ == nullptr) {
      throw Error(Code::kOutOfBudget, std::string("device ") + p_.device.name() +
                                          " has no room for the gradient bucket of " +
                                          base::format_bytes(p_.plan.bucket_bytes) +
                                          "; use smaller groups");
    }
    device_bytes_ = p_.plan.bucket_bytes;
  }
  for (std::uint32_t b = 0; b < p_.plan.buckets; ++b)
    held_[b].memory = memory_ + b * (p_.plan.exchange_offset_bytes / p_.plan.buckets);
  // With several buckets, the first may be in use where a rank has none of a group's gradients.
  std::byte* const nothing = p_.plan.buckets == 1 ? memory_
                                                  : memory_ + p_.plan.bucket_bytes -
                                                        p_.plan.exchange_elements * sizeof(float);
  exchange_.use_memory(memory_ + p_.plan.exchange_offset_bytes, nothing);
}

GradientBucket::~GradientBucket() { release_memory(); }

void GradientBucket::release_memory() noexcept {
  if (device_bytes_ > 0) p_.device.deallocate(memory_, std::exchange(device_bytes_, 0));
  memory_ = nullptr;
}

std::uint64_t GradientBucket::bookkeeping_bytes(const partition::Partition& partition,
                                                std::uint32_t buckets, bool in_nodes) noexcept {
  return (1 + buckets) * partition.parameters.size() + partition.group_sections.size() +
         GradientExchange::bookkeeping_bytes(partition, in_nodes);
}

std::span<const std::uint8_t> GradientBucket::present(GroupId group, const HeldGradients* mine) {
  present_.clear();
  for (const ParameterId id : p_.registry.group(group).parameters)
    present_.push_back(mine == nullptr ? 0 : mine->has[id.index]);
  return present_;
}

// ---- what is held ----

HeldGradients* GradientBucket::held(const Reduction& of) noexcept {
  const auto found = std::ranges::find_if(
      held_, [&](const HeldGradients& one) { return one.used && one.of == of; });
  return found == held_.end() ? nullptr : &*found;
}

HeldGradients* GradientBucket::take_free(const Reduction& of) {
  for (std::uint32_t b = 0; b < p_.plan.buckets; ++b) {
    HeldGradients& one = held_[b];
    if (one.used) continue;
    one.used = true;
    one.of = of;
    one.number = ++taken_;
    one.stream = {};
    one.there = {};
    for (const ParameterId id : p_.registry.group(of.group).parameters) one.has[id.index] = 0;
    return &one;
  }
  return nullptr;
}

bool GradientBucket::has_free() const noexcept {
  return std::ranges::any_of(std::span(held_).first(p_.plan.buckets),
                             [](const HeldGradients& one) { return !one.used; });
}

bool GradientBucket::frees_some(std::uint32_t position) const noexcept {
  return std::ranges::any_of(
      held_, [&](const HeldGradients& one) { return one.used && one.of.position < position; });
}

// In the trainer's order, not that in which the runner freed memory: sums are in rank order only if
// every rank brings the groups of a position as its trainer does.
HeldGradients* GradientBucket::first_held() noexcept {
  HeldGradients* first = nullptr;
  for (HeldGradients& one : held_) {
    if (!one.used || &one == open_here_) continue;
    if (first == nullptr || one.number < first->number) first = &one;
  }
  return first;
}

// As one rank adds it: an f32 gradient of bf16 parameters is not rounded.
bool GradientBucket::needs_wide(ParameterId id, DType dtype) const {
  const DType of_section = p_.partition.sections[p_.partition.parameters[id.index].section].dtype;
  return dtype != of_section && of_section != DType::kF32;
}

DType GradientBucket::dtype_in(const partition::Section& section) const {
  return wide_[section.group] != 0 ? DType::kF32 : section.dtype;
}

bool GradientBucket::takes(const HeldGradients& held, ParameterId id, DType dtype) const {
  return held.has[id.index] == 0 && (!needs_wide(id, dtype) || wide_[held.of.group.index] != 0);
}

void GradientBucket::hold(HeldGradients& held, ParameterId id, const void* gradient, DType dtype,
                          Stream stream) {
  if (held.stream.handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(held.stream));
    held.stream = stream;
  }
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  Accumulation work;
  work.source = gradient;
  work.source_dtype = dtype;
  work.sum_dtype = dtype_in(p_.partition.sections[parameter.section]);
  work.sum = held.memory + offset_of(parameter.section) +
             parameter.first_element * size_bytes(work.sum_dtype);
  work.elements = parameter.elements;
  p_.device.accumulate(stream, work);
  held.has[id.index] = 1;
}

void GradientBucket::leave_position(std::uint32_t position) {
  for (HeldGradients& one : held_) {
    if (one.used && one.of.position == position) one.there = p_.device.record(one.stream);
  }
}

std::uint64_t GradientBucket::offset_of(std::uint32_t section) const {
  std::uint64_t at = 0;
  for (const std::uint32_t s : p_.partition.group_sections[p_.partition.sections[section].group]) {
    if (s == section) break;
    const partition::Section& before = p_.partition.sections[s];
    if (!before.frozen)
      at += base::align_up(before.buffer_elements * sizeof(float), base::kIoAlignment);
  }
  return at;
}

// ---- ranks that meet for each call ----

RankAgreement GradientBucket::meet(const RankCall& call, std::span<const std::byte> attached) {
  for (;;) {
    HeldGradients* const mine = first_held();
    RankCall say = call;
    const Reduction of_call{call.position, call.group};
    const bool for_bucket = call.kind == RankCall::Kind::kOpenBucket;
    say.goes_on = for_bucket && call.wide && wide_[call.group.index] == 0 && open_ == of_call &&
                  open_here_ != nullptr;
    if (mine != nullptr && !say.goes_on && !(for_bucket && mine->of == of_call)) {
      say = {.kind = RankCall::Kind::kOpenBucket,
             .group = mine->of.group,
             .position = mine->of.position};
    }
    const auto here = open_ ? present(open_->group, open_here_) : std::span<const std::uint8_t>{};
    meetings_.fetch_add(1, std::memory_order_relaxed);
    const RankAgreement agreed = p_.ranks.agree(say, here, std::exchange(attached, {}));
    if (agreed.left) continue;  // the others now come to their trainers' calls
    if (!agreed.open) {
      // The next micro-batch may begin: what it brings comes behind what this one brought.
      if (call.kind == RankCall::Kind::kGather) flush();
      return agreed;
    }
    const Reduction of{agreed.position, *agreed.open};
    const bool served = agreed.served;
    if (open_ == of && agreed.wide && wide_[of.group.index] == 0) {
      widen(of.group);
      if (served && open_here_ == nullptr) open_here_ = mine != nullptr ? mine : take_free(of);
    } else {
      flush();
      open(of, agreed.wide, !served ? nullptr : mine != nullptr ? mine : take_free(of));
    }
    // What is held of the call's own group goes on with it.
    const bool own = for_bucket && of == of_call;
    if (served && (mine == nullptr || own)) return agreed;
  }
}

void GradientBucket::open(const Reduction& of, bool wide, HeldGradients* mine) {
  open_ = of;
  open_here_ = mine;
  if (wide && wide_[of.group.index] == 0) widen(of.group);
}

// Nothing is reduced: what a rank has still to bring of this group would come behind what the
// others have brought of it, and sums are in rank order. All that this rank holds of the group
// becomes f32, also what it held while it followed the order, and is opened later.
void GradientBucket::widen(GroupId group) {
  wide_[group.index] = 1;
  for (const HeldGradients& one : held_) {
    const bool holds = one.used && std::ranges::any_of(one.has, [](auto has) { return has != 0; });
    if (!holds || one.of.group != group) continue;
    for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
      const partition::Section& section = p_.partition.sections[s];
      if (!section.frozen && section.dtype != DType::kF32) widen_section(one, s);
    }
    p_.device.synchronize(one.stream);  // the next one goes by way of the same memory
  }
}

// From the end on, by way of the room for other ranks' parts: each f32 value lies behind its 16-bit
// one.
void GradientBucket::widen_section(const HeldGradients& held, std::uint32_t s) {
  const partition::Section& section = p_.partition.sections[s];
  const std::uint64_t bytes = size_bytes(section.dtype);
  std::byte* const values = held.memory + offset_of(s);
  std::byte* const apart = exchange_.spare();
  for (std::uint64_t end = section.buffer_elements; end > 0;) {
    const std::uint64_t first = end - std::min(end, p_.plan.exchange_elements);
    p_.device.copy(held.stream, apart, values + first * bytes, (end - first) * bytes);
    Accumulation work;
    work.source = apart;
    work.source_dtype = section.dtype;
    work.sum_dtype = DType::kF32;
    work.sum = values + first * sizeof(float);
    work.elements = end - first;
    p_.device.accumulate(held.stream, work);
    end = first;
  }
}

void GradientBucket::add(ParameterId id, const void* gradient, DType dtype, Stream stream,
                         std::uint32_t position, std::span<const std::byte> attached) {
  const Reduction of{position, {p_.partition.parameters[id.index].group}};
  // Twice, if what was held of its group has to be reduced before it.
  while (open_ != of || open_here_ == nullptr || !takes(*open_here_, id, dtype)) {
    meet({.kind = RankCall::Kind::kOpenBucket,
          .group = of.group,
          .position = position,
          .wide = needs_wide(id, dtype)},
         std::exchange(attached, {}));
  }
  hold(*open_here_, id, gradient, dtype, stream);
}

void GradientBucket::flush() {
  if (!open_) return;
  const Stream stream = open_here_ == nullptr ? Stream{} : open_here_->stream;
  reduce(*open_, open_here_, stream);
  record_.reductions.push_back(*open_);
  close();
}

void GradientBucket::close() noexcept {
  if (open_here_ != nullptr) open_here_->used = false;
  open_here_ = nullptr;
  open_.reset();
}

void GradientBucket::forget() {
  exchange_.forget();
  for (HeldGradients& one : held_) one.used = false;
  close();
}

// ---- the reduction ----

void GradientBucket::reduce(const Reduction& of, const HeldGradients* mine, Stream stream) {
  p_.ranks.carry_out([&] { reduce_agreed(of, mine, stream); });
}

void GradientBucket::reduce_agreed(const Reduction& of, const HeldGradients* mine, Stream stream) {
  const GroupId group = of.group;
  exchange_.begin(of);
  const std::vector<ParameterId>& parameters = p_.registry.group(group).parameters;
  bool some = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      sums_.note(parameters[i]);
      some = true;
    }
  }
  if (some) {
    p_.until_taken(group);
    if (mine != nullptr && mine->there.id != 0) p_.device.wait(stream, mine->there);
    for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
      const partition::Section& section = p_.partition.sections[s];
      if (section.frozen) continue;
      exchange_.reduce(s, mine == nullptr ? nullptr : mine->memory + offset_of(s),
                       dtype_in(section), stream);
    }
    p_.device.synchronize(stream);
  }
  exchange_.note_added(group);
}

}  // namespace headrace::ranks
