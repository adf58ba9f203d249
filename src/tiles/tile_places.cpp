// SPDX-License-Identifier: Apache-2.0
#include "tiles/tile_places.hpp"

#include <algorithm>
#include <utility>

#include "residency/layout.hpp"
#include "swap/record.hpp"

namespace headrace::tiles {
TilePlaces::TilePlaces(const partition::Partition& partition, const residency::Plan& plan)
    : partition_(partition), plan_(plan) {
  const auto tiles = static_cast<std::uint32_t>(partition_.tiles.size());
  states_.resize(tiles);
  std::uint64_t checksums = 0;
  for (std::uint32_t t = 0; t < tiles; ++t) {
    states_[t].first_weight_checksum = static_cast<std::uint32_t>(checksums);
    checksums += swap::chunks_of(partition_.tiles[t].elements);
  }
  weight_checksums_.resize(checksums);
  records_of_drive_.assign(plan_.drive_bytes.size(), 0);
  if (durable()) slots_of_.resize(tiles);
  for (std::uint32_t t = 0; t < tiles; ++t) {
    if (residency::stored_extents(plan_, partition_, t).record_bytes > 0)
      ++records_of_drive_[plan_.tiles[t].drive];
  }
}

// All weights first: they lie one after another, so that a gather reads long stretches. For the
// same reason all first slots, then all second ones.
void TilePlaces::allocate(const Allocate& allocate) {
  const auto tiles = static_cast<std::uint32_t>(states_.size());
  const auto extents_of = [&](std::uint32_t t) {
    return residency::stored_extents(plan_, partition_, t);
  };
  const auto take = [&](std::uint32_t t, std::uint64_t bytes, swap::Extent& extent) {
    if (bytes > 0) extent = allocate(plan_.tiles[t].drive, bytes);
  };
  for (std::uint32_t t = 0; t < tiles; ++t)
    take(t, extents_of(t).weight_bytes, states_[t].place.weight);
  for (std::uint32_t t = 0; t < slots_of_.size(); ++t) {
    if (extents_of(t).slots == 2) take(t, extents_of(t).weight_bytes, slots_of_[t].other.weight);
  }
  for (std::uint32_t t = 0; t < tiles; ++t)
    take(t, extents_of(t).record_bytes, states_[t].place.record);
  for (std::uint32_t t = 0; t < slots_of_.size(); ++t)
    take(t, extents_of(t).record_bytes, slots_of_[t].other.record);
}

void TilePlaces::restore(const swap::CommitRecord& record, std::uint64_t incarnation,
                         const Take& take) {
  constexpr int kIncarnationShift = 40;
  least_generation_ = incarnation << kIncarnationShift;
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    const swap::CommitTile& tile = record.tiles()[t];
    const auto extents = residency::stored_extents(plan_, partition_, t);
    const auto taken = [&](std::uint64_t offset, std::uint64_t bytes) {
      const swap::Extent extent{tile.drive, offset, bytes};
      if (bytes > 0) take(extent);
      return bytes > 0 ? extent : swap::Extent{};
    };
    const auto slot = [&](std::uint32_t number) {
      const swap::Extent weight = taken(tile.weight_offset[number], extents.weight_bytes);
      return TilePlace{weight, taken(tile.record_offset[number], extents.record_bytes)};
    };
    const std::uint32_t current = tile.slot & 1;
    states_[t].generation = tile.generation;
    states_[t].place = slot(current);
    slots_of_[t].current = static_cast<std::uint8_t>(current);
    slots_of_[t].committed = true;
    if (extents.slots == 2) slots_of_[t].other = slot(current ^ 1);
  }
  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());
}

std::span<std::uint64_t> TilePlaces::weight_checksums(std::uint32_t tile) noexcept {
  return std::span(weight_checksums_)
      .subspan(states_[tile].first_weight_checksum,
               swap::chunks_of(partition_.tiles[tile].elements));
}

