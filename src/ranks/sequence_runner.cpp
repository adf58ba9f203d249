// SPDX-License-Identifier: Apache-2.0
#include "ranks/sequence_runner.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "async/thread.hpp"

namespace headrace::ranks {
namespace {
constexpr std::uint32_t kNoSlot = ~0u;  // of a gather that the trainer joined itself

class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};
}  // namespace

SequenceRunner::SequenceRunner(const Parts& parts)
    : p_(parts), stream_(p_.device.create_stream()) {}

void SequenceRunner::start(std::uint32_t buckets) {
  buckets_ = buckets;
  if (p_.follows) thread_ = async::start_thread("headrace-ahead", [this] { run(); });
}

SequenceRunner::~SequenceRunner() {
  stop();
  try {
    p_.device.synchronize(stream_);
  } catch (const std::exception&) {
    // A device that failed has nothing left to do.
  }
  p_.device.destroy_stream(stream_);
}

void SequenceRunner::stop(std::chrono::milliseconds patience, std::string_view why) noexcept {
  if (thread_.joinable()) {
    Lock lock(mutex_);
    stop_ = leaving_ = true;
    changed_.notify_all();
    const bool in_time = changed_.wait_for(lock, patience, [this] { return thread_ended_; });
    lock.unlock();
    if (!in_time) p_.ranks.collective().abort(why);
    thread_.join();
  }
  if (slots_ != nullptr) give_back_unused();
}

// ---- the trainer's ----

bool SequenceRunner::begins_with(GroupId group) const noexcept {
  return p_.follows && !sequence_.empty() && sequence_.gathers().front() == group;
}

void SequenceRunner::begin(std::uint32_t joined) {
  state_ = State::kFollowing;
  follows_step_ = true;
  leaving_ = stop_;
  next_ = to_take_ = joined;
  none_there_ = false;
  slots_of_.assign(joined, kNoSlot);
  take_ahead();
  changed_.notify_all();
}

template <class Done>
void SequenceRunner::wait(Lock& lock, WaitedFor& what, const Done& done) {
  const WaitedFor::Span span(what);
  wait(lock, done);
}

template <class Done>
void SequenceRunner::wait(Lock& lock, const Done& done) {
  const std::function<bool()> until = std::ref(done);
  waits_until_ = &until;
  changed_.notify_all();
  changed_.wait(lock, done);
  waits_until_ = nullptr;
}

bool SequenceRunner::trainer_waits() const { return waits_until_ != nullptr && !(*waits_until_)(); }

void SequenceRunner::throw_if_failed() const {
  if (state_ == State::kFailed) std::rethrow_exception(error_);
}

void SequenceRunner::enter(std::uint32_t position) {
  p_.bucket.leave_position(position_);
  position_ = position;
  take_ahead();
  changed_.notify_all();
}

void SequenceRunner::note_gather(GroupId group) {
  if (p_.follows) p_.record.note_gather(group);
}

// The trainer has what gather number position_ is for.
std::uint32_t SequenceRunner::pass_gather(GroupId group) {
  note_gather(group);
  return slots_of_[position_ - 1];
}

void SequenceRunner::give_back_unused() noexcept {
  while (slots_of_.size() > position_) {
    slots_->give_back(slots_of_.back(), stream_);
    slots_of_.pop_back();
  }
}

// Behind the last entry there is nothing to leave: the next meeting says that a step it is not.
void SequenceRunner::leave(Lock& lock, WaitedFor& what) {
  if (!runs()) return;
  const bool at_end = !sequence_.whole() && position_ == sequence_.gathers().size();
  leaving_ = leaving_ || !at_end;
  wait(lock, what, [&] { return state_ != State::kFollowing; });
  if (state_ == State::kEnded && !sequence_.whole()) state_ = State::kLeft;
}

bool SequenceRunner::was_joined(GroupId group) const {
  return slots_of_.size() > position_ && sequence_.gathers()[position_] == group;
}

