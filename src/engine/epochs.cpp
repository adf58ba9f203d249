// SPDX-License-Identifier: Apache-2.0
#include "engine/epochs.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "headrace/error.hpp"

namespace headrace::engine {
namespace {
// Tiles that are written back, or read at the start, at once.
constexpr std::uint32_t kTilesAtOnce = 4;

template <class EachTile>
async::Task<> take_tiles(EachTile& each, std::uint32_t tiles, std::uint32_t& next,
                         const async::TaskGroup& group) {
  while (next < tiles && !group.cancelled()) co_await each(next++);
}

// Awaits each(tile) for all tiles of the record, a few at a time.
template <class EachTile>
async::Task<> for_tiles(const swap::CommitRecord& record, EachTile each) {
  async::TaskGroup workers;
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < kTilesAtOnce; ++i)
    workers.spawn(take_tiles(each, record.head().counts.tiles, next, workers));
  co_await workers.join();
}
}  // namespace

Epochs::Epochs(const Parts& parts, swap::CommitRecord record, bool resumed, std::uint64_t opening)
    : p_(parts), record_(record), opening_(opening) {
  given_state_.reserve(p_.settings.trainer_state_bytes);
  bound_state_.reserve(p_.settings.trainer_state_bytes);
  if (!resumed) return;
  const swap::CommitHead& head = record_.head();
  const auto state = record_.trainer_state().first(head.trainer_state_used);
  resumed_ = Resumed{head.steps, head.skipped, {state.begin(), state.end()}};
  given_state_.assign(state.begin(), state.end());
  bound_state_ = given_state_;
}

std::uint64_t Epochs::bookkeeping_bytes(const Settings& settings) noexcept {
  return settings.durable_every == 0
             ? 0
             : sizeof(Epochs) + sizeof(swap::CommitRing) + 3 * settings.trainer_state_bytes;
}

// ---- at the start ----

void Epochs::restore_hyperparameters(partition::Registry& registry) const {
  if (!resumed_) return;
  for (std::uint32_t s = 0; s < registry.hyperparameter_sets(); ++s)
    registry.set_hyperparameters({s}, swap::unpacked(record_.hyperparameters()[s].present));
}

void Epochs::read(bool verify_all) {
  p_.calls.run([&] {
    return for_tiles(
        record_, [&, verify_all](std::uint32_t tile) { return restore_tile(tile, verify_all); });
  });
  const swap::CommitHead& head = record_.head();
  std::ranges::copy(record_.step_counts(), p_.counts.steps.begin());
  p_.counts.step = head.steps;
  p_.counts.skipped = head.skipped;
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) {
    p_.states.begin_load({g});
    p_.states.end_load({g});
  }
}

// Before the first overwrite: no later run may take this one's generations for its own, and the
// bytes that prove this epoch are synced ones. All ranks have it, as this or an earlier record.
//
// What was read need not be on the drives: a kill may have come between a record's write and its
// sync. Three such kills in a row would leave no synced record in the ring.
void Epochs::take_over() {
  p_.calls.run([&]() -> async::Task<> {
    co_await p_.swap.sync();
    ++record_.head().incarnation;
    name_next_root();
    record_.seal();
    co_await p_.ring.write(record_);
  });
  written_step_.store(record_.head().steps);
  note_met();
}

void Epochs::name_next_root() {
  swap::CommitHead& head = record_.head();
  ++head.root;
  head.parent = std::exchange(head.writer, opening_);
}

async::Task<> Epochs::restore_tile(std::uint32_t tile, bool verify_all) {
  co_await p_.tiles.read_resident(tile);
  if (!p_.tiles.needs_slot(tile)) co_return;
  const pinned::SlotLease slot = co_await p_.tiles.slots().acquire();
  if (!verify_all) {
    co_await p_.tiles.check_header(tile, slot.bytes());
    co_return;
  }
  co_await p_.tiles.read_verified(tile, p_.tiles.view(tile, slot.bytes()), tiles::kWholeTile,
                                  swap::Priority::kDemand);
}

// ---- commits ----

