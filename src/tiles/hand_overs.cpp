// SPDX-License-Identifier: Apache-2.0
#include "tiles/hand_overs.hpp"

#include <algorithm>
#include <utility>

namespace headrace::tiles {
HandOvers::HandOvers(const partition::Partition& partition, const residency::Plan& plan,
                     DeviceStream* copies)
    : partition_(partition),
      plan_(plan),
      copies_(copies),
      memory_(partition.group_sections.size()),
      handed_over_(partition.tiles.size()) {}

bool HandOvers::take(std::uint32_t tile) noexcept {
  return std::exchange(handed_over_[tile], 0) != 0;
}

void HandOvers::forget(GroupId group) noexcept {
  close(group);
  for (const std::uint32_t s : partition_.group_sections[group.index]) {
    const partition::Section& section = partition_.sections[s];
    std::fill_n(handed_over_.begin() + section.first_tile, section.tiles, 0);
  }
}

HandOver HandOvers::place_of(std::uint32_t tile) const noexcept {
  const partition::Tile& cut = partition_.tiles[tile];
  const partition::Section& section = partition_.sections[cut.section];
  const residency::SectionPlan& plan = plan_.sections[cut.section];
  std::byte* const memory = memory_[section.group];
  if (plan.weight != Tier::kNvme || memory == nullptr) return {};
  std::byte* const place =
      memory + plan.joined_offset_bytes + cut.first_element * size_bytes(section.dtype);
  if (copies_ == nullptr) return {.by_pass = place};
  return {.by_device = place};
}

void HandOvers::hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight) {
  if (to.by_device != nullptr) copies_->copy(to.by_device, weight, plan_.tiles[tile].weight_bytes);
  handed_over_[tile] = 1;
}
}  // namespace headrace::tiles
