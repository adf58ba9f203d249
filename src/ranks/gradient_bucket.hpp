// SPDX-License-Identifier: Apache-2.0
// gradient_bucket.hpp: with several ranks: one group's gradients, whole, until all ranks reduce
// them.
//
// The bucket is open for the same group on all ranks. The ranks exchange its parts when one has a
// gradient of another group, or a second one of the same parameter; when they gather any group; and
// at the step. Once some rank has an f32 gradient of a 16-bit parameter, all that is in there
// becomes f32, and the group's gradients are f32 from then on.
//
// Ranks that follow a recorded order (sequence_runner.hpp) have memory for a second group: one is
// reduced while the trainer brings the next. What is in there when a rank leaves that order is held
// until the ranks open the bucket for it.
//
// In a reduction, the owner of each gradient adds every rank's to its slab (gradient_exchange.hpp).
// By default it does so in rank order. So W ranks make the additions that one rank makes that
// accumulates: the sum does not depend on the number of ranks, to the last bit.
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
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ranks/gradient_exchange.hpp"
#include "ranks/gradient_sums.hpp"
#include "ranks/sequence.hpp"

namespace headrace::ranks {
// This rank's gradients of one group and position.
struct HeldGradients {
  std::byte* memory = nullptr;
  bool used = false;
  Reduction of;
  std::uint64_t number = 0;       // in the trainer's order
  Stream stream;                  // of the last arrival
  Event there;                    // of all of them; set by leave_position()
  std::vector<std::uint8_t> has;  // per parameter of the model
};

// Threads: one at a time; the caller holds the ranks' lock. The runner's thread makes the calls
// marked as its own, while the trainer calls hold() for other positions.
class GradientBucket {
 public:
  // All outlive this. Throws kOutOfBudget if the device has no room for it.
  GradientBucket(const GradientParts& parts, GradientSums& sums, StepRecord& record);
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  // Meets the others for this call, and takes part in the reductions that they need first; before
  // that, in those of what this rank holds. All ranks attach bytes, or none does; once: in what
  // they say first.
  RankAgreement meet(const RankCall& call, std::span<const std::byte> attached = {});
  // Meets the others first if the bucket must be opened for this gradient.
  void add(ParameterId id, const void* gradient, DType dtype, Stream stream, std::uint32_t position,
           std::span<const std::byte> attached = {});
  // Collective: all ranks do so after the same meeting. Adds what any rank has to the sums.
  void flush();
  // Whether it collects the gradients of some group, on all ranks.
  bool is_open() const noexcept { return open_.has_value(); }
  // Empties it, and forgets which parameters have sums.
  void forget();

  // ---- for ranks that follow an order ----
  // Null if there are none, or no memory is free for them.
  HeldGradients* held(const Reduction& of) noexcept;
  HeldGradients* take_free(const Reduction& of);
  bool has_free() const noexcept;
  // Whether some memory holds gradients of an earlier position, so that the runner will free it.
  bool frees_some(std::uint32_t position) const noexcept;
  // Whether hold() can: it has no gradient of this parameter, nor one that needs wider sums.
  bool takes(const HeldGradients& held, ParameterId id, DType dtype) const;
  void hold(HeldGradients& held, ParameterId id, const void* gradient, DType dtype, Stream stream);
  // The trainer adds to it no more.
  void leave_position(std::uint32_t position);
  // The runner's. For agree(); then, after it: reduces on `stream`, and waits for that.
  std::span<const std::uint8_t> present(GroupId group, const HeldGradients* mine);
  void reduce(const Reduction& of, const HeldGradients* mine, Stream stream);

  // While it is empty. take_memory() throws as the constructor does.
  void release_memory() noexcept;
  void take_memory();

  std::uint64_t device_bytes() const noexcept { return device_bytes_; }
  // Nothing if it is in the arena.
  DeviceSpan device_memory() const noexcept { return {memory_, device_bytes_}; }
  std::uint64_t meetings() const noexcept { return meetings_.load(); }  // of meet(); any thread
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition,
                                         std::uint32_t buckets, bool in_nodes) noexcept;

 private:
  void reduce_agreed(const Reduction& of, const HeldGradients* mine, Stream stream);
  void open(const Reduction& of, bool wide, HeldGradients* mine);
  void widen(GroupId group);
  void widen_section(const HeldGradients& held, std::uint32_t section);
  void close() noexcept;
  HeldGradients* first_held() noexcept;
  DType dtype_in(const partition::Section& section) const;
  bool needs_wide(ParameterId id, DType dtype) const;
  std::uint64_t offset_of(std::uint32_t section) const;

  const GradientParts& p_;
  GradientSums& sums_;
  StepRecord& record_;
  GradientExchange exchange_;
  // One group's whole gradients, with trained sections at multiples of 4096 bytes and room for f32.
  // Behind the last: what exchange_ needs.
  std::byte* memory_ = nullptr;
  std::uint64_t device_bytes_ = 0;
  std::array<HeldGradients, residency::Plan::kMostBuckets> held_;
  std::uint64_t taken_ = 0;             // of held_, since the start
  std::optional<Reduction> open_;       // the same on all ranks
  HeldGradients* open_here_ = nullptr;  // null: this rank has none of them
  // per group: its gradients have other dtypes than its sections
  std::vector<std::uint8_t> wide_;
  std::vector<std::uint8_t> present_;  // per parameter of one group
  std::atomic<std::uint64_t> meetings_{0};
};
}  // namespace headrace::ranks