// Waits first for this rank's own shard, which is not counted as a wait for other ranks, as in a
// gather that meets them; then for the join. False: the order ended before it.
bool SequenceRunner::wait_for_join(Lock& lock, std::uint32_t number) {
  wait(lock,
       [&] { return slots_of_.size() + taken_.size() > number || state_ != State::kFollowing; });
  wait(lock, p_.waits.gather,
       [&] { return slots_of_.size() > number || state_ != State::kFollowing; });
  return slots_of_.size() > number;
}

std::optional<std::uint32_t> SequenceRunner::begin_gather(GroupId group) {
  Lock lock(mutex_);
  if (state_ == State::kFailed && was_joined(group)) {  // what failed came behind it
    enter(position_ + 1);
    return pass_gather(group);
  }
  throw_if_failed();
  if (state_ == State::kIdle && position_ == 0 && begins_with(group) && !p_.bucket.is_open())
    begin(0);
  const std::vector<GroupId>& gathers = sequence_.gathers();
  const std::uint32_t number = position_;
  const bool expected = number < gathers.size() && gathers[number] == group;
  if (state_ == State::kFollowing && expected) {
    enter(number + 1);
    if (wait_for_join(lock, number)) return pass_gather(group);
    position_ = number;  // it is yet to be made
  }
  leave(lock, p_.waits.gather);
  throw_if_failed();
  if (slots_of_.size() > number && expected) {
    enter(number + 1);
    return pass_gather(group);
  }
  give_back_unused();
  return std::nullopt;
}

RankCall SequenceRunner::gather_call(GroupId group, Join join, bool clean) const {
  const Lock lock(mutex_);
  return {.kind = RankCall::Kind::kGather,
          .group = group,
          .position = position_,
          .joins = {join},
          .clean = clean && !runs() && begins_with(group)};
}

void SequenceRunner::end_gather(GroupId group, bool all_clean) {
  const Lock lock(mutex_);
  enter(position_ + 1);
  if (all_clean) {
    p_.record.clear();
    position_ = 1;
    begin(1);
  }
  note_gather(group);
}

// Null: not now, or no more.
HeldGradients* SequenceRunner::memory_for(Lock& lock, const Reduction& of) {
  HeldGradients* free = p_.bucket.take_free(of);
  if (free == nullptr && p_.bucket.frees_some(position_)) {
    wait(lock, p_.waits.gradient,
         [&] { return state_ != State::kFollowing || p_.bucket.has_free(); });
    if (state_ == State::kFollowing) free = p_.bucket.take_free(of);
  }
  return free;
}

bool SequenceRunner::take_gradient(ParameterId id, GroupId group, const void* gradient, DType dtype,
                                   Stream stream) {
  Lock lock(mutex_);
  throw_if_failed();
  if (state_ == State::kFollowing) {
    const Reduction of{position_, group};
    HeldGradients* mine = p_.bucket.held(of);
    if (mine == nullptr && sequence_.reduces(of)) mine = memory_for(lock, of);
    if (mine != nullptr && p_.bucket.takes(*mine, id, dtype)) {
      lock.unlock();
      p_.bucket.hold(*mine, id, gradient, dtype, stream);
      return true;
    }
  }
  leave(lock, p_.waits.gradient);
  throw_if_failed();
  return false;
}

void SequenceRunner::leave() {
  Lock lock(mutex_);
  leave(lock, p_.waits.others);
  throw_if_failed();
}

void SequenceRunner::end_gathers() noexcept {
  Lock lock(mutex_);
  if (state_ == State::kFollowing && position_ < sequence_.gathers().size())
    leave(lock, p_.waits.others);
  if (state_ != State::kFollowing && slots_ != nullptr) give_back_unused();
}

void SequenceRunner::begin_step() {
  Lock lock(mutex_);
  throw_if_failed();
  if (!runs()) return;
  if (sequence_.whole() && position_ == sequence_.gathers().size()) {
    enter(position_);
    in_step_ = true;
    wait(lock, p_.waits.step, [&] { return state_ != State::kFollowing; });
  } else {
    leave(lock, p_.waits.step);
  }
  throw_if_failed();
}

void SequenceRunner::met(bool in_step) noexcept {
  const Lock lock(mutex_);
  if (state_ != State::kEnded) return;
  state_ = State::kLeft;
  if (in_step) return;
  follows_step_ = false;
  ++departures_;
}

