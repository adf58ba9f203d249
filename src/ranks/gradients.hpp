// SPDX-License-Identifier: Apache-2.0
// gradients.hpp: the gradients of a step: their sums, the parameters that have one, and their norm.
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
// Over all ranks, for the sums before scaling.
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
  // Throws kOutOfBudget if the device has no room for the bucket.
  explicit Gradients(const Parts& parts);
  ~Gradients();

  // For trainer threads, several at once. Throws kWrongState for an undeclared second gradient.
  void add(ParameterId id, const void* gradient, DType dtype, Stream stream);
  // With several ranks: meets the others for this call, and takes part in the reductions that they
  // need first. The caller holds the ranks' lock.
  RankAgreement meet(const RankCall& call);
  // Trainer thread, collective: reduces what is in the bucket, waits for everything queued, and
  // agrees with the ranks on the parameters that have a gradient.
  GradientTotals finish(const StepTerms& terms);
  // Whether several ranks have agreed on the next step, which failed on this rank and will be
  // repeated here without another comparison. Trainer thread.
  bool agreed() const noexcept { return p_.partition.world_size > 1 && totals_.has_value(); }
  // Trainer thread. discard() is collective: it also discards what another rank still reduces.
  void discard();
  void clear();

  // Trainer thread, collective: with several ranks, the ranks begin a hash together. While the
  // result lives, this rank begins no other collective call.
  std::unique_lock<std::mutex> begin_hash();
  // Trainer thread, collective: with several ranks, returns when all of them are at this call.
  void meet_alike(RankCall::Kind kind);

  // After finish():
  const std::uint8_t* received() const noexcept { return received_.data(); }
  const std::byte* of_section(std::uint32_t section) const;

  // The heap memory of its tables, for the plan.
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
  std::vector<Stream> last_stream_;      // per parameter: the stream of its last arrival
  std::vector<GradientPiece> pieces_;
  // Set until a gradient arrives: a repeated step does not ask the other ranks again, since they
  // may be past it.
  std::optional<GradientTotals> totals_;
  std::vector<Stream> streams_;  // the streams of the arrivals
  std::mutex mutex_;
  std::array<std::mutex, 16> stripes_;  // by parameter, held while one of its gradients is read
  // The bucket: one group's whole gradients, with trained sections at multiples of 4096 bytes and
  // room for f32. Behind it: the parts received from the other ranks.
  std::byte* bucket_ = nullptr;
  std::uint64_t device_bytes_ = 0;
  std::optional<GroupId> bucket_group_;  // the same on all ranks
  Stream bucket_stream_;                 // the stream of the last arrival
  std::vector<std::uint8_t> in_bucket_;  // per parameter
  std::vector<std::uint8_t> in_slab_;    // per parameter: its slab already holds a sum
  // per group: its gradients have other dtypes than its sections
  std::vector<std::uint8_t> wide_;
  std::vector<std::uint8_t> present_;  // in_bucket_, for the open group
  std::vector<DeviceSpan> give_;       // the parts of one exchange
  std::vector<GradientPiece> own_pieces_, all_pieces_;
  std::vector<std::size_t> next_piece_;  // per rank, in all_pieces_
};
}  // namespace headrace::ranks
