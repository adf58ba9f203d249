// SPDX-License-Identifier: Apache-2.0
// hand_overs.hpp: passes new weights from their update directly to the gather slot that waits for
// them, so that they need not be read from the drive again.
//
// Example: group b has tiles 4 and 5 on NVMe, and a deferred step has begun. The fill of b opens
// the group with its gather slot's memory and waits for the update. The update of tile 4 calls
// place_of(4). Its pass writes the new weight to the update slot and to that place, and
// hand_over(4) records this. If tile 5 has no gradient, nobody updates it. When the group's passes
// are over, the fill closes the group: take(4) is true, and only tile 5 of b is read.
//
// A fill that ends early forgets these records, so the next fill of the group reads every tile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "async/task.hpp"
#include "headrace/tensor.hpp"
#include "partition/partition.hpp"
#include "residency/plan.hpp"
#include "tiles/device_stream.hpp"

namespace headrace::tiles {
// The places for a tile's new weight in addition to its update slot: one or neither.
struct HandOver {
  std::byte* by_pass = nullptr;    // the pass writes it there
  std::byte* by_device = nullptr;  // the device copies it there
  explicit operator bool() const noexcept { return by_pass != nullptr || by_device != nullptr; }
};

// Conductor only.
class HandOvers {
 public:
  // `copies`: the stream for the device's copies; null if the device shares the host's memory.
  HandOvers(const partition::Partition& partition, const residency::Plan& plan,
            DeviceStream* copies);

  // ---- the fill ----
  // `memory`: of a gather slot; the update writes there from now on.
  void open(GroupId group, std::byte* memory) noexcept { memory_[group.index] = memory; }
  void close(GroupId group) noexcept { memory_[group.index] = nullptr; }
  // Whether the tile's weight was handed over. Call it once.
  bool take(std::uint32_t tile) noexcept;
  void forget(GroupId group) noexcept;

  // ---- the update ----
  // Where else the new weight goes. Valid until the group's passes are over: the fill that opened
  // the group waits for them before it closes the group.
  HandOver place_of(std::uint32_t tile) const noexcept;
  // Records that the pass has written the weight to `to`, or queues the device's copy of `weight`
  // there. Keep `weight` until until_copied().
  void hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight);
  // Ends when the device has made the copies queued so far.
  async::Task<> until_copied() { co_await copies_->until_done(); }

 private:
  const partition::Partition& partition_;
  const residency::Plan& plan_;
  DeviceStream* const copies_;
  std::vector<std::byte*> memory_;         // per group: the slot that waits for it, if any
  std::vector<std::uint8_t> handed_over_;  // per tile
};
}  // namespace headrace::tiles
