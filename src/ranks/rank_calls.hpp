// SPDX-License-Identifier: Apache-2.0
// rank_calls.hpp: how the ranks of an engine come to make the same collective calls.
//
// All ranks call gather, step and discard_gradients alike, but gradients arrive as they will: a
// parameter may have none on some rank. So before anything is joined or reduced, every rank says
// what it is about to do. One that needs the gradient bucket for another group goes first: the
// others reduce and open the bucket with it, and say again what they want.
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

// What one rank is about to do.
struct RankCall {
  enum class Kind : std::uint8_t { kOpenBucket, kGather, kStep, kDiscard };
  Kind kind = Kind::kStep;
  GroupId group = {};    // of kOpenBucket and kGather
  bool join = false;     // of kGather: the other ranks' shards are not here yet
  StepTerms terms = {};  // of kStep
};

// What all ranks do next. Without `open` all of them are at the same call.
struct RankAgreement {
  std::optional<GroupId> open;  // reduce what is in the bucket, then open it for this group
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

  // Collective. Throws kPeerLost naming both ranks' calls where they cannot go together, or what of
  // a step's terms differs; no call is carried out from then on.
  RankAgreement agree(const RankCall& mine);
  // Collective: throws kPeerLost naming what a rank registered or set otherwise than rank 0.
  void compare_registration(const Settings& settings);

  static std::uint64_t bookkeeping_bytes(std::uint32_t world_size) noexcept;

 private:
  std::string text_of(const RankCall& call) const;
  [[noreturn]] void refuse(std::uint32_t rank, const RankCall& other, const RankCall& first);
  double print_of(const StepTerms& terms) const;
  [[noreturn]] void refuse_terms(const StepTerms& mine);
  std::string difference_in_terms(const StepTerms& mine);
  // values[r * mine.size() + i]: rank r's mine[i].
  void exchange(std::string_view what, std::span<const double> mine, std::vector<double>& values);
  std::string difference_in_counts(std::vector<double>& values, std::size_t setting_lines);
  std::string difference_in_groups(std::vector<double>& values);
  std::string difference_in_settings(std::vector<double>& values,
                                     const std::vector<std::string>& lines);

  Collective& collective_;
  const partition::Registry& registry_;
  std::mutex mutex_;
  std::uint64_t sequence_ = 0;
  std::vector<double> calls_;  // of every rank
};
}  // namespace headrace::ranks
