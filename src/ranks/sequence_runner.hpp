// SPDX-License-Identifier: Apache-2.0
// sequence_runner.hpp: lets the ranks join and reduce ahead of their trainers' calls, in the order
// of the step before (sequence.hpp).
//
// A thread, "headrace-ahead", carries out one entry after the other, as soon as this rank has what
// the entry needs: a gather slot with its shard, or all gradients of a position. The slots of the
// next joins are taken meanwhile. Before an entry, the ranks tell each other what they are about to
// do, as trainers do (rank_calls.hpp), and how many of the joins behind it have their slots: these
// follow without another message. The trainer only waits for the entry that its call needs, and for
// the last one in its step. Then the ranks meet once, with their terms and norms.
//
//   rank 0  reduces g1 | "join of g0, and one more" | joins g0, g1 | "reduction of g0" ...
//   rank 1  reduces g1 | "join of g0, and one more" | joins g0, g1 | "reduction of g0" ...
//           takes slots for g0 and g1                 takes one for g2, if the trainer is near
//
//   idle --first gather of the sequence--> following --last entry--> ended --step--> idle
//                                             |                        |
//                                             +--a rank leaves---------+--> left --step--> idle
//                                                                            |
//                                             following <--a new beginning---+
//
// A trainer that makes another call than in the step before leaves the order: a skipped layer, an
// evaluation, a gradient more. Its thread says so in place of the next entry, so all ranks leave
// behind the same entry, and meet for each call until the step ends. What was joined is not joined
// again, and what is held is reduced first, so the result is the same to the last bit. If all ranks
// come to the first gather again before any has a gradient, as between two passes of an evaluation,
// the order begins anew there.
//
// The thread never waits for a trainer that waits for it: it leaves then. So a trainer that holds
// all gather slots gets the same error from its own call as without a sequence.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/trace_recorder.hpp"
#include "headrace/stats.hpp"
#include "ranks/gradient_bucket.hpp"
#include "ranks/rank_waits.hpp"
#include "ranks/sequence.hpp"

namespace headrace::ranks {
// Where the thread gets gather slots from. The thread's calls, unless noted.
class JoinSlots {
 public:
  class Taker {
   public:
    virtual ~Taker() = default;
    // No value: no slot could be had, for whatever cause. The trainer's own gather finds that
    // again, and throws it. Comes from the conductor.
    virtual void taken(std::optional<std::uint32_t> slot) noexcept = 0;
  };
  virtual ~JoinSlots() = default;
  // Leases a slot with this rank's shard in place, for `taker`, and returns at once. The slot may
  // have to wait for the drive and for updates, never for the trainer. One at a time; any thread.
  virtual void start_to_take(GroupId group, Taker& taker) noexcept = 0;
  virtual Join lacks(std::uint32_t slot) const noexcept = 0;
  // After the ranks have agreed. Collective if some rank lacks something; this one may have joined
  // it before.
  virtual void join(std::uint32_t slot, GroupId group, Join what, Stream stream) = 0;
  // Any thread. Work on `stream` may still write to the slot.
  virtual void give_back(std::uint32_t slot, Stream stream) noexcept = 0;
};

class SequenceRunner final : private JoinSlots::Taker {
 public:
  struct Parts {
    RankCalls& ranks;
    Device& device;
    GradientBucket& bucket;
    StepRecord& record;
    RankWaits& waits;
    bool follows = false;     // else every call meets the others
    std::uint32_t ahead = 0;  // gathers
    base::TraceRecorder* trace = nullptr;
  };
  explicit SequenceRunner(const Parts& parts);
  ~SequenceRunner() override;
  SequenceRunner(const SequenceRunner&) = delete;
  SequenceRunner& operator=(const SequenceRunner&) = delete;

  // The rest is for the trainer, unless noted. Calls that wait throw what ended the thread.

  void use_slots(JoinSlots& slots) noexcept { slots_ = &slots; }
  // Before the first call. `buckets`: the least that any rank has, so the same on all.
  void start(std::uint32_t buckets);

  // A gather begins. Returns the slot of the join that was made ahead for it, leased. No value: the
  // caller meets the others in gather_call(), joins, and then says that it has.
  std::optional<std::uint32_t> begin_gather(GroupId group);
  RankCall gather_call(GroupId group, Join join, bool clean) const;
  void end_gather(GroupId group, bool all_clean);

  // Takes a gradient. False: the caller adds it to the bucket, at position().
  bool take_gradient(ParameterId id, GroupId group, const void* gradient, DType dtype,
                     Stream stream);
  std::uint32_t position() const noexcept { return position_; }

