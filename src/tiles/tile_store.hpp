// SPDX-License-Identifier: Apache-2.0
// tile_store.hpp: where every tile's weight and record are, and how they come into a slot and go
// back.
//
// A tile's weight and record are each either resident in the arena or in an extent of the swap
// tier; while a tile is worked on, what is on NVMe lies in an update slot. Conductor only.
//
// What is on NVMe has a generation, of which every checksum is seeded: old bytes never pass for new
// ones. Example: tile 3 was written as generation 6. Its update reads it, run() verifies chunk by
// chunk with 6, updates, and seals with 7; write() puts 7 in the header, writes, and only then does
// the store expect 7. Should the drive have kept the old bytes of one page, the next read
// compares them with the checksum of 7, which they do not have.
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
#include "swap/swap_tier.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::tiles {
// Which of a tile's bytes a call is about.
struct TileParts {
  bool weight = false;
  bool record = false;
};
inline constexpr TileParts kWholeTile{.weight = true, .record = true};
inline constexpr TileParts kWeightAlone{.weight = true};

// Where a tile's bytes are while it is worked on.
struct TileView {
  std::byte* weight = nullptr;
  std::byte* record = nullptr;
  bool weight_in_slot = false;  // to be read before and written after
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

  pinned::SlotPool& slots() noexcept { return slots_; }
  bool needs_slot(std::uint32_t tile) const noexcept;
  // Has a weight and no record: what calls say of that part of it is not there.
  bool is_frozen(std::uint32_t tile) const { return p_.partition.section_of(tile).frozen; }
  // `slot` may be empty for a tile that is wholly resident.
  TileView view(std::uint32_t tile, std::span<std::byte> slot) const;

  // Throws kIoStalled when memory that was leased just now may be that of a transfer that never
  // completed.
  void refuse_after_stall(std::string_view call) const;

  // Brings what lies on NVMe into the slot and checks the record's header; its chunks are verified
  // by the pass.
  async::Task<> read(std::uint32_t tile, TileView view, TileParts parts, swap::Priority priority);
  // Writes what lies in the slot back as the next generation, which `pass` has sealed.
  async::Task<> write(std::uint32_t tile, TileView view, TileParts parts);
  // Reads likewise, and verifies what came: what is not worked on at once.
  async::Task<> read_verified(std::uint32_t tile, TileView view, TileParts parts,
                              swap::Priority priority);

  // Where the values of `parts` are.
  TileLayout layout(std::uint32_t tile, TileView view, TileParts parts) const;
  // Fills in a pass over `parts` of a tile: its layout and streams, verify (what came from NVMe)
  // and seal (what will go).
  void prepare(TilePass& pass, std::uint32_t tile, TileView view, TileParts parts, bool seal);
  // Runs it on the workers; throws kCorrupt naming tensor, stream, file and bytes for a damaged
  // chunk.
  async::Task<> run(TilePass& pass, std::uint32_t tile, TileView view);

  // Of a tile's weight and record, wherever they are.
  std::uint64_t bytes_of(std::uint32_t tile) const noexcept {
    return p_.plan.tiles[tile].weight_bytes + p_.plan.tiles[tile].layout.size_bytes;
  }
  const std::byte* resident_weight(std::uint32_t section) const;
  // What its tables take on the heap, for the plan.
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition);

 private:
  struct TileState {
    swap::Extent weight_extent, record_extent;
    std::uint64_t generation = 0;  // of what was written last
    std::uint32_t first_weight_checksum = 0;
  };
  swap::RecordIdentity identity(std::uint32_t tile, std::uint64_t generation) const;
  swap::Subject subject(const char* action, std::uint32_t tile) const;
  void seal_header(std::uint32_t tile, TileView view, std::uint64_t generation);
  [[noreturn]] void report_damage(std::uint32_t tile, TileView view, std::uint32_t stream,
                                  std::uint64_t chunk) const;
  std::uint64_t weight_chunks(std::uint32_t tile) const;
  DType dtype_of(std::uint32_t tile) const;
  // The record's stream `stream`.
  std::byte* stream_of(std::uint32_t tile, TileView view, std::uint32_t stream) const;
  // A transfer of these parts, for the trace; nothing where none of them is in a slot.
  base::TraceSpan span_of(TraceLane lane, const char* what, std::uint32_t tile, TileView view,
                          TileParts parts) const noexcept;

  const Parts p_;
  pinned::SlotPool slots_;
  std::vector<TileState> states_;
  std::vector<std::uint64_t> records_of_drive_;
  std::vector<std::uint64_t> weight_checksums_;
};
}  // namespace headrace::tiles
