// SPDX-License-Identifier: Apache-2.0
// gradient_bucket.cpp: with several ranks: one group's gradients, whole, until all ranks reduce
// them.
//
// Two ranks, of which rank 0 owns the first half of every section. Group 1 has one parameter of
// four elements, whose gradient rank 1 never gets; the bucket is open for group 2 on both:
//
//   rank 0                                   rank 1
//   has a gradient of group 1                comes to its next gather
//       both reduce group 2, then open the bucket for group 1 (rank_calls.hpp)
//   adds it: the bucket is { 1 2 3 4 }       says again that it gathers, and waits
//       both gather, and come to the step, which reduces group 1
//   the bucket is { 1 2 3 4 }                nothing has arrived: zeros, { 0 0 0 0 }
//   reduce_scatter gives { 1 2 }, the first  { 3 4 }, the second half
//   into its slab of group 1                 into its slab of group 1
//
// A group may be opened again before the step, for the next micro-batch: what is reduced then is
// added to the slab, where the first was written (reduced_before_).
#include <algorithm>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "ranks/gradients.hpp"

namespace headrace::ranks {
void Gradients::make_bucket() {
  in_bucket_.resize(p_.partition.parameters.size());
  reduced_before_.resize(p_.partition.group_sections.size());
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

RankAgreement Gradients::meet(const RankCall& call) {
  for (;;) {
    const RankAgreement agreed = p_.ranks.agree(call);
    if (!agreed.open) return agreed;
    flush_bucket();
    open_bucket(*agreed.open);
    if (call.kind == RankCall::Kind::kOpenBucket && call.group == *agreed.open) return agreed;
  }
}

void Gradients::open_bucket(GroupId group) {
  bucket_group_ = group;
  for (const ParameterId id : p_.registry.group(group).parameters) in_bucket_[id.index] = 0;
}

void Gradients::add_to_bucket(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const GroupId group{parameter.group};
  if (!bucket_group_ || !(*bucket_group_ == group)) {
    meet({.kind = RankCall::Kind::kOpenBucket, .group = group});
  }
  if (bucket_stream_.handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(bucket_stream_));
    bucket_stream_ = stream;
  }
  std::uint64_t at = 0;
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    if (section.frozen) continue;
    const std::uint64_t bytes = size_bytes(p_.plan.sections[s].gradient_dtype);
    if (s == parameter.section) {
      Accumulation work;
      work.source = gradient;
      work.source_dtype = dtype;
      work.sum = bucket_ + at + parameter.first_element * bytes;
      work.sum_dtype = p_.plan.sections[s].gradient_dtype;
      work.elements = parameter.elements;
      work.overwrite = in_bucket_[id.index] == 0;
      p_.device.accumulate(stream, work);
      break;
    }
    at += base::align_up(section.buffer_elements * bytes, base::kIoAlignment);
  }
  in_bucket_[id.index] = 1;
}

void Gradients::flush_bucket() {
  if (!bucket_group_) return;
  const GroupId group = *bucket_group_;
  p_.until_taken(group);
  std::uint64_t at = 0;
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    if (section.frozen) continue;
    const DType dtype = p_.plan.sections[s].gradient_dtype;
    const std::uint64_t bytes = size_bytes(dtype);
    // What did not arrive is zero; so is the padding between parameters, which nobody reads.
    for (const std::uint32_t index : section.parameters) {
      const partition::Parameter& parameter = p_.partition.parameters[index];
      if (in_bucket_[index] != 0) continue;
      p_.device.fill_zero(bucket_stream_, bucket_ + at + parameter.first_element * bytes,
                          parameter.elements * bytes);
    }
    p_.ranks.collective().reduce_scatter(
        p_.ranks.next("gradients of " + p_.registry.group(group).name), bucket_stream_,
        bucket_ + at, dtype, section.buffer_elements);
    const std::uint64_t begin = p_.partition.shard_first_element(section);
    const std::uint64_t end = begin + section.shard_elements;
    for (const std::uint32_t index : section.parameters) {
      const partition::Parameter& parameter = p_.partition.parameters[index];
      const std::uint64_t first = std::max(begin, parameter.first_element);
      const std::uint64_t stop = std::min(end, parameter.first_element + parameter.elements);
      if (first >= stop) continue;
      add_to_slab({index}, bucket_ + at + first * bytes, dtype, first, stop - first,
                  reduced_before_[group.index] == 0, bucket_stream_);
    }
    at += base::align_up(section.buffer_elements * bytes, base::kIoAlignment);
  }
  p_.device.synchronize(bucket_stream_);
  reduced_before_[group.index] = 1;
  bucket_group_.reset();
  bucket_stream_ = {};
}
}  // namespace headrace::ranks
