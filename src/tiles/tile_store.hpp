// SPDX-License-Identifier: Apache-2.0
// tile_store.hpp: knows where every tile's weight and record are, brings them into a slot, and
// writes them back.
//
// A tile's weight and record are each either resident in the arena or in an extent of the swap
// tier. During work on a tile, its bytes from NVMe lie in an update slot. Conductor only.
//
// Bytes on NVMe have a generation, which is part of the seed of every checksum, so old bytes never
// pass as new ones. Example: tile 3 was written as generation 6. Its update reads it; run()
// verifies chunk by chunk with 6, updates, and seals with 7. write() puts 7 in the header and
// writes, and only then does the store expect 7. If the drive kept the old bytes of one page, the
// next read compares them with the checksum of 7, and they differ.
//
// If the engine is durable, every tile has two slots in the store. A write goes to the slot that no
// commit record names, and the tile's bytes in memory are written too, by write_back(), before the
// next record names them. Example: root 4 names slot 0 of tile 3. The update of step 5 writes slot
// 1 and reads from there on come from slot 1. A crash now opens root 4, and slot 0 is whole. Root 5
// names slot 1; once it is durable, note_committed() lets the update of step 6 write slot 0.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "async/task.hpp"
#include "async/worker_pool.hpp"
#include "base/trace_recorder.hpp"
#include "partition/registry.hpp"
#include "pinned/arena.hpp"
#include "pinned/slot_pool.hpp"
#include "residency/plan.hpp"
#include "swap/store_format.hpp"
#include "swap/swap_tier.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::tiles {
// The part of a tile's bytes that a call works on.
struct TileParts {
  bool weight = false;
  bool record = false;
};
inline constexpr TileParts kWholeTile{.weight = true, .record = true};
inline constexpr TileParts kWeightAlone{.weight = true};

// The places of a tile's bytes during work on it.
struct TileView {
  std::byte* weight = nullptr;
  std::byte* record = nullptr;
  bool weight_in_slot = false;  // to be read before, and written after
  bool record_in_slot = false;
};

