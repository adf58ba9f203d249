// SPDX-License-Identifier: Apache-2.0
// gradients.hpp: the gradients of a step: where they are summed, which parameters have one, and
// their norm.
//
// This rank's shard of every section has a slab in host memory. With one rank an arriving gradient
// is accumulated into it directly. With several, one group's gradients are collected in a bucket,
// which is open for the same group on all ranks. The ranks exchange its parts when one has a
// gradient of another group, or a second one of the same parameter; when they gather any group;
// and at the step. gradient_bucket.cpp holds that part.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headrace/device.hpp"
#include "partition/registry.hpp"
#include "pinned/arena.hpp"
#include "ranks/rank_calls.hpp"
#include "residency/plan.hpp"

namespace headrace::ranks {
// Over all ranks, of the sums as they are: not scaled.
struct GradientTotals {
  double sum_squares = 0;
  double non_finite = 0;
  std::string first_non_finite;  // the parameter, or empty
};

class Gradients {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    pinned::Arena& arena;
    Device& device;
    RankCalls& ranks;
    // Returns when no update reads the group's gradients of the last step any more.
    std::function<void(GroupId)> until_taken;
  };
  // Throws kOutOfBudget when the device has no room for the bucket.
  explicit Gradients(const Parts& parts);
  ~Gradients();

  // Trainer threads, several at once. Throws kWrongState for an arrival that was not declared.
  void add(ParameterId id, const void* gradient, DType dtype, Stream stream);
  // With several ranks: comes to this call together with the others, and helps them to reduce what
  // they have meanwhile. The caller holds the ranks' lock.
  RankAgreement meet(const RankCall& call);
  // Trainer thread, collective: whatever is in the bucket is reduced, everything queued is waited
  // for, ranks agree on which parameters have a gradient.
  GradientTotals finish(const StepTerms& terms);
  // Several ranks have agreed on the step to come: one that failed on this rank and is to be
  // repeated here, where nothing is compared again. Trainer thread.
  bool agreed() const noexcept { return p_.partition.world_size > 1 && totals_.has_value(); }
  // Trainer thread. discard() is collective: what another rank still reduces is discarded with it.
  void discard();
  void clear();

  // Trainer thread, collective: with several ranks, the ranks come to a hash together. No other
  // collective call of this rank begins while the result lives.
  std::unique_lock<std::mutex> begin_hash();

  // After finish():
  const std::uint8_t* received() const noexcept { return received_.data(); }
  const std::byte* of_section(std::uint32_t section) const;

  // What its tables take on the heap, for the plan.
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition);
  std::uint64_t device_bytes() const noexcept { return device_bytes_; }

 private:
  void add_to_slab(ParameterId id, const void* source, DType source_dtype, std::uint64_t first,
                   std::uint64_t elements, bool overwrite, Stream stream);
  void make_bucket();
  void add_to_bucket(ParameterId id, const void* gradient, DType dtype, Stream stream);
  void open_bucket(GroupId group, bool wide);
  std::span<const std::uint8_t> in_bucket();
  DType bucket_dtype(const partition::Section& section) const;
  std::byte* bucket_of(std::uint32_t section) const;
  void flush_bucket();
  void reduce(std::uint32_t section);
  void add_parts(const partition::Section& section, std::uint64_t at, std::uint64_t elements);
  void wait_for_arrivals();
  void gather_pieces();
  GradientTotals add_up();
  void forget();
  void count_arrival(ParameterId id, Stream stream);
  void remember_stream(Stream stream);
  void refuse_undeclared_repeat(ParameterId id) const;

  const Parts p_;
  std::vector<std::uint8_t> received_;
  std::vector<std::uint32_t> arrivals_;  // per parameter, since the last step
  std::vector<Stream> last_stream_;      // per parameter: its last arrival's
  std::vector<GradientPiece> pieces_;
  // Until something arrives: a step that is repeated asks the other ranks, who may be past it, no
  // more.
  std::optional<GradientTotals> totals_;
  std::vector<Stream> streams_;  // that arrivals were queued on
  std::mutex mutex_;
  std::array<std::mutex, 16> stripes_;  // by parameter, held while one of its gradients is taken
  // The bucket: one group's whole gradients, trained sections at multiples of 4096 bytes with room
  // for f32. Behind it: what is taken from the other ranks.
  std::byte* bucket_ = nullptr;
  std::uint64_t device_bytes_ = 0;
  std::optional<GroupId> bucket_group_;  // the same on all ranks
  Stream bucket_stream_;                 // of the last arrival
  std::vector<std::uint8_t> in_bucket_;  // per parameter
  std::vector<std::uint8_t> in_slab_;    // per parameter: its slab holds a sum already
  std::vector<std::uint8_t> wide_;       // per group: its gradients are not of its types
  std::vector<std::uint8_t> present_;    // in_bucket_, of the open group
  std::vector<DeviceSpan> give_;         // of one exchange
  std::vector<GradientPiece> own_pieces_, all_pieces_;
  std::vector<std::size_t> next_piece_;  // per rank, in all_pieces_
};
}  // namespace headrace::ranks
