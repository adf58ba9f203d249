// SPDX-License-Identifier: Apache-2.0
// gradient_bucket.hpp: with several ranks: one group's gradients, whole, until all ranks reduce
// them.
//
// The bucket is open for the same group on all ranks. The ranks exchange its parts when one has a
// gradient of another group, or a second one of the same parameter; when they gather any group; and
// at the step.
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
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ranks/gradient_sums.hpp"

namespace headrace::ranks {
// Threads: one at a time; the caller holds the ranks' lock.
class GradientBucket {
 public:
  // Both outlive this. Throws kOutOfBudget if the device has no room for it.
  GradientBucket(const GradientParts& parts, GradientSums& sums);
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  // Meets the others for this call, and takes part in the reductions that they need first.
  RankAgreement meet(const RankCall& call);
  // Meets the others first if the bucket must be opened for this gradient.
  void add(ParameterId id, const void* gradient, DType dtype, Stream stream);
  // Collective: all ranks do so after the same meeting. Adds what any rank has to the sums.
  void flush();
  // Empties it, and forgets which parameters have sums.
  void forget();

  // While it is empty. take_memory() throws as the constructor does.
  void release_memory() noexcept;
  void take_memory();

  std::uint64_t device_bytes() const noexcept { return device_bytes_; }
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

 private:
  void open(GroupId group, bool wide);
  void close() noexcept;
  std::span<const std::uint8_t> present();
  DType dtype_in(const partition::Section& section) const;
  std::byte* memory_of(std::uint32_t section) const;
  void reduce(std::uint32_t section);
  void add_parts(const partition::Section& section, std::uint64_t at, std::uint64_t elements);

  const GradientParts& p_;
  GradientSums& sums_;
  // One group's whole gradients, with trained sections at multiples of 4096 bytes and room for f32.
  // Behind them: the parts received from the other ranks.
  std::byte* memory_ = nullptr;
  std::uint64_t device_bytes_ = 0;
  std::optional<GroupId> group_;         // the same on all ranks
  Stream stream_;                        // the stream of the last arrival
  std::vector<std::uint8_t> in_bucket_;  // per parameter
  std::vector<std::uint8_t> in_slab_;    // per parameter: its slab already holds a sum
  // per group: its gradients have other dtypes than its sections
  std::vector<std::uint8_t> wide_;
  std::vector<std::uint8_t> present_;  // in_bucket_, for the open group
  std::vector<DeviceSpan> give_;       // the parts of one exchange
};
}  // namespace headrace::ranks