void SequenceRunner::end_step(bool counts) {
  const Lock lock(mutex_);
  give_back_unused();
  if (counts && p_.follows) {
    // If the order is of a part of a step, the rest of the step did not follow it.
    if (follows_step_ && sequence_.whole()) ++followed_;
    steps_apart_ = follows_step_ ? 0 : steps_apart_ + 1;
    // One step that differed may be the only one.
    const bool anew = follows_step_ ? !sequence_.whole() : sequence_.empty() || steps_apart_ > 1;
    if (anew && p_.record.has_all) {
      sequence_.make(p_.record, p_.ahead, buckets_);
      slots_of_.reserve(sequence_.gathers().size());
      taken_.reserve(std::min<std::size_t>(p_.ahead, sequence_.gathers().size()) + 1);
      steps_apart_ = 0;
    }
  }
  p_.record.clear();
  slots_of_.clear();
  position_ = 0;
  in_step_ = follows_step_ = false;
  if (state_ != State::kFailed) state_ = State::kIdle;
}

void SequenceRunner::note_release() noexcept {
  const Lock lock(mutex_);
  ++releases_;
  take_ahead();
  changed_.notify_all();
}

void SequenceRunner::add_stats(Stats& stats) const noexcept {
  const Lock lock(mutex_);
  stats.gathers_joined_ahead = joined_ahead_;
  stats.steps_followed = followed_;
  stats.rank_departures = departures_;
}

// ---- any thread's ----

// Asks for the slot of the next join that has none, if the trainer is near enough.
void SequenceRunner::take_ahead() {
  if (state_ != State::kFollowing || leaving_ || taking_) return;
  if (none_there_ && asked_at_ == releases_) return;
  const std::vector<Sequence::Entry>& entries = sequence_.entries();
  while (to_take_ < entries.size() && entries[to_take_].kind != Sequence::Entry::Kind::kJoin)
    ++to_take_;
  if (to_take_ == entries.size() || position_ + p_.ahead <= entries[to_take_].at) return;
  taking_ = true;
  asked_at_ = releases_;
  slots_->start_to_take(entries[to_take_].group, *this);
}

void SequenceRunner::taken(std::optional<std::uint32_t> slot) noexcept {
  const Lock lock(mutex_);
  taking_ = false;
  none_there_ = !slot.has_value();
  if (slot) {
    taken_.push_back(*slot);
    ++to_take_;
  }
  take_ahead();
  changed_.notify_all();
}

// ---- the thread's ----

void SequenceRunner::run() noexcept {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || state_ == State::kFollowing; });
    if (state_ == State::kFollowing) follow(lock);
    if (!stop_) continue;
    thread_ended_ = true;
    changed_.notify_all();
    return;
  }
}

void SequenceRunner::follow(Lock& lock) {
  while (state_ == State::kFollowing && next_ < sequence_.entries().size()) {
    try {
      const RankAgreement agreed = agree(lock, next_call(lock));
      if (agreed.left) {
        end_order(lock, nullptr);
        break;
      }
      for (std::size_t e = 0; e < agreed.entries; ++e) carry_out(lock, agreed.joins[e]);
    } catch (...) {
      end_order(lock, std::current_exception());
    }
  }
  if (state_ == State::kFollowing) state_ = State::kEnded;
  changed_.notify_all();
}

// Of the entry, and of what may follow it at once; or that this rank leaves.
RankCall SequenceRunner::next_call(Lock& lock) {
  const Sequence::Entry& entry = sequence_.entries()[next_];
  const bool joins = entry.kind == Sequence::Entry::Kind::kJoin;
  if (!(joins ? prepare_join(lock) : prepare_reduction(lock, entry)))
    return {.kind = RankCall::Kind::kLeave};
  RankCall say{.kind = joins ? RankCall::Kind::kJoinAhead : RankCall::Kind::kReduce,
               .group = entry.group,
               .position = entry.at,
               .entries = ready(),
               .order = sequence_.hash(next_, RankCall::kMostEntries)};
  for (std::size_t e = joins ? 0 : 1, slot = 0; e < say.entries; ++e, ++slot)
    say.joins[e] = slots_->lacks(taken_[slot]);
  return say;
}

