// SPDX-License-Identifier: Apache-2.0
// tile_places.hpp: the table of where every tile's weight and record lie on NVMe, as which
// generation, and with which checksums of the weight. It transfers nothing: TileStore does that.
//
// Bytes on NVMe have a generation, which is part of the seed of every checksum, so old bytes never
// pass as new ones. Example: tile 3 was written as generation 6. Its update reads it; the pass
// verifies chunk by chunk with 6, updates, and seals with 7. The write puts 7 in the header, and
// only when it has ended does this table expect 7. If the drive kept the old bytes of one page, the
// next read compares them with the checksum of 7, and they differ.
//
// If the engine is durable, every tile has two slots in the store. A write goes to the slot that no
// commit record names, and the tile's bytes in memory are written too, by TileStore::write_back(),
// before the next record names them. Example: root 4 names slot 0 of tile 3. The update of step 5
// writes slot 1 and reads from there on come from slot 1. A crash now opens root 4, and slot 0 is
// whole. Root 5 names slot 1; once it is durable, note_committed() lets the update of step 6 write
// slot 0.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "partition/partition.hpp"
#include "residency/plan.hpp"
#include "swap/extents.hpp"
#include "swap/store_format.hpp"

namespace headrace::tiles {
// The extents of a tile's weight and record. What it does not have on NVMe has 0 bytes.
struct TilePlace {
  swap::Extent weight, record;
};

// Threads: the conductor, or the trainer's thread while no tile is worked on. Passes on the workers
// write the checksums of weights. `partition` and `plan` outlive it.
class TilePlaces {
 public:
  TilePlaces(const partition::Partition& partition, const residency::Plan& plan);

  // Gives every tile its extents, taken from `allocate`.
  using Allocate = std::function<swap::Extent(std::uint32_t drive, std::uint64_t bytes)>;
  void allocate(const Allocate& allocate);
  // Takes over what a record of an earlier run says; `take` is called with every extent. The
  // `incarnation` is larger than that of every run before: no generation is ever used twice.
  using Take = std::function<void(const swap::Extent&)>;
  void restore(const swap::CommitRecord& record, std::uint64_t incarnation, const Take& take);

  // Where the tile is read from, and the generation of its last write.
  const TilePlace& current(std::uint32_t tile) const noexcept { return states_[tile].place; }
  std::uint64_t generation(std::uint32_t tile) const noexcept { return states_[tile].generation; }
  // Of its weight, in the order of the chunks. A pass that seals the tile fills in those of
  // next_generation(), before the write. If that write fails, they do not belong to generation()
  // any more, until go_back().
  std::span<std::uint64_t> weight_checksums(std::uint32_t tile) noexcept;
  // The number of records on the tile's drive.
  std::uint64_t records_beside(std::uint32_t tile) const noexcept {
    return records_of_drive_[plan_.tiles[tile].drive];
  }

  // Where its next write goes, and the generation of that.
  TilePlace target_of(std::uint32_t tile) const noexcept;
  std::uint64_t next_generation(std::uint32_t tile) const noexcept;
  // The write has ended at `place`: reads come from there on.
  void note_written(std::uint32_t tile, const TilePlace& place);
  // The write has failed, after a part of it went from target_of() to another extent. The tile has
  // that one from now on, and not the bad one: its next write goes there.
  void note_moved(std::uint32_t tile, const TilePlace& place) noexcept;

  // ---- of a durable engine ----
  // Whether the tile may be written again: a store has one slot for what is never trained.
  bool may_be_written(std::uint32_t tile) const noexcept;
  // Whether bytes of the tile in memory are newer than its slot.
  bool to_write_back(std::uint32_t tile) const noexcept { return slots_of_[tile].newer_in_memory; }
  // They were written to `place`, which is current() or where a failed write was moved.
  void note_written_back(std::uint32_t tile, const TilePlace& place) noexcept;
  // Fills in slots, generations and checksums, while nothing is written.
  void describe(const swap::CommitRecord& record) const;
  // The record is durable: the slots that it names are not written from here on.
  void note_committed() noexcept;
  // Whether all tiles are as the last record names them.
  bool as_committed() const noexcept;
  // Of the tile's weight in an epoch, among those of all tiles. Any thread.
  std::span<std::uint64_t> committed_weight_checksums(std::uint32_t tile,
                                                      const swap::CommitRecord& record) const;
  // Makes the slots that `record`, the last one, names the current ones again. What lives in memory
  // is not read: TileStore::read_resident() does that. Nothing is being written.
  void go_back(const swap::CommitRecord& record);

  // The number of checksums of all weights.
  static std::uint64_t weight_checksums_in(const partition::Partition& partition) noexcept {
    std::uint64_t checksums = 0;
    for (const partition::Tile& tile : partition.tiles) checksums += swap::chunks_of(tile.elements);
    return checksums;
  }
  // The heap memory of its tables, for the plan.
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition, bool durable);

 private:
  struct State {
    TilePlace place;
    std::uint64_t generation = 0;  // of the last write
    std::uint32_t first_weight_checksum = 0;
  };
  // A tile's slots in a store.
  struct Slots {
    TilePlace other;  // State has the current one
    std::uint8_t current = 0;
    bool committed = false;  // a commit record names the current slot
    bool newer_in_memory = false;
  };
  bool durable() const noexcept { return plan_.durable(); }
  // Whether its next write goes to the other slot, since a record names the current one.
  bool goes_to_other(std::uint32_t tile) const noexcept;

  const partition::Partition& partition_;
  const residency::Plan& plan_;
  std::vector<State> states_;
  std::vector<std::uint64_t> records_of_drive_;
  std::vector<std::uint64_t> weight_checksums_;  // of all tiles, in their order
  std::vector<Slots> slots_of_;                  // if durable
  std::uint64_t least_generation_ = 0;           // of this incarnation
};
}  // namespace headrace::tiles
