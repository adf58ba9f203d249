// SPDX-License-Identifier: Apache-2.0
// tile_store.hpp: brings a tile's weight and record into a slot, verifies them, and writes them
// back.
//
// A tile's weight and record are each either resident in the arena or in an extent of the swap
// tier, which TilePlaces knows. During work on a tile, its bytes from NVMe lie in an update slot.
// Conductor only.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "async/task.hpp"
#include "async/worker_pool.hpp"
#include "base/trace_recorder.hpp"
#include "partition/registry.hpp"
#include "pinned/arena.hpp"
#include "pinned/slot_pool.hpp"
#include "residency/plan.hpp"
#include "swap/record.hpp"
#include "swap/swap_tier.hpp"
#include "tiles/tile_pass.hpp"
#include "tiles/tile_places.hpp"

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
  std::byte* weight = nullptr;  // null if it is lent
  std::byte* record = nullptr;
  // Whether the work reads them from their extent first, and writes them there afterwards.
  bool weight_moves = false;
  bool record_moves = false;
};

class TileStore {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    const residency::Lent& lent;
    const Settings& settings;
    pinned::Arena& arena;
    async::WorkerPool& workers;
    TilePlaces& places;
    swap::SwapTier* swap;        // null: nothing is on NVMe
    base::TraceRecorder* trace;  // null: none
  };
  explicit TileStore(const Parts& parts);

  pinned::SlotPool& slots() noexcept { return slots_; }
  bool needs_slot(std::uint32_t tile) const noexcept;
  // Such a tile has a weight and no record; calls ignore the record's part of TileParts.
  bool is_frozen(std::uint32_t tile) const { return p_.partition.section_of(tile).frozen; }
  // `slot` may be empty for a tile that is wholly resident.
  TileView view(std::uint32_t tile, std::span<std::byte> slot) const;
  const std::byte* resident_weight(std::uint32_t section) const;  // not of a lent one

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
  // Throws kWrongState for a frozen tile of a committed step: the store keeps one slot for it. Ask
  // before anything is changed.
  void refuse_another_write(std::uint32_t tile) const;
  // Writes the tile's bytes in memory to its current slot, which the next commit record names.
  async::Task<> write_back(std::uint32_t tile);
  // Reads and verifies what belongs in memory.
  async::Task<> read_resident(std::uint32_t tile);
  // Reads all of the tile as `record` names it, wherever the present one lives, into `memory` of
  // Plan::saved_tile_bytes. Returns where it lies there, not yet verified.
  async::Task<TileView> read_committed(std::uint32_t tile, const swap::CommitRecord& record,
                                       std::span<std::byte> memory);
  // Any thread. Verifies what read_committed() has read, on the calling thread.
  TileLayout verify_committed(std::uint32_t tile, const swap::CommitRecord& record, TileView view);
  // Reads a record's header without its streams into `page`, and compares it.
  async::Task<> check_header(std::uint32_t tile, std::span<std::byte> page);

 private:
  // What a tile's bytes are compared with, and where errors say that they lie.
  struct Version {
    TilePlace place;
    std::uint64_t generation = 0;
    std::uint64_t sealed_generation = 0;  // of a pass that seals
    std::uint64_t* weight_checksums = nullptr;
  };
  Version present_version(std::uint32_t tile) const;
  Version version_of(std::uint32_t tile, const swap::CommitRecord& record) const;
  async::Task<> read_version(std::uint32_t tile, Version version, TileView view, TileParts parts,
                             swap::Priority priority);
  void prepare_version(TilePass& pass, std::uint32_t tile, const Version& version, TileView view,
                       TileParts parts, bool seal);
  void throw_if_damaged(const TilePass& pass, std::uint32_t tile, const Version& version) const;
  TileView resident_view(std::uint32_t tile) const;
  // Writes to `target`, which names other extents where it had to move.
  async::Task<> write_to(TilePlace& target, std::uint32_t tile, TileView view, TileParts parts);
  void require_header(std::uint32_t tile, const Version& version, const std::byte* header) const;
  swap::RecordIdentity identity(std::uint32_t tile, std::uint64_t generation) const;
  swap::Subject subject(const char* action, std::uint32_t tile) const;
  void seal_header(std::uint32_t tile, TileView view, const swap::Extent& weight);
  [[noreturn]] void report_damage(std::uint32_t tile, const Version& version, std::uint32_t stream,
                                  std::uint64_t chunk) const;
  // The bytes of stream `stream` of the record.
  std::byte* stream_of(std::uint32_t tile, TileView view, std::uint32_t stream) const;
  // Traces a transfer of these parts; nothing if none of them moves.
  base::TraceSpan span_of(TraceLane lane, const char* what, std::uint32_t tile, TileView view,
                          TileParts parts) const noexcept;

  const Parts p_;
  pinned::SlotPool slots_;
};
}  // namespace headrace::tiles
