// SPDX-License-Identifier: Apache-2.0
// gradients.hpp: takes the gradients of a step as they arrive, and ends their sums.
//
// With one rank, an arriving gradient is added to its sum directly (gradient_sums.hpp). With
// several, a bucket collects them until the ranks reduce them (gradient_bucket.hpp): in the
// trainer's calls, or ahead of them (sequence_runner.hpp).
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "ranks/gradient_bucket.hpp"
#include "ranks/gradient_sums.hpp"
#include "ranks/sequence_runner.hpp"

namespace headrace::ranks {
class Gradients {
 public:
  // How the ranks meet, if there are several.
  struct Order {
    bool follows = false;     // that of the step before
    std::uint32_t ahead = 0;  // gathers
  };
  // Throws kOutOfBudget if the device has no room for the bucket.
  Gradients(const GradientParts& parts, Order order, base::TraceRecorder* trace);
  ~Gradients();
  // Collective, in freeze: the ranks agree on what all of them have room for.
  void begin();

  // For trainer threads, several at once. Throws kWrongState for an undeclared second gradient.
  void add(ParameterId id, const void* gradient, DType dtype, Stream stream);
  // The same, of a group that lends them, with one rank.
  void lend(ParameterId id, const void* gradient, DType dtype);
  // Trainer thread, collective: reduces what is in the bucket, waits for everything queued, and
  // agrees with the ranks on the parameters that have a gradient.
  GradientTotals finish(const StepTerms& terms);
  // Whether several ranks have agreed on the next step, which failed on this rank and will be
  // repeated here without another comparison. Trainer thread.
  bool agreed() const noexcept { return bucket_ && totals_.has_value(); }
  // The same, and the others have made the step: only this rank has still to make it.
  bool lacks_agreed_step() const noexcept { return agreed() && totals_->non_finite == 0; }
  // Of what one parameter has received since the last step. Trainer thread; throws kUnsupported
  // with several ranks.
  GradientPiece statistics(ParameterId id);
  // Whether a gradient has arrived since the last step, or a step failed that may be repeated. With
  // several ranks, after leave_order(): also whether those of others are summed here.
  bool any() const;
  // Every rank refuses the step that they have agreed on: the next one is agreed on anew.
  void forget_agreement() noexcept { totals_.reset(); }
  // Trainer thread. With several ranks: until the step ends, nothing is joined or reduced ahead. In
  // the middle of a step or an evaluation, waits for the others' next call. Throws what ended the
  // runner's thread.
  void leave_order();
  // Trainer thread. discard() is collective: it also discards what another rank still reduces.
  // clear() follows a step.
  void discard();
  void clear();

  // Trainer thread, collective: with several ranks, the ranks begin a call of several parts
  // together. While the result lives, this rank begins no other collective call.
  std::unique_lock<std::mutex> begin_together(RankCall::Kind kind, std::uint32_t bytes = 0);
  // Trainer thread, collective: with several ranks, returns when all of them are at this call.
  void meet_alike(RankCall::Kind kind);

  const GradientSums& sums() const noexcept { return sums_; }  // whole after finish()
  // Null with one rank, as the next.
  GradientBucket* bucket() noexcept { return bucket_ ? &*bucket_ : nullptr; }
  SequenceRunner* runner() noexcept { return runner_ ? &*runner_ : nullptr; }

  // With several ranks. The caller holds the ranks' lock, in which this rank begins a gather. A
  // slot: joined ahead, and leased. No value: the caller fills one, then has the ranks meet for it.
  std::optional<std::uint32_t> begin_gather(GroupId group) { return runner_->begin_gather(group); }
  RankAgreement meet_for_gather(GroupId group, Join join);
  // After the join of that gather is queued: from here on, the runner may make calls.
  void end_gather(GroupId group, const RankAgreement& agreed) {
    runner_->end_gather(group, agreed.clean);
  }

  RankWaits& waits() noexcept { return waits_; }
  void add_stats(Stats& stats) const noexcept;

  // The heap memory of its tables, for the plan.
  // `in_nodes`: the ranks of a node add their gradients to each other first.
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition, bool in_nodes);

 private:
  RankAgreement meet(const RankCall& call);
  void meet_for_others(const RankCall& call);
  void wait_for_arrivals();
  void forget(bool stepped);
  bool any_arrived() const;
  void count_arrival(ParameterId id, Stream stream);
  void remember_stream(Stream stream);
  void refuse_undeclared_repeat(ParameterId id) const;
  void refuse_other_options(const StepOptions& options) const;
  void refuse_second_loan(ParameterId id) const;

  const GradientParts p_;
  GradientSums sums_{p_};
  StepRecord record_;
  RankWaits waits_;
  std::optional<GradientBucket> bucket_;  // with several ranks, as the next
  std::optional<SequenceRunner> runner_;
  std::vector<std::uint32_t> arrivals_;  // per parameter, since the last step
  std::vector<Stream> last_stream_;      // per parameter: the stream of its last arrival
  // Set until a gradient arrives: a repeated step does not ask the other ranks again, since they
  // may be past it.
  std::optional<GradientTotals> totals_;
  StepOptions agreed_options_;   // of the step that totals_ is of
  std::vector<Stream> streams_;  // the streams of the arrivals
  std::mutex mutex_;
  std::array<std::mutex, 16> stripes_;  // by parameter, held while one of its gradients is read
};
}  // namespace headrace::ranks