void Epochs::set_trainer_state(std::span<const std::byte> state) {
  if (state.size() > p_.settings.trainer_state_bytes) {
    throw Error(Code::kInvalidArgument,
                "set_trainer_state: " + std::to_string(state.size()) + " bytes, and at most " +
                    std::to_string(p_.settings.trainer_state_bytes) +
                    " fit; the state set before stands. Set headrace.trainer_state_bytes before "
                    "the store is made.");
  }
  given_state_.assign(state.begin(), state.end());
  has_trainer_state_ = true;
}

void Epochs::settle() {
  p_.calls.run([&] { return committing_.join(); });
  if (p_.alone) note_met();
}

void Epochs::note_met(bool held) noexcept {
  held_ = held;
  everywhere_ = true;
  durable_step_.store(written_step_.load());
}

void Epochs::settle_for_load() {
  settle();
  if (everywhere_) return;
  p_.gradients.meet_alike(ranks::RankCall::Kind::kLoad);
  note_met();
}

void Epochs::note_step() {
  bound_state_ = given_state_;
  if (++steps_since_commit_ < p_.plan.commit_every || held_) return;
  capture();
  begin();
}

bool is_of_a_drive(const Error& error) noexcept {
  return error.code() == Code::kIo || error.code() == Code::kNoSpace ||
         error.code() == Code::kCorrupt;
}

std::exception_ptr with_way_on(const std::exception_ptr& error, std::string_view why,
                               std::uint64_t durable_step) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    if (!is_of_a_drive(known)) return error;
    return std::make_exception_ptr(
        Error(known.code(),
              std::string(known.what()) + "; the step cannot be undone, since " + std::string(why) +
                  "; a new engine continues after step " + std::to_string(durable_step) +
                  ", which the store has",
              known.sys_errno()));
  } catch (const std::exception&) {
    return error;
  }
}

bool Epochs::at_a_commit() const noexcept { return p_.places.as_committed(); }

// The slots of the commit are whole: the update wrote to the others.
void Epochs::go_back() {
  p_.calls.run([&]() -> async::Task<> {
    p_.places.go_back(record_);
    co_await for_tiles(record_, [&](std::uint32_t tile) -> async::Task<> {
      if (!p_.tiles.is_frozen(tile)) co_await p_.tiles.read_resident(tile);
    });
    p_.pending.forget();
  });
}

// The ranks meet twice. Before: no rank may be two commits ahead of another. After: this call
// returns once all ranks have the commit.
void Epochs::commit() {
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, "commit");
  refuse_before_repeat();
  p_.calls.finish_updates("commit");
  wait_for_unpin();
  settle();
  p_.gradients.meet_alike(ranks::RankCall::Kind::kCommit);
  note_met();
  bound_state_ = given_state_;
  commit_here("commit");
  p_.gradients.meet_alike(ranks::RankCall::Kind::kCommit);
  note_met();
}

void Epochs::commit_changes() {
  // Alone, a rank sees what loads have changed of a committed epoch.
  const bool loaded = p_.alone && record_.head().epoch > 0 && !p_.places.as_committed();
  if (steps_since_commit_ > 0 || loaded) return commit();
  p_.calls.finish_updates("sleep");
  settle();
}

void Epochs::commit_here(const char* call) {
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, call);
  p_.calls.finish_updates(call);
  wait_for_unpin();
  settle();
  capture();
  begin();
  settle();
}

// The others' commit would be of the step that this rank has still to make.
void Epochs::refuse_before_repeat() const {
  if (!p_.gradients.lacks_agreed_step()) return;
  throw Error(Code::kWrongState,
              "commit: step " + std::to_string(p_.counts.step + 1) +
                  " failed on this rank after the ranks had agreed on it: nothing was committed; "
                  "repeat the step first, or close the engine on every rank");
}

// If a step was made since the last commit, the ranks met in it. So all of them have that commit,
// and this rank may go one ahead without meeting them again.
void Epochs::commit_at_close() {
  if (p_.failure.ended()) return;
  // The others commit the step that failed here: this rank's state before it is of no epoch.
  if (steps_since_commit_ > 0 && !p_.gradients.lacks_agreed_step()) return commit_here("close");
  p_.calls.finish_updates("close");
  settle();
}