bool SequenceRunner::prepare_join(Lock& lock) {
  changed_.wait(lock, [&] { return leaving_ || !taken_.empty() || (!taking_ && trainer_waits()); });
  return !leaving_ && !taken_.empty();
}

bool SequenceRunner::prepare_reduction(Lock& lock, const Sequence::Entry& entry) {
  const auto complete = [&] { return in_step_ || position_ > entry.at; };
  changed_.wait(lock, [&] { return leaving_ || complete() || trainer_waits(); });
  reduced_ = p_.bucket.held({entry.at, entry.group});
  return !leaving_ && complete();
}

// How many entries can follow each other: behind the next one, joins that have their slots. Not two
// of one group: the second lacks what the first brings.
std::uint8_t SequenceRunner::ready() const {
  const auto rest = std::span(sequence_.entries()).subspan(next_);
  std::size_t slots = rest[0].kind == Sequence::Entry::Kind::kJoin ? 1 : 0;
  std::size_t count = 1;
  for (; count < std::min(rest.size(), RankCall::kMostEntries) && slots < taken_.size(); ++count) {
    const Sequence::Entry& entry = rest[count];
    if (entry.kind != Sequence::Entry::Kind::kJoin) break;
    const auto of_group = [&](const Sequence::Entry& other) { return other.group == entry.group; };
    if (std::ranges::any_of(rest.first(count), of_group)) break;
    ++slots;
  }
  return static_cast<std::uint8_t>(count);
}

RankAgreement SequenceRunner::agree(Lock& lock, const RankCall& say) {
  const Sequence::Entry& entry = sequence_.entries()[next_];
  const HeldGradients* const mine = say.kind == RankCall::Kind::kReduce ? reduced_ : nullptr;
  const Unlocked unlocked(lock);
  const base::TraceSpan span(p_.trace, TraceLane::kRanks, "agree", entry.group.index);
  // As many bytes on a rank that leaves.
  const auto present = entry.kind == Sequence::Entry::Kind::kReduce
                           ? p_.bucket.present(entry.group, mine)
                           : std::span<const std::uint8_t>{};
  return p_.ranks.agree(say, present);
}

// The next entry, on which the ranks have agreed.
void SequenceRunner::carry_out(Lock& lock, Join join) {
  const Sequence::Entry entry = sequence_.entries()[next_];
  if (entry.kind == Sequence::Entry::Kind::kReduce) {
    const Unlocked unlocked(lock);
    const base::TraceSpan span(p_.trace, TraceLane::kRanks, "reduce", entry.group.index);
    p_.bucket.reduce({entry.at, entry.group}, reduced_, stream_);
  } else {
    const std::uint32_t slot = taken_.front();
    const Unlocked unlocked(lock);
    const base::TraceSpan span(p_.trace, TraceLane::kRanks, "join", entry.group.index);
    slots_->join(slot, entry.group, join, stream_);
  }
  note_done(entry);
}

void SequenceRunner::note_done(const Sequence::Entry& entry) {
  ++next_;
  if (entry.kind == Sequence::Entry::Kind::kJoin) {
    slots_of_.push_back(taken_.front());
    taken_.erase(taken_.begin());
    if (position_ <= entry.at) ++joined_ahead_;
  } else {
    if (reduced_ != nullptr) reduced_->used = false;
    reduced_ = nullptr;
    p_.record.reductions.push_back({entry.at, entry.group});
  }
  changed_.notify_all();
}

// First the slots come back: the trainer's own gathers may need them.
void SequenceRunner::end_order(Lock& lock, const std::exception_ptr& error) {
  leaving_ = true;
  changed_.wait(lock, [&] { return !taking_; });
  for (const std::uint32_t slot : taken_) slots_->give_back(slot, stream_);
  taken_.clear();
  reduced_ = nullptr;
  state_ = error ? State::kFailed : State::kLeft;
  error_ = error;
  follows_step_ = false;
  ++departures_;
}
}  // namespace headrace::ranks
