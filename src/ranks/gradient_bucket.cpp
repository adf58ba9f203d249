// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradient_bucket.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::ranks {
GradientBucket::GradientBucket(const GradientParts& parts, GradientSums& sums)
    : p_(parts),
      sums_(sums),
      in_bucket_(p_.partition.parameters.size()),
      in_slab_(p_.partition.parameters.size()),
      wide_(p_.partition.group_sections.size()) {
  give_.reserve(p_.partition.world_size);
  take_memory();
}

void GradientBucket::take_memory() {
  if (memory_ != nullptr) return;
  if (p_.plan.bucket_memory.size_bytes > 0) {
    memory_ = p_.arena.range(p_.plan.bucket_memory.offset_bytes, p_.plan.bucket_bytes).data();
    return;
  }
  memory_ = static_cast<std::byte*>(p_.device.allocate(p_.plan.bucket_bytes));
  if (memory_ == nullptr) {
    throw Error(Code::kOutOfBudget, std::string("device ") + p_.device.name() +
                                        " has no room for the gradient bucket of " +
                                        base::format_bytes(p_.plan.bucket_bytes) +
                                        "; use smaller groups");
  }
  device_bytes_ = p_.plan.bucket_bytes;
}

GradientBucket::~GradientBucket() { release_memory(); }

void GradientBucket::release_memory() noexcept {
  if (device_bytes_ > 0) p_.device.deallocate(memory_, std::exchange(device_bytes_, 0));
  memory_ = nullptr;
}

std::uint64_t GradientBucket::bookkeeping_bytes(const partition::Partition& partition) noexcept {
  return 3 * partition.parameters.size() + partition.group_sections.size() +
         partition.world_size * sizeof(DeviceSpan);
}

std::span<const std::uint8_t> GradientBucket::present() {
  present_.clear();
  if (!group_) return {};
  for (const ParameterId id : p_.registry.group(*group_).parameters)
    present_.push_back(in_bucket_[id.index]);
  return present_;
}

RankAgreement GradientBucket::meet(const RankCall& call) {
  for (;;) {
    const RankAgreement agreed = p_.ranks.agree(call, present());
    if (!agreed.open) {
      // The next micro-batch may begin: what it brings comes behind what this one brought.
      if (call.kind == RankCall::Kind::kGather) flush();
      return agreed;
    }
    flush();
    open(*agreed.open, agreed.wide);
    if (agreed.served) return agreed;
  }
}

void GradientBucket::open(GroupId group, bool wide) {
  group_ = group;
  if (wide) wide_[group.index] = 1;
  for (const ParameterId id : p_.registry.group(group).parameters) in_bucket_[id.index] = 0;
}

// As one rank adds it: an f32 gradient of bf16 parameters is not rounded.
DType GradientBucket::dtype_in(const partition::Section& section) const {
  return wide_[section.group] != 0 ? DType::kF32 : section.dtype;
}

void GradientBucket::add(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const GroupId group{parameter.group};
  const DType of_section = p_.partition.sections[parameter.section].dtype;
  const bool wide = dtype != of_section && of_section != DType::kF32;
  if (group_ != group || in_bucket_[id.index] != 0 || (wide && wide_[group.index] == 0))
    meet({.kind = RankCall::Kind::kOpenBucket, .group = group, .wide = wide});
  if (stream_.handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(stream_));
    stream_ = stream;
  }
  Accumulation work;
  work.source = gradient;
  work.source_dtype = dtype;
  work.sum_dtype = dtype_in(p_.partition.sections[parameter.section]);
  work.sum = memory_of(parameter.section) + parameter.first_element * size_bytes(work.sum_dtype);
  work.elements = parameter.elements;
  p_.device.accumulate(stream, work);
  in_bucket_[id.index] = 1;
}

std::byte* GradientBucket::memory_of(std::uint32_t section) const {
  std::uint64_t at = 0;
  for (const std::uint32_t s : p_.partition.group_sections[p_.partition.sections[section].group]) {
    if (s == section) break;
    const partition::Section& before = p_.partition.sections[s];
    if (!before.frozen)
      at += base::align_up(before.buffer_elements * sizeof(float), base::kIoAlignment);
  }
  return memory_ + at;
}

void GradientBucket::flush() {
  if (!group_) return;
  const GroupId group = *group_;
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
    for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
      if (!p_.partition.sections[s].frozen) reduce(s);
    }
    p_.device.synchronize(stream_);
  }
  for (const ParameterId id : parameters) in_slab_[id.index] |= sums_.received()[id.index];
  close();
}

void GradientBucket::close() noexcept {
  group_.reset();
  stream_ = {};
}

void GradientBucket::forget() {
  std::ranges::fill(in_slab_, 0);
  close();
}

// In parts, so that what is taken from the other ranks has room.
void GradientBucket::reduce(std::uint32_t s) {
  const partition::Section& section = p_.partition.sections[s];
  const std::uint64_t bytes = size_bytes(dtype_in(section));
  const std::string what = "gradients of " + p_.registry.group({section.group}).name;
  std::byte* const bucket = memory_of(s);
  std::byte* const taken = memory_ + p_.plan.exchange_offset_bytes;
  for (std::uint64_t at = 0; at < section.shard_elements; at += p_.plan.exchange_elements) {
    const std::uint64_t part = std::min(p_.plan.exchange_elements, section.shard_elements - at);
    give_.clear();
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r)
      give_.push_back({bucket + (r * section.shard_elements + at) * bytes, part * bytes});
    p_.ranks.collective().all_to_all(p_.ranks.next(what), stream_, give_, taken);
    add_parts(section, at, part);
  }
}

// `elements` of this rank's shard from element `at` of it on: every rank's, in rank order.
void GradientBucket::add_parts(const partition::Section& section, std::uint64_t at,
                               std::uint64_t elements) {
  const DType dtype = dtype_in(section);
  const std::uint64_t bytes = size_bytes(dtype), part_bytes = elements * bytes;
  const std::byte* const taken = memory_ + p_.plan.exchange_offset_bytes;
  const std::uint32_t own = p_.partition.rank;
  const std::uint64_t begin = p_.partition.shard_first_element(section) + at;
  const std::vector<ParameterId>& group = p_.registry.group({section.group}).parameters;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const partition::Parameter& parameter = p_.partition.parameters[group[i].index];
    if (&p_.partition.sections[parameter.section] != &section) continue;
    const std::uint64_t first = std::max(begin, parameter.first_element);
    const std::uint64_t end =
        std::min(begin + elements, parameter.first_element + parameter.elements);
    if (first >= end) continue;
    bool overwrite = in_slab_[group[i].index] == 0;
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      const std::byte* part = taken + (r < own ? r : r - 1) * part_bytes;
      if (r == own) part = static_cast<const std::byte*>(give_[own].data);
      sums_.add(group[i], part + (first - begin) * bytes, dtype, first, end - first, overwrite,
                stream_);
      overwrite = false;
    }
  }
}
}  // namespace headrace::ranks
