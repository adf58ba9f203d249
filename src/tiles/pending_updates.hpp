// SPDX-License-Identifier: Apache-2.0
// pending_updates.hpp: records which groups' updates are pending, which one is next, and who waits.
//
// A deferred step returns before its updates are done. Until a group's passes are over, they still
// read its gradients and write its resident weights. Until the group is written, the drive holds
// old bytes of it. updates.hpp does the work; this class records it. Conductor only, except where
// noted. Functions that change a record (note_place(), want(), note_pass(), ...) may resume waiting
// coroutines before they return (Waiters::wake()).
//
// A group with a gradient, from begin() on:
//
//   unstarted --start_next()--> started --note_pass() of each tile--> passed
//                                        --note_write() of each tile--> written
//
// While a group is unstarted, two flags say whether it may be started. `has_place`: a fill has a
// slot for the new weights. `wanted`: a call waits for the group, so it goes before the others. A
// group that is held back (its weights lie on NVMe, and gathers read them from there) needs one of
// the two. If it were updated earlier, its weights would be written, dropped, and read again.
//
// Example: groups a, b, c on NVMe, two gather slots, prefetch of one group. step() returns. The
// fill of a, started by next_step(), has a place for a, so a is updated into its slot. The trainer
// gathers a, which starts the fill of b: that has a place for b. Now the trainer gathers c out of
// order: acquire() calls want(c), and start_next() returns c before b. load() and hashes call
// want_all(): no group is held back any more, and they wait until all groups are updated.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "async/give_up.hpp"
#include "async/task.hpp"
#include "async/waiters.hpp"
#include "headrace/tensor.hpp"
#include "partition/partition.hpp"
#include "residency/plan.hpp"

namespace headrace::tiles {
// For a group that a call waits for: whether it is started next, or in its turn.
enum class Waiting { kNow, kInTurn };

class PendingUpdates {
 public:
  PendingUpdates(const partition::Partition& partition, const residency::Plan& plan);

  // ---- any thread ----
  // Whether the group's update still reads its gradients and writes its weights.
  bool passes_left(GroupId group) const noexcept {
    return groups_[group.index].passes_left.load(std::memory_order_acquire) != 0;
  }
  // Notes a use of the group. The next step updates groups in the order of their first uses.
  void note_use(GroupId group) noexcept;

  // ---- for callers that wait ----
  // Ends when the group's passes are over. Throws the error that ended the updates before that, or
  // kInterrupted if the call gives up.
  async::Task<> until_passed(GroupId group, Waiting waiting = Waiting::kNow,
                             const async::GiveUp* give_up = nullptr);
  // Ends when the group is written. Starts nothing, since the group's passes are over. Throws the
  // error that ended the updates before that.
  async::Task<> until_written(GroupId group);
  // The group's weights have a place: it may be started in its turn.
  void note_place(GroupId group) noexcept;
  // A call waits for the group.
  void want(GroupId group) noexcept;
  // All groups may be started, since a call waits for the rest.
  void want_all() noexcept;

  // ---- for updates ----
  // `tiles`: the number with a gradient, per group. Forgets the uses noted so far.
  void begin(const std::vector<std::uint32_t>& tiles);
  bool all_started() const noexcept { return unstarted_ == 0; }
  // Returns the group to start: a wanted one, or else the first in order that may be started. A
  // group whose weights are written to NVMe and gathered from there is held back until they have a
  // place, so that they reach its gather slot without being read again.
  std::optional<GroupId> start_next();
  // Ends when start_next() may have another result.
  async::Waiters::Changed changed() noexcept { return waiters_.changed(); }
  void wake() noexcept { waiters_.wake(); }
  // Notes that one of the group's tiles has passed.
  void note_pass(GroupId group) noexcept;
  void note_write(GroupId group) noexcept;
  // Ends the updates: callers that wait for the rest, now or later, get the error.
  void fail(const std::exception_ptr& error) noexcept;
  // Forgets all updates, none of which has changed anything.
  void forget() noexcept;

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

 private:
  struct Group {
    std::atomic<std::uint32_t> passes_left{0};
    std::uint32_t writes_left = 0;
    std::atomic<std::uint32_t> first_use{0};  // since begin(); 0: unused
    bool held_back = false;
    bool unstarted = false, has_place = false, wanted = false;
  };
  void put_in_order() noexcept;
  void set(bool& flag) noexcept;

  std::vector<Group> groups_;
  std::vector<std::uint32_t> order_;
  std::size_t first_unstarted_ = 0;  // index into order_: all groups before it are started
  std::uint32_t unstarted_ = 0;
  bool all_wanted_ = false;
  std::atomic<std::uint32_t> uses_{0};
  std::exception_ptr error_;
  async::Waiters waiters_;
};
}  // namespace headrace::tiles