  // The trainer makes a collective call other than gather and step.
  void leave();
  // The trainer has released all that it gathered, and makes a call that may change weights. All
  // ranks do so at the same position.
  void end_gathers() noexcept;
  // The step begins: waits for the last entry.
  void begin_step();
  // Whether all entries were carried out. Then the ranks meet once more, in their steps or in what
  // a rank calls instead, and all of them attach their norms to that. Says so after the meeting.
  bool ended() const noexcept { return state_ == State::kEnded; }
  void met(bool in_step) noexcept;
  // The step is over. `counts`: the next one may follow its record.
  void end_step(bool counts);

  // Any thread: a lease has ended.
  void note_release() noexcept;
  // Ends the thread. While it follows an order, it first tells the others, at their next call or
  // close, so that the collective can be used again. If they have not come within `patience`, ends
  // the collective instead, and tells them `why`. May be repeated.
  void stop(std::chrono::milliseconds patience = kPatience,
            std::string_view why = kClosed) noexcept;
  static constexpr std::chrono::milliseconds kPatience{3000};
  static constexpr std::string_view kClosed =
      "it closed its engine in the middle of a step or an evaluation";

  void add_stats(Stats& stats) const noexcept;  // any thread

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class State { kIdle, kFollowing, kEnded, kLeft, kFailed };

  // ---- the trainer's ----
  bool was_joined(GroupId group) const;
  bool runs() const noexcept { return state_ == State::kFollowing || state_ == State::kEnded; }
  bool begins_with(GroupId group) const noexcept;
  void begin(std::uint32_t joined);
  template <class Done>
  void wait(Lock& lock, const Done& done);
  template <class Done>
  void wait(Lock& lock, WaitedFor& what, const Done& done);
  bool trainer_waits() const;
  bool wait_for_join(Lock& lock, std::uint32_t number);
  void leave(Lock& lock, WaitedFor& what);
  void enter(std::uint32_t position);
  std::uint32_t pass_gather(GroupId group);
  void note_gather(GroupId group);
  void give_back_unused() noexcept;
  void throw_if_failed() const;
  HeldGradients* memory_for(Lock& lock, const Reduction& of);

  // ---- any thread's, with the lock ----
  void take_ahead();
  void taken(std::optional<std::uint32_t> slot) noexcept override;  // without it

  // ---- the thread's ----
  void run() noexcept;
  void follow(Lock& lock);
  RankCall next_call(Lock& lock);
  RankAgreement agree(Lock& lock, const RankCall& say);
  bool prepare_join(Lock& lock);
  bool prepare_reduction(Lock& lock, const Sequence::Entry& entry);
  std::uint8_t ready() const;
  void carry_out(Lock& lock, Join join);
  void note_done(const Sequence::Entry& entry);
  void end_order(Lock& lock, const std::exception_ptr& error);

  const Parts p_;
  JoinSlots* slots_ = nullptr;
  std::uint32_t buckets_ = 1;
  const Stream stream_;
  Sequence sequence_;

  mutable std::mutex mutex_;  // protects the rest
  std::condition_variable changed_;
  std::atomic<State> state_{State::kIdle};
  std::atomic<std::uint32_t> position_{0};  // gathers of the trainer in this step
  bool in_step_ = false;                    // no gather follows
  bool leaving_ = false, stop_ = false, thread_ended_ = false;
  // What the trainer's thread waits for from this one; there is one such trainer at a time.
  const std::function<bool()>* waits_until_ = nullptr;
  std::uint64_t releases_ = 0;
  std::size_t next_ = 0;                 // entry
  std::vector<std::uint32_t> slots_of_;  // per joined gather; unused from position_ on
  HeldGradients* reduced_ = nullptr;     // of the entry in progress
  // The slots of the next joins, in their order; the entry behind those; whether its slot has been
  // asked for, at how many releases, and that there was none then.
  std::vector<std::uint32_t> taken_;
  std::size_t to_take_ = 0;
  bool taking_ = false, none_there_ = false;
  std::uint64_t asked_at_ = 0;
  bool follows_step_ = false;      // no rank has left the order in this step
  std::uint32_t steps_apart_ = 0;  // in a row that did not follow
  std::exception_ptr error_;
  std::uint64_t joined_ahead_ = 0, followed_ = 0, departures_ = 0;
  std::thread thread_;  // none if no order is followed
};
}  // namespace headrace::ranks