// ---- a background save ----

// With several ranks always: one whose shards are empty cannot see that the others' have changed.
void Epochs::pin(const char* call) {
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, call);
  p_.calls.finish_updates(call);
  settle();
  if (!p_.alone || steps_since_commit_ > 0 || !p_.places.as_committed()) commit();
  pinned_.store(true);
}

void Epochs::unpin() noexcept {
  pinned_.store(false);
  pinned_.notify_all();
}

void Epochs::wait_for_unpin() noexcept {
  awaited_.store(true);
  pinned_.wait(true);
  awaited_.store(false);
}

async::Task<> Epochs::drain() {
  try {
    co_await committing_.join();
  } catch (const std::exception&) {
    // The call that waited for this commit has thrown its error, or close() logs it.
  }
}

// Everything but the places of tiles, which updates may still change.
void Epochs::capture() {
  swap::CommitHead& head = record_.head();
  head.steps = p_.counts.step;
  head.skipped = p_.counts.skipped;
  std::ranges::copy(p_.counts.steps, record_.step_counts().begin());
  for (std::uint32_t s = 0; s < head.counts.hyperparameter_sets; ++s)
    record_.hyperparameters()[s].present = swap::packed(p_.registry.hyperparameters({s}));
  std::ranges::copy(bound_state_, record_.trainer_state().begin());
  head.trainer_state_used = bound_state_.size();
  steps_since_commit_ = 0;
  warn_without_trainer_state();
}

void Epochs::warn_without_trainer_state() {
  const bool as_resumed =
      resumed_ && p_.counts.step == resumed_->step && p_.counts.skipped == resumed_->skipped;
  if (as_resumed || std::exchange(has_trainer_state_, true)) return;
  // What a run resumed with stays until it gives other bytes.
  const bool has_older = resumed_ && !bound_state_.empty();
  p_.log(LogLevel::kWarning,
         "step " + std::to_string(p_.counts.step) + " is committed to store '" + p_.settings.store +
             (has_older ? "' with the trainer's state of step " + std::to_string(resumed_->step) +
                              ": a run that continues from it gets the weights and the optimizer "
                              "state of the one, and the position in the data and the random "
                              "number generators of the other"
                        : "' without the trainer's state: a run that continues from it gets "
                          "weights and optimizer state, but neither the position in the data nor "
                          "the random number generators") +
             ". Call Engine::set_trainer_state() before each step, with no bytes if "
             "there is nothing to keep; with the LibTorch adapter, Offload::keep_trainer_state(). "
             "This warning appears once.");
}

void Epochs::begin() {
  HEADRACE_CHECK(everywhere_, "no rank is two commits ahead of another");
  everywhere_ = false;
  p_.calls.run([&]() -> async::Task<> {
    committing_.spawn(run());
    co_return;
  });
}

async::Task<> Epochs::run() {
  std::exception_ptr error;
  try {
    while (p_.updates.running()) co_await p_.pending.changed();
    if (p_.updates.ended_early()) co_return;  // the store keeps the epoch before
    co_await write_epoch();
  } catch (...) {
    error = std::current_exception();
  }
  if (!error) co_return;
  p_.failure.fail_deferred(error);
  std::rethrow_exception(error);
}

async::Task<> Epochs::write_epoch() {
  co_await for_tiles(record_, [&](std::uint32_t tile) -> async::Task<> {
    if (p_.places.to_write_back(tile)) co_await p_.tiles.write_back(tile);
  });
  co_await p_.swap.sync();
  p_.places.describe(record_);
  swap::CommitHead& head = record_.head();
  name_next_root();
  ++head.epoch;
  head.opening = opening_;
  record_.seal();
  co_await p_.ring.write(record_);
  p_.places.note_committed();
  written_step_.store(head.steps);
  if (p_.alone) durable_step_.store(head.steps);
}
}  // namespace headrace::engine