class TileStore {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    const Settings& settings;
    pinned::Arena& arena;
    async::WorkerPool& workers;
    swap::SwapTier* swap;        // null: nothing is on NVMe
    base::TraceRecorder* trace;  // null: none
  };
  explicit TileStore(const Parts& parts);
  // Gives every tile its extents; restore() does that for a store that has been written.
  void allocate();

  pinned::SlotPool& slots() noexcept { return slots_; }
  bool needs_slot(std::uint32_t tile) const noexcept;
  // Such a tile has a weight and no record; calls ignore the record's part of TileParts.
  bool is_frozen(std::uint32_t tile) const { return p_.partition.section_of(tile).frozen; }
  // `slot` may be empty for a tile that is wholly resident.
  TileView view(std::uint32_t tile, std::span<std::byte> slot) const;

  // Throws kIoStalled if memory that was just leased may belong to a transfer that never completed.
  void refuse_after_stall(std::string_view call) const;

  // Reads the parts on NVMe into the slot and checks the record's header; the pass verifies the
  // chunks. The tier repeats a failed read once. Bytes that differ from a header or checksum are
  // not read again.
  async::Task<> read(std::uint32_t tile, TileView view, TileParts parts, swap::Priority priority);
  // Writes the slot's parts back as the next generation, with the checksums of the pass that sealed
  // them. The next read takes them from there. A durable engine's next commit names the place.
  async::Task<> write(std::uint32_t tile, TileView view, TileParts parts);
  // The same as read(), and verifies the bytes: for callers that do not work on them at once.
  async::Task<> read_verified(std::uint32_t tile, TileView view, TileParts parts,
                              swap::Priority priority);

  // Returns where the values of `parts` are.
  TileLayout layout(std::uint32_t tile, TileView view, TileParts parts) const;
  // Fills in the layout and streams of a pass over `parts` of a tile. The pass verifies the bytes
  // that came from NVMe and, if `seal`, renews the checksums of those that go there.
  void prepare(TilePass& pass, std::uint32_t tile, TileView view, TileParts parts, bool seal);
  // Runs the pass on the workers. Throws kCorrupt, naming tensor, stream, file and bytes, for a
  // damaged chunk.
  async::Task<> run(TilePass& pass, std::uint32_t tile);

  // ---- of a durable engine ----
  // Whether bytes of the tile in memory are newer than its slot.
  bool to_write_back(std::uint32_t tile) const noexcept { return slots_of_[tile].newer_in_memory; }
  // Writes those bytes to the slot that the next commit record names.
  async::Task<> write_back(std::uint32_t tile);
  // Fills in slots, generations and checksums, while nothing is written.
  void describe(const swap::CommitRecord& record) const;
  // The record is durable: the slots that it names are not written from here on.
  void note_committed() noexcept;
  // Whether all tiles are as the last record names them.
  bool as_committed() const noexcept;
  // Makes the slots that `record`, the last one, names the current ones again. What lives in memory
  // is not read: read_resident() does that. Nothing is being written.
  void go_back(const swap::CommitRecord& record);
  // Takes over what a record of an earlier run says. `incarnation` is larger than that of every run
  // before: no generation is ever used twice.
  void restore(const swap::CommitRecord& record, std::uint64_t incarnation);
  // Reads and verifies what belongs in memory.
  async::Task<> read_resident(std::uint32_t tile);
  // Reads a record's header without its streams into `page`, and compares it.
  async::Task<> check_header(std::uint32_t tile, std::span<std::byte> page);
  // The number of checksums of all weights.
  static std::uint64_t weight_checksums(const partition::Partition& partition) noexcept;

  // The size of a tile's weight and record, wherever they are.
  std::uint64_t bytes_of(std::uint32_t tile) const noexcept {
    return p_.plan.tiles[tile].weight_bytes + p_.plan.tiles[tile].layout.size_bytes;
  }
  const std::byte* resident_weight(std::uint32_t section) const;
  // The heap memory of its tables, for the plan.
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition, bool durable);

 private:
  struct TileState {
    swap::Extent weight_extent, record_extent;
    std::uint64_t generation = 0;  // of the last write
    std::uint32_t first_weight_checksum = 0;
  };
  // A tile's places in a store.
  struct Slots {
    swap::Extent other_weight, other_record;  // TileState has the current ones
    std::uint8_t current = 0;
    bool committed = false;  // a commit record names the current slot
    bool newer_in_memory = false;
  };
  // The extents that a write goes to.
  struct Target {
    swap::Extent weight, record;
  };
  bool durable() const noexcept { return p_.plan.durable(); }
  Target target_of(std::uint32_t tile) const;
  void note_written(std::uint32_t tile, const Target& target);
  std::uint64_t next_generation(std::uint32_t tile) const noexcept;
  void refuse_another_write(std::uint32_t tile) const;
  void throw_header_fault(std::uint32_t tile, const std::string& fault) const;
  swap::RecordIdentity identity(std::uint32_t tile, std::uint64_t generation) const;
  swap::Subject subject(const char* action, std::uint32_t tile) const;
  void seal_header(std::uint32_t tile, TileView view, const swap::Extent& weight);
  [[noreturn]] void report_damage(std::uint32_t tile, std::uint32_t stream,
                                  std::uint64_t chunk) const;
  std::uint64_t weight_chunks(std::uint32_t tile) const;
  DType dtype_of(std::uint32_t tile) const;
  // The bytes of stream `stream` of the record.
  std::byte* stream_of(std::uint32_t tile, TileView view, std::uint32_t stream) const;
  // Traces a transfer of these parts; nothing if none of them is in a slot.
  base::TraceSpan span_of(TraceLane lane, const char* what, std::uint32_t tile, TileView view,
                          TileParts parts) const noexcept;

  const Parts p_;
  pinned::SlotPool slots_;
  std::vector<TileState> states_;
  std::vector<std::uint64_t> records_of_drive_;
  std::vector<std::uint64_t> weight_checksums_;
  std::vector<Slots> slots_of_;         // if durable
  std::uint64_t least_generation_ = 0;  // of this incarnation
};
}  // namespace headrace::tiles
