// SPDX-License-Identifier: Apache-2.0
// gather_slots.hpp: assigns groups to gather slots, and reads groups ahead.
//
// A group whose lease has ended stays in its slot until the slot is needed or an update makes it
// stale. The next groups are filled while the current one is in use (gather_order.hpp predicts
// them). A wrong prediction costs a read, never a wrong byte.
//
// Example: two slots, one group read ahead, and the last step gathered a, b, c. gather(a) finds a
// in slot 0 and starts the fill of b in slot 1. gather(b) finds b, and starts nothing: a is leased.
// a is released, and gather(c) takes slot 0, since nobody holds a.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "async/task.hpp"
#include "headrace/device.hpp"
#include "tiles/device_stream.hpp"
#include "tiles/gather_order.hpp"
#include "tiles/gather_slot.hpp"
#include "tiles/group_fill.hpp"
#include "tiles/hand_overs.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/tile_store.hpp"

namespace headrace::tiles {
struct GatherCounters {
  std::uint64_t found = 0;  // kept from an earlier gather, prefetched, or being filled
  std::uint64_t on_demand = 0;
  std::uint64_t copied_bytes = 0;
};

// Conductor only, except where noted.
class GatherSlots {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    std::uint32_t prefetch_groups;
    pinned::Arena& arena;
    TileStore& tiles;
    PendingUpdates& pending;
    Device& device;
    async::Conductor& conductor;
  };
  // Throws kOutOfBudget if the device has no room for the plan's slots.
  explicit GatherSlots(const Parts& parts);

  // A slot with this rank's shard of `group` in place, leased once more. Starts the fills that are
  // likely next. Throws kOutOfBudget naming the holders if all slots are leased; a failed fill's
  // error (the slot is free again); kInterrupted if given up, while the fill continues like a
  // prefetch. A gather that fails counts in the prediction too: being wrong costs a read.
  struct Acquired {
    std::uint32_t slot = 0;
    GatherSlot::Clock::time_point updated;  // when the fill had waited for the group's update
  };
  async::Task<Acquired> acquire(GroupId group, const async::GiveUp* give_up = nullptr);
  // Whether acquire() has a slot for the group, if need be after a fill. Else it would throw that
  // all are leased.
  bool has_room(GroupId group) const noexcept;
  // For what nobody awaits: it catches its own errors. drain() waits for it, and invalidate().
  void run_until_drained(async::Task<> task) { fills_.spawn(std::move(task)); }
  // Returns an empty slot for `group`, leased: for load.
  async::Task<std::uint32_t> claim_empty(GroupId group);
  // Brings this rank's shard into a leased slot that was filled with what its node keeps.
  async::Task<> add_own_shard(std::uint32_t slot) { return group_fill_.add_own(slots_[slot]); }
  // keep(): any thread, with a lease of the group's slot.
  NodeShards& node_shards() noexcept { return node_shards_; }
  // For the packed parameters of one section (Plan::packed_bytes). Any thread, with a lease.
  std::byte* packed_memory() const noexcept;
  // Any thread, while it is leased.
  GatherSlot& operator[](std::uint32_t slot) noexcept { return slots_[slot]; }

  // The group's weights are about to change: drops its cached bytes. When this returns, nothing
  // reads them any more.
  async::Task<> forget(GroupId group);
  // The same for all groups; waits for fills in progress.
  async::Task<> invalidate();
  // A step has ended: its gathers predict those of the next step, and it starts to read the first.
  void next_step();
  // While nothing is leased or filled, after invalidate(): gives device memory back once the device
  // has read it. Only take_memory(), which throws as the constructor does, and drain() may follow.
  void release_memory() noexcept;
  void take_memory();
  // Waits for fills in progress, before close.
  async::Task<> drain() { return fills_.join(); }
  // Callers that wait for a fill check again whether to give up.
  void wake() noexcept;

  HandOvers& hand_overs() noexcept { return hand_overs_; }
  GatherCounters counters() const noexcept;  // any thread
  std::uint64_t device_bytes() const noexcept { return device_memory_.size_bytes(); }
  // Of the slots and the packed parameters, while it is taken; nothing if they are in the arena.
  DeviceSpan device_memory() const noexcept { return {device_memory_.data(), device_bytes()}; }

 private:
  std::optional<std::uint32_t> find(GroupId group) const noexcept;
  std::optional<std::uint32_t> find_free(GroupId wanted, bool keep_next) const noexcept;
  async::Task<std::uint32_t> free_slot(GroupId wanted, const async::GiveUp* give_up = nullptr);
  void make_slots();
  [[noreturn]] void refuse_all_leased(GroupId wanted) const;
  void start_fill(std::uint32_t slot, GroupId group, swap::Priority priority);
  void prefetch();

  const Parts p_;
  DeviceMemory device_memory_;  // none if the slots are in the arena
  DeviceStream copies_;
  HandOvers hand_overs_;
  NodeShards node_shards_;
  GroupFill group_fill_;
  GatherOrder order_;
  std::vector<std::uint32_t> own_slots_;  // per group; empty: any slot is for any group
  std::deque<GatherSlot> slots_;          // they do not move
  async::TaskGroup fills_;
  std::atomic<std::uint64_t> found_{0}, on_demand_{0};
};
}  // namespace headrace::tiles
