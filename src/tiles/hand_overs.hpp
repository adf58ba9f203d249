// SPDX-License-Identifier: Apache-2.0
// hand_overs.hpp: new weights on the short way: from their update to the gather slot that waits for
// them, without being read from the drive again.
//
// Example: group b has tiles 4 and 5 on NVMe, and a deferred step has begun. The fill of b opens
// the group with its slot's memory and waits for the update. The pass over tile 4 asks place_of(4),
// writes the new weight to its extent's slot and there as well, and hand_over(4) books it. Should
// tile 5 have no gradient, nobody updates it. When the group's passes are over the fill closes it:
// take(4) is true, and of b only tile 5 is read.
//
// A fill that ends early forgets what was booked, so the next one of the group reads every tile.
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
// Where a tile's new weight goes beside its extent: one or neither.
struct HandOver {
  std::byte* by_pass = nullptr;    // the pass writes it there
  std::byte* by_device = nullptr;  // the device copies it there
  explicit operator bool() const noexcept { return by_pass != nullptr || by_device != nullptr; }
};

// Conductor only.
class HandOvers {
 public:
  // `copies`: on which the device copies; null where it shares the host's memory.
  HandOvers(const partition::Partition& partition, const residency::Plan& plan,
            DeviceStream* copies);

  // ---- the fill ----
  // `memory`: of a gather slot; the update writes there from here on.
  void open(GroupId group, std::byte* memory) noexcept { memory_[group.index] = memory; }
  void close(GroupId group) noexcept { memory_[group.index] = nullptr; }
  // Whether the tile's weight was handed over; asked once.
  bool take(std::uint32_t tile) noexcept;
  void forget(GroupId group) noexcept;

  // ---- the update ----
  // The place stays until the group's passes are over.
  HandOver place_of(std::uint32_t tile) const noexcept;
  // It is there, or queued on its way from `weight`: that is free after passed().
  void hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight);
  // Ends when the device has passed this point of its copies.
  async::Task<> passed() { co_await copies_->passed(); }

 private:
  const partition::Partition& partition_;
  const residency::Plan& plan_;
  DeviceStream* const copies_;
  std::vector<std::byte*> memory_;         // per group: the slot that waits for it, if any
  std::vector<std::uint8_t> handed_over_;  // per tile
};
}  // namespace headrace::tiles
