// SPDX-License-Identifier: Apache-2.0
// rank_calls.hpp: how the ranks of an engine come to make the same collective calls.
//
// All ranks call gather, step and discard_gradients alike, but gradients arrive as they will: a
// parameter may have none on some rank. So before anything is joined or reduced, every rank says
// what it is about to do. One that needs the gradient bucket for another group goes first: the
// others reduce and open the bucket with it, and say again what they want. Of several that need it,
// the lowest rank goes first, and with it those that need the same group; but none passes a lower
// rank that needs another, which may bring a gradient of this group later: sums are in rank order.
//
// Two ranks, whose bucket is open for group 2; rank 1 has no gradient of group 1:
//
//   rank 0                        rank 1                     both, from what was said
//   says "bucket for group 1"     says "gather of group 0"   rank 0 goes first: reduce group 2,
//                                                            open the bucket for group 1
//   adds its gradient of group 1
//   says "gather of group 0"      says "gather of group 0"   the same call: join, if either must
//   says "step"                   says "step"                reduce group 1, update
//
// Three ranks, of which only rank 1 has a gradient of group 1:
//
//   rank 0                   rank 1                   rank 2
//   "bucket for group 0"     "bucket for group 1"     "bucket for group 0"   opened for rank 0
//   adds group 0
//   "gather of group 0"      "bucket for group 1"     "bucket for group 0"   opened for rank 1
//                            adds group 1
//   "gather of group 0"      "bucket for group 0"     "bucket for group 0"   opened for both
//
// Had rank 1 said "step" where rank 0 says "gather of group 0", both would throw, naming both.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/settings.hpp"
#include "partition/registry.hpp"

namespace headrace::ranks {
// What a step's arithmetic hangs on beside gradients and the registry's hyperparameters: equal on
// every rank.
struct StepTerms {
  StepOptions options;
  std::span<const std::uint64_t> step_counts;  // per parameter; outlives the call
};

// What one rank is about to do. `wide`: gradients come that are not of their section's type.
struct RankCall {
  enum class Kind : std::uint8_t { kOpenBucket, kGather, kStep, kDiscard, kHash };
  Kind kind = Kind::kStep;
  GroupId group = {};    // of kOpenBucket and kGather
  bool join = false;     // of kGather: the other ranks' shards are not here yet
  bool wide = false;     // of kOpenBucket
  StepTerms terms = {};  // of kStep
};

// What all ranks do next. Without `open` all of them are at the same call.
struct RankAgreement {
  std::optional<GroupId> open;  // reduce what is in the bucket, then open it for this group
  bool wide = false;            // as some rank asks
  bool served = false;          // this rank may add to that group's; else it asks again
  bool join = false;            // some rank lacks shards
};

// Threads: one at a time, which lock() sees to; the lock is held over the whole of a rank's call.
class RankCalls {
 public:
  RankCalls(Collective& collective, const partition::Registry& registry);

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  Collective& collective() noexcept { return collective_; }
  // Numbers the collective call that it goes with.
  CollectiveTag next(std::string_view what) noexcept { return {sequence_++, what}; }

  // Collective. `present` has a byte for each parameter of the open group, not 0: this rank's
  // bucket holds a gradient of it. Throws kPeerLost naming both ranks' calls where they cannot go
  // together, or what of a step's terms differs; no call is carried out from then on.
  RankAgreement agree(const RankCall& mine, std::span<const std::uint8_t> present);
  // What rank `rank` said then of parameter `index` of that group.
  bool present(std::uint32_t rank, std::size_t index) const noexcept;
  // Collective: throws kPeerLost naming what a rank registered or set otherwise than rank 0.
  // `settings` as Settings::to_json() gives them.
  void compare_registration(const std::string& settings);

  static std::uint64_t bookkeeping_bytes(const partition::Registry& registry,
                                         std::uint32_t world_size) noexcept;

 private:
  // A RankCall as it is sent: whole words, so that one lies behind the other.
  struct Said {
    std::uint64_t terms = 0;  // of a step: their hash
    std::uint32_t group = 0;
    RankCall::Kind kind = RankCall::Kind::kStep;
    std::uint8_t join = 0;
    std::uint8_t wide = 0;
    std::uint8_t unused = 0;
  };
  // The first number in which a rank differs from rank 0.
  struct Difference {
    std::uint32_t rank = 0;
    std::size_t index = 0;
    std::uint64_t value = 0, of_rank_0 = 0;
  };

  static std::size_t largest_message(const partition::Registry& registry) noexcept;
  RankAgreement agreement(const RankCall& mine);
  std::string text_of(RankCall::Kind kind, GroupId group) const;
  [[noreturn]] void refuse(std::uint32_t rank);
  [[noreturn]] void refuse_terms(const StepTerms& mine);
  std::uint64_t terms_hash(const StepTerms& terms) const;
  std::uint64_t update_hash(ParameterId id) const;
  // `mine` has as many numbers on every rank.
  std::optional<Difference> compare(std::string_view what, std::span<const std::uint64_t> mine);
  std::string difference_in_terms(const StepTerms& mine);
  std::string difference_in_counts(std::size_t setting_lines);
  std::string difference_in_groups();
  std::string difference_in_settings(const std::vector<std::string>& lines);

  Collective& collective_;
  const partition::Registry& registry_;
  std::mutex mutex_;
  std::uint64_t sequence_ = 1;  // 0 was find_local_ranks()
  const Said& said(std::uint32_t rank) const noexcept;
  // Of this rank; of all ranks. A Said, and a bit for each parameter of the open group.
  std::vector<std::byte> message_, messages_;
};
}  // namespace headrace::ranks
