// SPDX-License-Identifier: Apache-2.0
// group_fill.hpp: brings this rank's shard of a group into a gather slot: resident weights are
// copied, those on NVMe are read, and those that an update is about to change come from it.
#pragma once
#include <cstdint>

#include "async/task.hpp"
#include "pinned/arena.hpp"
#include "pinned/slot_pool.hpp"
#include "tiles/device_stream.hpp"
#include "tiles/gather_slot.hpp"
#include "tiles/hand_overs.hpp"
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
    PendingUpdates& updates;
    HandOvers& hand_overs;
    DeviceStream& copies;
    bool direct;  // reads go to the slot itself: it is host memory
  };
  explicit GroupFill(const Parts& parts);

  // Fills the slot with its group. Throws what ended it; the bytes are nobody's then. Ends when the
  // copies are queued, of which the event is given.
  async::Task<Event> run(GatherSlot& slot, swap::Priority priority);

 private:
  async::Task<> begin(GatherSlot& slot, swap::Priority priority, async::TaskGroup& reads);
  async::Task<> take_update(GatherSlot& slot);
  void fill_section(std::uint32_t section, std::byte* to, swap::Priority priority,
                    async::TaskGroup& reads);
  async::Task<> fill_tile(std::uint32_t tile, std::byte* target, swap::Priority priority);

  const Parts p_;
  pinned::SlotPool transfers_;  // where tiles lie on their way from a drive to the device
};
}  // namespace headrace::tiles
