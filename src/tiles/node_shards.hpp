// SPDX-License-Identifier: Apache-2.0
// node_shards.hpp: the parameters that the ranks of a node keep between a step's first gather and
// its update, each rank a part of every group (hpZ: Wang et al., ZeRO++, 2023, section 3.2). Later
// gathers take them from there, so they leave neither the node nor read a drive.
//
// Example: 4 ranks, of which 0 and 1 are a node, and 2 and 3. All own a quarter of a group. At its
// first gather, ranks 0 and 1 send their quarters to ranks 0 and 2, ranks 2 and 3 to ranks 1 and 3.
// So each node has both halves, which its ranks send to each other. Ranks 0 and 2 keep a copy of
// the first half, ranks 1 and 3 of the second. At the next gather, each puts its half into a slot,
// and joins the other half from the other rank of its node.
#pragma once
#include <atomic>
#include <cstddef>
#include <vector>

#include "headrace/device.hpp"
#include "partition/partition.hpp"
#include "pinned/arena.hpp"
#include "residency/plan.hpp"
#include "tiles/device_stream.hpp"

namespace headrace::tiles {
class NodeShards {
 public:
  NodeShards(const partition::Partition& partition, const residency::Plan& plan,
             pinned::Arena& arena, Device& device);

  bool used() const noexcept { return p_.plan.node_ranks > 0; }
  // Any thread.
  bool holds(GroupId group) const noexcept { return used() && holds_[group.index].load(); }
  // The thread that joins. Keeps this rank's part of a group that was joined at `memory`, behind
  // the work on `stream`. The group's slot is leased.
  void keep(GroupId group, const std::byte* memory, Stream stream);

  // ---- conductor ----
  // Puts it into a slot.
  void fill(GroupId group, std::byte* memory, DeviceStream& copies);
  // The group's weights are about to change, or its memory goes.
  void forget(GroupId group) noexcept {
    if (used()) holds_[group.index] = false;
  }
  void forget_all() noexcept;

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept {
    return partition.group_sections.size() * (sizeof(std::atomic<bool>) + sizeof(Event));
  }

 private:
  struct Parts {
    const partition::Partition& partition;
    const residency::Plan& plan;
    pinned::Arena& arena;
    Device& device;
  };
  struct Piece {
    std::uint64_t in_slot = 0, size_bytes = 0;
    std::byte* kept = nullptr;
  };
  Piece piece_of(std::uint32_t section) const;

  const Parts p_;
  std::vector<std::atomic<bool>> holds_;  // per group
  std::vector<Event> there_;              // per group: the copy to keep is made
};
}  // namespace headrace::tiles
