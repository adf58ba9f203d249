// SPDX-License-Identifier: Apache-2.0
// pending_updates.hpp: which groups' updates are still to come, which is next, and who waits.
//
// A deferred step returns before its updates are done. Until a group's passes are over its
// gradients are still read and its resident weights still written; until it is written, what the
// drive holds of it is old. `updates.hpp` does the work that is booked here. Conductor only, but
// where said otherwise.
//
// A group with a gradient, from begin() on:
//
//   unstarted --start_next()--> started --note_pass() of each tile--> passed
//                                        --note_write() of each tile--> written
//
// While it is unstarted two flags say whether it may be started. `has_place`: a fill has a slot
// that the new weights can go to. `wanted`: a call waits for it, so it goes before the others. A
// group that is held back (its weights lie on NVMe, and are gathered from there) needs one of the
// two: updated earlier, its weights would be written, dropped, and read again.
//
// Example: groups a, b, c on NVMe, two gather slots, prefetch of one group. step() returns. The
// fill of a, started by next_step(), has a place for a: a is updated into its slot. The trainer
// gathers a; that starts the fill of b, which has one for b. Now c is gathered out of order:
// acquire() wants c, and start_next() gives c before b. load() and hashes call want_all(): nobody
// is held back any more, and they wait for the rest.
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
// Of a group that is waited for: is it the next to be started, or does it come in its turn?
enum class Waiting { kNow, kInTurn };

class PendingUpdates {
 public:
  PendingUpdates(const partition::Partition& partition, const residency::Plan& plan);

  // ---- any thread ----
  // Does the group's update still read its gradients and write its weights?
  bool passes_left(GroupId group) const noexcept {
    return groups_[group.index].passes_left.load(std::memory_order_acquire) != 0;
  }
  // The group is used: the order of first uses since a step is that of the next step's updates.
  void note_use(GroupId group) noexcept;

  // ---- who waits ----
  // Ends when the group's passes are over. Throws what ended the updates before that, and where it
  // is given up.
  async::Task<> until_passed(GroupId group, Waiting waiting = Waiting::kNow,
                             const async::GiveUp* give_up = nullptr);
  // Ends when the group is written. Starts nothing: the group's passes are over. Throws what ended
  // the updates before that.
  async::Task<> until_written(GroupId group);
  // Its weights have a place to go to: it may be started in its turn.
  void note_place(GroupId group) noexcept;
  // Somebody waits for it.
  void want(GroupId group) noexcept;
  // All may be started: the rest is waited for.
  void want_all() noexcept;

  // ---- who updates ----
  // `tiles` per group: with a gradient. Forgets the uses noted so far.
  void begin(const std::vector<std::uint32_t>& tiles);
  bool all_started() const noexcept { return unstarted_ == 0; }
  // The group to start: one that is wanted; or else the first in order that may be started. A group
  // whose weights go to NVMe and are gathered from there is held back until they have a place, so
  // that they reach its gather slot without being read again.
  std::optional<GroupId> start_next();
  // Until there may be another answer.
  async::Waiters::Changed changed() noexcept { return waiters_.changed(); }
  void wake() noexcept { waiters_.wake(); }
  // One of a group's tiles.
  void note_pass(GroupId group) noexcept;
  void note_write(GroupId group) noexcept;
  // No more is done: who waits for what is left, now or later, gets the error.
  void fail(const std::exception_ptr& error) noexcept;
  // Nothing was changed and nothing is pending any more.
  void forget() noexcept;

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

 private:
  struct Group {
    std::atomic<std::uint32_t> passes_left{0};
    std::uint32_t writes_left = 0;
    std::atomic<std::uint32_t> first_use{0};  // since begin(); 0: not used
    bool held_back = false;
    bool unstarted = false, has_place = false, wanted = false;
  };
  void put_in_order() noexcept;
  void set(bool& flag) noexcept;

  std::vector<Group> groups_;
  std::vector<std::uint32_t> order_;
  std::size_t first_unstarted_ = 0;  // into order_: those before it are started
  std::uint32_t unstarted_ = 0;
  bool all_wanted_ = false;
  std::atomic<std::uint32_t> uses_{0};
  std::exception_ptr error_;
  async::Waiters waiters_;
};
}  // namespace headrace::tiles