std::span<std::uint64_t> TilePlaces::committed_weight_checksums(
    std::uint32_t tile, const swap::CommitRecord& record) const {
  return record.weight_checksums().subspan(states_[tile].first_weight_checksum,
                                           swap::chunks_of(partition_.tiles[tile].elements));
}

bool TilePlaces::goes_to_other(std::uint32_t tile) const noexcept {
  return durable() && slots_of_[tile].committed;
}

TilePlace TilePlaces::target_of(std::uint32_t tile) const noexcept {
  return goes_to_other(tile) ? slots_of_[tile].other : states_[tile].place;
}

// Counts from the incarnation's first on. A generation is never used twice, also not for an update
// that a crash undid: the drive may have dropped the write of the second.
std::uint64_t TilePlaces::next_generation(std::uint32_t tile) const noexcept {
  return std::max(states_[tile].generation, least_generation_) + 1;
}

void TilePlaces::note_written(std::uint32_t tile, const TilePlace& place) {
  State& state = states_[tile];
  state.generation = next_generation(tile);
  const TilePlace before = std::exchange(state.place, place);
  if (!durable()) return;
  Slots& slots = slots_of_[tile];
  if (std::exchange(slots.committed, false)) {
    slots.other = before;
    slots.current ^= 1;
  }
  const auto swapped = residency::extents_of(plan_, partition_, tile);
  const auto stored = residency::stored_extents(plan_, partition_, tile);
  slots.newer_in_memory =
      swapped.weight_bytes != stored.weight_bytes || swapped.record_bytes != stored.record_bytes;
}

void TilePlaces::note_moved(std::uint32_t tile, const TilePlace& place) noexcept {
  (goes_to_other(tile) ? slots_of_[tile].other : states_[tile].place) = place;
}

// ---- of a durable engine ----

bool TilePlaces::may_be_written(std::uint32_t tile) const noexcept {
  return !durable() || !partition_.section_of(tile).frozen || !slots_of_[tile].committed;
}

void TilePlaces::note_written_back(std::uint32_t tile, const TilePlace& place) noexcept {
  states_[tile].place = place;
  slots_of_[tile].newer_in_memory = false;
}

void TilePlaces::describe(const swap::CommitRecord& record) const {
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    const State& state = states_[t];
    const Slots& slots = slots_of_[t];
    swap::CommitTile& tile = record.tiles()[t];
    tile.generation = state.generation;
    tile.drive = plan_.tiles[t].drive;
    tile.slot = slots.current;
    tile.weight_offset[slots.current] = state.place.weight.offset_bytes;
    tile.weight_offset[slots.current ^ 1] = slots.other.weight.offset_bytes;
    tile.record_offset[slots.current] = state.place.record.offset_bytes;
    tile.record_offset[slots.current ^ 1] = slots.other.record.offset_bytes;
  }
  std::ranges::copy(weight_checksums_, record.weight_checksums().begin());
}

void TilePlaces::note_committed() noexcept {
  for (Slots& slots : slots_of_) slots.committed = true;
}

bool TilePlaces::as_committed() const noexcept {
  return std::ranges::all_of(slots_of_, [](const Slots& slots) { return slots.committed; });
}

// The generations of what is undone are not used again, nor those of writes that failed.
void TilePlaces::go_back(const swap::CommitRecord& record) {
  std::uint64_t used = least_generation_;
  for (std::uint32_t t = 0; t < states_.size(); ++t) used = std::max(used, next_generation(t));
  least_generation_ = used;
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    Slots& slots = slots_of_[t];
    if (std::exchange(slots.committed, true)) continue;
    std::swap(states_[t].place, slots.other);
    slots.current ^= 1;
    slots.newer_in_memory = false;
    states_[t].generation = record.tiles()[t].generation;
  }
  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());
}

std::uint64_t TilePlaces::bookkeeping_bytes(const partition::Partition& partition, bool durable) {
  const std::uint64_t each = sizeof(State) + (durable ? sizeof(Slots) : 0);
  return partition.tiles.size() * each + weight_checksums_in(partition) * sizeof(std::uint64_t);
}
}  // namespace headrace::tiles
