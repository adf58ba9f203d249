// SPDX-License-Identifier: Apache-2.0
#include "tiles/group_fill.hpp"

#include <exception>

namespace headrace::tiles {
using swap::Priority;

GroupFill::GroupFill(const Parts& parts)
    : p_(parts),
      transfers_(parts.arena.range(parts.plan.transfer_slot_memory.offset_bytes,
                                   parts.plan.transfer_slot_memory.size_bytes),
                 parts.plan.transfer_slots, parts.plan.transfer_slot_bytes) {}

async::Task<> GroupFill::run(GatherSlot& slot, Priority priority) {
  async::TaskGroup reads;
  Event there;
  std::exception_ptr error;
  try {
    co_await reads.keep_error_of(begin(slot, priority, reads));
    co_await reads.join();
    if (!p_.host_slots) there = p_.copies.record();
  } catch (...) {
    error = std::current_exception();  // gathers that wait for this fill throw it
    p_.hand_overs.forget(slot.group());
  }
  slot.end_fill(there, error);
}

async::Task<> GroupFill::begin(GatherSlot& slot, Priority priority, async::TaskGroup& reads) {
  if (!p_.host_slots) slot.fill_from(p_.copies.get());
  if (p_.node_shards.holds(slot.group())) {
    slot.set_node_shard(true);
    p_.node_shards.fill(slot.group(), slot.memory(), p_.copies);
    co_return;
  }
  co_await take_update(slot);
  fill_own(slot, priority, reads);
}

void GroupFill::fill_own(GatherSlot& slot, Priority priority, async::TaskGroup& reads) {
  for (const std::uint32_t s : p_.partition.group_sections[slot.group().index])
    fill_section(s, slot.memory() + p_.plan.sections[s].joined_offset_bytes, priority, reads);
}

async::Task<> GroupFill::add_own(GatherSlot& slot) {
  async::TaskGroup reads;
  fill_own(slot, Priority::kDemand, reads);
  co_await reads.join();
  if (!p_.host_slots) slot.set_there(p_.copies.record());
  slot.set_node_shard(false);
}

// If the group's update is pending, lets it write into this slot, and waits for its passes. Tiles
// whose weight did not come that way are read in fill_section().
async::Task<> GroupFill::take_update(GatherSlot& slot) {
  const GroupId group = slot.group();
  if (!p_.pending.passes_left(group)) co_return;
  p_.hand_overs.open(group, slot.memory());
  p_.pending.note_place(group);
  co_await p_.pending.until_passed(group, Waiting::kInTurn);
  p_.hand_overs.close(group);
  slot.set_updated(GatherSlot::Clock::now());
}

void GroupFill::fill_section(std::uint32_t index, std::byte* to, Priority priority,
                             async::TaskGroup& reads) {
  const partition::Section& section = p_.partition.sections[index];
  const std::uint64_t element_bytes = size_bytes(section.dtype);
  if (p_.plan.sections[index].weight == Tier::kHost) {
    p_.copies.copy(to + section.shard.first_element * element_bytes,
                   p_.tiles.resident_weight(index), section.shard.elements * element_bytes);
    return;
  }
  for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
    if (p_.hand_overs.take(t)) continue;
    reads.spawn(fill_tile(t, to + p_.partition.tiles[t].first_element * element_bytes, priority));
  }
}

async::Task<> GroupFill::fill_tile(std::uint32_t tile, std::byte* target, Priority priority) {
  // Until its update is written, the drive holds the tile's old weight.
  co_await p_.pending.until_written({p_.partition.section_of(tile).group});
  TileView view{.weight = target, .weight_moves = true};
  if (p_.host_slots) {
    co_await p_.tiles.read_verified(tile, view, kWeightAlone, priority);
    co_return;
  }
  pinned::SlotLease slot = co_await transfers_.acquire();
  view.weight = slot.bytes().data();
  co_await p_.tiles.read_verified(tile, view, kWeightAlone, priority);
  p_.copies.copy(target, view.weight, p_.plan.tiles[tile].weight_bytes);
  co_await p_.copies.until_done();
}
}  // namespace headrace::tiles
