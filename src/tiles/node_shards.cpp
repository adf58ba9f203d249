// SPDX-License-Identifier: Apache-2.0
#include "tiles/node_shards.hpp"

namespace headrace::tiles {
NodeShards::NodeShards(const partition::Partition& partition, const residency::Plan& plan,
                       pinned::Arena& arena, Device& device)
    : p_{partition, plan, arena, device},
      holds_(plan.node_ranks > 0 ? partition.group_sections.size() : 0),
      there_(holds_.size()) {}

NodeShards::Piece NodeShards::piece_of(std::uint32_t s) const {
  const partition::Section& section = p_.partition.sections[s];
  const residency::SectionPlan& plan = p_.plan.sections[s];
  const std::uint32_t ranks = p_.plan.node_ranks;
  const partition::Shard shard = p_.partition.node_shard(section, p_.partition.rank % ranks, ranks);
  const std::uint64_t element_bytes = size_bytes(section.dtype);
  return {plan.joined_offset_bytes + shard.first_element * element_bytes,
          shard.elements * element_bytes,
          p_.arena.range(plan.node_shard.offset_bytes, plan.node_shard.size_bytes).data()};
}

void NodeShards::keep(GroupId group, const std::byte* memory, Stream stream) {
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const Piece piece = piece_of(s);
    if (piece.size_bytes > 0)
      p_.device.copy(stream, piece.kept, memory + piece.in_slot, piece.size_bytes);
  }
  there_[group.index] = p_.device.record(stream);
  holds_[group.index] = true;
}

void NodeShards::fill(GroupId group, std::byte* memory, DeviceStream& copies) {
  if (there_[group.index].id != 0) p_.device.wait(copies.get(), there_[group.index]);
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const Piece piece = piece_of(s);
    if (piece.size_bytes > 0) copies.copy(memory + piece.in_slot, piece.kept, piece.size_bytes);
  }
}

void NodeShards::forget_all() noexcept {
  for (std::atomic<bool>& one : holds_) one = false;
}
}  // namespace headrace::tiles
