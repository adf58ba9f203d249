// SPDX-License-Identifier: Apache-2.0
// epochs.hpp: commits the engine's state to its store after a step, and takes it from there at the
// start.
//
// A commit runs on the conductor while the trainer computes the next step:
//
//   1. the updates of the step end: what lies on NVMe is in the slots that no record names
//   2. write back: what lives in memory goes to its slot too
//   3. sync every drive
//   4. write the commit record, twice on every drive, and sync it: now it is durable
//
// The next step waits for 4 before its first update, since that writes the slots of the epoch
// before. Example: step 7 returns. Its commit runs during the forward and backward pass of step 8.
// A kill before 4 goes on at step 6, whose slots nobody has touched; a kill after it, at step 7. So
// when step(t) has returned, t - 1 is durable.
//
// With several ranks, the step's own exchange makes one commit of all of theirs: a rank comes to
// step(t + 1) when its record of t is durable, and no rank overwrites slots of t - 1 before all
// have come. So ranks are at most one epoch apart, whatever ends them, and each still has the
// lesser one whole: freeze_meeting.hpp finds it at the next start. Example: rank 0 is killed before
// its record of step 7 is written, rank 1 after it. Rank 1 has not begun the update of step 8,
// which would overwrite slots of step 6, since rank 0 never came to it.
//
// A background save reads the slots of the last commit, on every rank its own. While one of them
// reads, no step begins a commit: then updates write to the other slots again and again, as between
// the commits of "durable": N. The ranks say in the step's exchange whether they still read, so all
// of them begin with commits again after the same step.
//
// A failed sync is final: the kernel may have dropped the bytes and report success the next time.
// The engine fails then, and the store keeps the last durable epoch.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "async/task.hpp"
#include "engine/calls.hpp"
#include "engine/counts.hpp"
#include "engine/epoch_terms.hpp"
#include "engine/failure.hpp"
#include "engine/value_states.hpp"
#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "headrace/log.hpp"
#include "partition/registry.hpp"
#include "ranks/gradients.hpp"
#include "swap/commit_ring.hpp"
#include "swap/swap_tier.hpp"
#include "tiles/tile_places.hpp"
#include "tiles/tile_store.hpp"
#include "tiles/updates.hpp"

namespace headrace::engine {
// Whether a drive failed: the store is as it was.
bool is_of_a_drive(const Error& error) noexcept;
// Such an error, with why its step is not undone, and where a new engine goes on. Another error as
// it is.
std::exception_ptr with_way_on(const std::exception_ptr& error, std::string_view why,
                               std::uint64_t durable_step);

// For trainer threads, one at a time, except where noted.
class Epochs {
 public:
  struct Parts {
    const partition::Registry& registry;
    const Settings& settings;
    const LogSink& log;
    const residency::Plan& plan;
    Failure& failure;
    Calls& calls;
    Counts& counts;
    ValueStates& states;
    swap::SwapTier& swap;
    swap::CommitRing& ring;
    tiles::TilePlaces& places;
    tiles::TileStore& tiles;
    tiles::PendingUpdates& pending;
    const tiles::Updates& updates;
    ranks::Gradients& gradients;  // the ranks meet through it
    bool alone = true;            // one rank
  };
  // `record`: in the arena; of the store's newest epoch if `resumed`, else a new one.
  // `opening`: FreezeMeeting::Agreed's.
  Epochs(const Parts& parts, swap::CommitRecord record, bool resumed, std::uint64_t opening);

  // Reads what belongs in memory of the record's epoch, and checks what does not, all of its bytes
  // if `verify_all`. Writes nothing.
  void read(bool verify_all);
  // Commits that epoch again, as an incarnation of its own.
  void take_over();
  const std::optional<Resumed>& resumed() const noexcept { return resumed_; }
  void restore_hyperparameters(partition::Registry& registry) const;

  // Kept for the epoch of the next step. Throws kInvalidArgument if it is too large.
  void set_trainer_state(std::span<const std::byte> state);
  // Before a step: returns when no commit is under way. Throws the error that ended one.
  void settle();
  // All ranks have settled, and met. `held`: until they meet again, no step begins a commit.
  void note_met(bool held = false) noexcept;
  // Before a load: settle(), and a meeting if it is not known that all ranks have the last commit.
  void settle_for_load();
  // A step has changed the state, or was skipped: begins its commit if one is due.
  void note_step();
  // Whether the state is that of the last commit, so that go_back() undoes an update that fails.
  bool at_a_commit() const noexcept;
  // Undoes such an update on this rank, whose updates have ended. Step counts have not changed.
  void go_back();
  // Commits what has changed since the last commit, and returns when that is durable, on all ranks.
  void commit();
  // The same where something has changed: before the engine sleeps.
  void commit_changes();
  // The same where close() may: after steps, in an engine that has not failed. Meets no other rank,
  // which may have ended.
  void commit_at_close();
  // Conductor. Returns when no commit is under way, whatever became of it.
  async::Task<> drain();
  std::uint64_t durable_step() const noexcept { return durable_step_.load(); }  // any thread

  // ---- a background save ----
  // Commits what has changed, and then keeps that epoch's slots: steps begin no commit until
  // unpin(). With several ranks, all of them make this call.
  void pin(const char* call);
  void unpin() noexcept;                                   // any thread
  bool pinned() const noexcept { return pinned_.load(); }  // any thread
  // Of the pinned epoch. Nobody changes it before unpin().
  const swap::CommitRecord& pinned_record() const noexcept { return record_; }
  // Whether a call waits for unpin(). Any thread.
  bool awaited() const noexcept { return awaited_.load(); }
  // Returns when nothing is pinned.
  void wait_for_unpin() noexcept;
  static std::uint64_t bookkeeping_bytes(const Settings& settings) noexcept;

 private:
  void name_next_root();
  void capture();
  void commit_here(const char* call);
  void refuse_before_repeat() const;
  void begin();
  async::Task<> run();
  async::Task<> write_epoch();
  async::Task<> restore_tile(std::uint32_t tile, bool verify_all);
  void warn_without_trainer_state();

  const Parts p_;
  swap::CommitRecord record_;
  const std::uint64_t opening_;
  std::optional<Resumed> resumed_;
  // As set_trainer_state() gave it last, and as it belongs to the present state: a step takes it
  // when it is made, so that close() never commits bytes of a step that was not.
  std::vector<std::byte> given_state_, bound_state_;
  bool has_trainer_state_ = false;
  std::uint64_t steps_since_commit_ = 0;
  bool everywhere_ = true;  // all ranks are known to have the last commit
  bool held_ = false;       // since the last meeting: some rank has pinned its last commit
  std::atomic<bool> pinned_{false}, awaited_{false};
  async::TaskGroup committing_;
  std::atomic<std::uint64_t> written_step_{0};  // of this rank
  std::atomic<std::uint64_t> durable_step_{0};  // of all ranks
};
}  // namespace headrace::engine
