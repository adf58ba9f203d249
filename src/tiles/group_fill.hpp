// SPDX-License-Identifier: Apache-2.0
// group_fill.hpp: brings this rank's shard of a group into a gather slot. It copies resident
// weights, reads those on NVMe, and takes those that an update is about to change from the update.
#pragma once
#include <cstdint>

#include "async/task.hpp"
#include "pinned/arena.hpp"
#include "pinned/slot_pool.hpp"
#include "tiles/device_stream.hpp"
#include "tiles/gather_slot.hpp"
#include "tiles/hand_overs.hpp"
#include "tiles/node_shards.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/tile_store.hpp"

namespace headrace::tiles {
// Conductor only.
class GroupFill {
 public:
  struct Parts {
    const partition::Partition& partition;
    const residency::Plan& plan;
    pinned::Arena& arena;
    TileStore& tiles;
    PendingUpdates& pending;
    HandOvers& hand_overs;
    NodeShards& node_shards;
    DeviceStream& copies;
    bool host_slots;  // gather slots are host memory: reads go there without a transfer slot
  };
  explicit GroupFill(const Parts& parts);

  // Fills the slot with its group, after begin_fill(), and ends that fill: with the event of its
  // copies once they are queued, or with an error, which leaves the slot's bytes undefined.
  async::Task<> run(GatherSlot& slot, swap::Priority priority);
  // Brings this rank's own shard into a leased slot that was filled with what its node keeps.
  async::Task<> add_own(GatherSlot& slot);

 private:
  async::Task<> begin(GatherSlot& slot, swap::Priority priority, async::TaskGroup& reads);
  async::Task<> take_update(GatherSlot& slot);
  void fill_own(GatherSlot& slot, swap::Priority priority, async::TaskGroup& reads);
  void fill_section(std::uint32_t section, std::byte* to, swap::Priority priority,
                    async::TaskGroup& reads);
  async::Task<> fill_tile(std::uint32_t tile, std::byte* target, swap::Priority priority);

  const Parts p_;
  pinned::SlotPool transfers_;  // hold tiles on their way from a drive to the device
};
}  // namespace headrace::tiles
