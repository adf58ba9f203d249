// SPDX-License-Identifier: Apache-2.0
// gradient_bucket.cpp: with several ranks: one group's gradients, whole, until all ranks reduce
// them.
//
// Every rank gives every other the part of its bucket that the other owns, and adds the parts that
// it takes to its slab, one after the other, in rank order. What did not arrive on a rank is not
// added. So W ranks make the additions that one rank makes that accumulates: the sum does not
// depend on the number of ranks, to the last bit.
//
// Two ranks; group 1 has two parameters of four elements, a and b, and rank 0 owns a. Rank 1 has no
// gradient of a; the bucket is open for group 2 on both:
//
//   rank 0                                   rank 1
//   has a gradient of a                      has one of b
//       both reduce group 2, then open the bucket for group 1 (rank_calls.hpp)
//   the bucket is { 1 2 3 4 | - - - - }      { - - - - | 5 6 7 8 }
//   adds b's: { 1 2 3 4 | 9 9 9 9 }
//   comes to the step, and says "a, b"       comes to the step, and says "b"
//   gives { 9 9 9 9 }, takes { - - - - }     gives { - - - - }, takes { 9 9 9 9 }
//   slab of a: { 1 2 3 4 }                   slab of b: { 9 9 9 9 }, then + { 5 6 7 8 }
//
// In the next micro-batch the bucket is opened again, and what is reduced then is added to the
// slab. One rank with twice as many micro-batches, those of rank 0 and rank 1 in turn, makes the
// same additions. That holds where a parameter has at most one gradient in each micro-batch: a
// second one is added behind the first one of every rank.
#include <algorithm>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "ranks/gradients.hpp"

namespace headrace::ranks {
void Gradients::make_bucket() {
  in_bucket_.resize(p_.partition.parameters.size());
  in_slab_.resize(p_.partition.parameters.size());
  wide_.resize(p_.partition.group_sections.size());
  give_.reserve(p_.partition.world_size);
  if (p_.plan.bucket_memory.size_bytes > 0) {
    bucket_ = p_.arena.range(p_.plan.bucket_memory.offset_bytes, p_.plan.bucket_bytes).data();
    return;
  }
  bucket_ = static_cast<std::byte*>(p_.device.allocate(p_.plan.bucket_bytes));
  if (bucket_ == nullptr) {
    throw Error(Code::kOutOfBudget, std::string("device ") + p_.device.name() +
                                        " has no room for the gradient bucket of " +
                                        base::format_bytes(p_.plan.bucket_bytes) +
                                        "; use smaller groups");
  }
  device_bytes_ = p_.plan.bucket_bytes;
}

std::span<const std::uint8_t> Gradients::in_bucket() {
  present_.clear();
  if (!bucket_group_) return {};
  for (const ParameterId id : p_.registry.group(*bucket_group_).parameters)
    present_.push_back(in_bucket_[id.index]);
  return present_;
}

RankAgreement Gradients::meet(const RankCall& call) {
  for (;;) {
    const RankAgreement agreed = p_.ranks.agree(call, in_bucket());
    if (!agreed.open) {
      // The next micro-batch may begin: what it brings comes behind what this one brought.
      if (call.kind == RankCall::Kind::kGather) flush_bucket();
      return agreed;
    }
    flush_bucket();
    open_bucket(*agreed.open, agreed.wide);
    if (agreed.served) return agreed;
  }
}

void Gradients::open_bucket(GroupId group, bool wide) {
  bucket_group_ = group;
  if (wide) wide_[group.index] = 1;
  for (const ParameterId id : p_.registry.group(group).parameters) in_bucket_[id.index] = 0;
}

// As one rank adds it: an f32 gradient of bf16 parameters is not rounded.
DType Gradients::bucket_dtype(const partition::Section& section) const {
  return wide_[section.group] != 0 ? DType::kF32 : section.dtype;
}

void Gradients::add_to_bucket(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const GroupId group{parameter.group};
  const DType of_section = p_.partition.sections[parameter.section].dtype;
  const bool wide = dtype != of_section && of_section != DType::kF32;
  if (bucket_group_ != group || in_bucket_[id.index] != 0 || (wide && wide_[group.index] == 0))
    meet({.kind = RankCall::Kind::kOpenBucket, .group = group, .wide = wide});
  if (bucket_stream_.handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(bucket_stream_));
    bucket_stream_ = stream;
  }
  Accumulation work;
  work.source = gradient;
  work.source_dtype = dtype;
  work.sum_dtype = bucket_dtype(p_.partition.sections[parameter.section]);
  work.sum = bucket_of(parameter.section) + parameter.first_element * size_bytes(work.sum_dtype);
  work.elements = parameter.elements;
  p_.device.accumulate(stream, work);
  in_bucket_[id.index] = 1;
}

std::byte* Gradients::bucket_of(std::uint32_t section) const {
  std::uint64_t at = 0;
  for (const std::uint32_t s : p_.partition.group_sections[p_.partition.sections[section].group]) {
    if (s == section) break;
    const partition::Section& before = p_.partition.sections[s];
    if (!before.frozen)
      at += base::align_up(before.buffer_elements * sizeof(float), base::kIoAlignment);
  }
  return bucket_ + at;
}

void Gradients::flush_bucket() {
  if (!bucket_group_) return;
  const GroupId group = *bucket_group_;
  const std::vector<ParameterId>& parameters = p_.registry.group(group).parameters;
  bool some = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      received_[parameters[i].index] = 1;
      some = true;
    }
  }
  if (some) {
    p_.until_taken(group);
    for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
      if (!p_.partition.sections[s].frozen) reduce(s);
    }
    p_.device.synchronize(bucket_stream_);
  }
  for (const ParameterId id : parameters) in_slab_[id.index] |= received_[id.index];
  bucket_group_.reset();
  bucket_stream_ = {};
}

// In parts, so that what is taken from the other ranks has room.
void Gradients::reduce(std::uint32_t s) {
  const partition::Section& section = p_.partition.sections[s];
  const std::uint64_t bytes = size_bytes(bucket_dtype(section));
  const std::string what = "gradients of " + p_.registry.group({section.group}).name;
  std::byte* const bucket = bucket_of(s);
  std::byte* const taken = bucket_ + p_.plan.exchange_offset_bytes;
  for (std::uint64_t at = 0; at < section.shard_elements; at += p_.plan.exchange_elements) {
    const std::uint64_t part = std::min(p_.plan.exchange_elements, section.shard_elements - at);
    give_.clear();
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r)
      give_.push_back({bucket + (r * section.shard_elements + at) * bytes, part * bytes});
    p_.ranks.collective().all_to_all(p_.ranks.next(what), bucket_stream_, give_, taken);
    add_parts(section, at, part);
  }
}

// `elements` of this rank's shard from element `at` of it on: every rank's, in rank order.
void Gradients::add_parts(const partition::Section& section, std::uint64_t at,
                          std::uint64_t elements) {
  const DType dtype = bucket_dtype(section);
  const std::uint64_t bytes = size_bytes(dtype), part_bytes = elements * bytes;
  const std::byte* const taken = bucket_ + p_.plan.exchange_offset_bytes;
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
      add_to_slab(group[i], part + (first - begin) * bytes, dtype, first, end - first, overwrite,
                  bucket_stream_);
      overwrite = false;
    }
  }
}
}  // namespace headrace::ranks
