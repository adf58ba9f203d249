// SPDX-License-Identifier: Apache-2.0
// device_updates.hpp: updates on the device: sends a tile there in chunks and brings it back.
//
// A slot of device memory and a stream per chunk in flight: one chunk comes back while the next is
// updated and a third goes there. Conductor only.
#pragma once
#include <cstdint>
#include <deque>

#include "async/conductor.hpp"
#include "async/task.hpp"
#include "device/span_updates.hpp"
#include "headrace/device.hpp"
#include "pinned/slot_pool.hpp"
#include "residency/plan.hpp"
#include "tiles/device_stream.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::tiles {
class DeviceUpdates {
 public:
  // Throws kUnsupported for a device that does not update.
  static void require(Device& device);
  // Throws kOutOfBudget if the device has no room for the plan's slots.
  DeviceUpdates(Device& device, async::Conductor& conductor, const residency::Plan& plan);

  // While no update runs. take_memory() throws as the constructor does.
  void release_memory() noexcept { memory_.release(); }
  void take_memory();
  // One ticket for each tile in progress that holds no update slot. More tiles would only wait for
  // chunks.
  pinned::SlotPool& tickets() noexcept { return tickets_; }
  // Updates the elements that have a gradient. When it returns, the tile has its new bytes; if the
  // device fails, only some of them are new.
  async::Task<> run(const TileLayout& tile, const TileUpdate& update);
  std::uint64_t device_bytes() const noexcept { return memory_.size_bytes(); }

 private:
  // `first`, `count`: in elements of the tile.
  async::Task<> update_chunk(const TileLayout& tile, const TileUpdate& update, std::uint64_t first,
                             std::uint64_t count, pinned::SlotLease slot);
  void queue_chunk(const TileLayout& tile, const TileUpdate& update, std::uint64_t first,
                   std::uint64_t count, std::byte* memory, DeviceStream& stream);

  Device& device_;
  device::SpanUpdates* const updates_;
  const std::uint64_t chunk_elements_;
  DeviceMemory memory_;
  std::deque<DeviceStream> streams_;  // one for each slot
  pinned::SlotPool slots_, tickets_;
};
}  // namespace headrace::tiles
