// SPDX-License-Identifier: Apache-2.0
// open_store.hpp: one rank's part of a store, opened to be read, which keeps engines out, and read
// by the engine's own means. It is never written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "async/conductor.hpp"
#include "base/sizes.hpp"
#include "partition/partition.hpp"
#include "swap/commit_ring.hpp"
#include "swap/io_buffer.hpp"
#include "swap/store_file.hpp"
#include "swap/store_registration.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::tools {
// Where the files of one rank of a store lie, by drive.
struct StorePlace {
  std::string name;
  std::uint32_t rank = 0;
  std::vector<swap::PathProbe> drives;
};
// Looks below the paths. No drives: there is no file of that rank. Throws kNotFound for a drive
// that is missing, kInvalidArgument for one that is there twice.
StorePlace find_store(const std::string& name, std::uint32_t rank,
                      const std::vector<swap::PathProbe>& paths);

// The result of verify().
struct Verified {
  std::uint64_t tiles = 0, verified_bytes = 0;
  std::uint64_t unchecked_bytes = 0;  // written with headrace.checksums off
  std::uint64_t frozen_tiles = 0;     // not verified: the registration that tells them is damaged
  std::vector<std::string> damage;    // "tile 3 on FILE at 8192: ..."
};

// A stream of a tile: its name and codec as in a record's header, and where it lies.
struct StoredStream {
  std::string name, codec;
  std::uint64_t offset_bytes = 0, size_bytes = 0;  // on the tile's drive
  std::uint64_t seed = 0;                          // of its checksums
  std::vector<std::uint64_t> checksums;  // of its chunks; none with headrace.checksums off
};
struct StoredTile {
  std::uint32_t number = 0, drive = 0;
  std::uint64_t elements = 0;
  std::vector<StoredStream> streams;  // of a frozen tile its weight alone
};

class OpenStore {
 public:
  // The largest chunk of a stream, and what its first and last page add.
  static constexpr std::uint64_t kWindowBytes = base::kChunkElements * 4 + 2 * base::kIoAlignment;

  // Takes the locks of all its files. Throws what StoreFile::open() and CommitRing throw, and
  // kCorrupt for a file that ends before its last tile.
  explicit OpenStore(const StorePlace& place);

  const swap::StoreHead& head() const noexcept { return head_; }
  // 0: nothing was ever committed.
  std::uint64_t epoch() const noexcept { return newest_.epoch; }
  // Of a place of the ring that holds neither a whole record nor zeros; empty: there is none.
  const std::string& ring_fault() const noexcept { return newest_.first_fault; }
  // The steps of the present epoch, the newest at first; 0 without one.
  std::uint64_t steps() const noexcept { return record_->head().steps; }
  // Of the present epoch, the same on every rank.
  std::uint64_t shared_print() const noexcept { return record_->shared_print(); }
  std::uint64_t size_bytes() const noexcept;
  // From here on the epoch before the newest, or the newest itself. Throws kCorrupt without it.
  void go_to(std::uint64_t epoch);

  // The rest is of the present epoch, which is there.
  std::uint32_t tiles() const noexcept { return record_->head().counts.tiles; }
  // Offset 0: the tile is frozen and has none. The header's size.
  swap::Extent place_of_record(std::uint32_t tile) const;
  // "FILE at 8192": of its record, or of a frozen tile's weight.
  std::string place_of_tile(std::uint32_t tile) const;
  // Compares every checksum of that epoch. `each_tile` is called between tiles.
  Verified verify(const std::function<void()>& each_tile);

  // From the first whole copy; none: all are damaged.
  const std::optional<swap::StoreRegistration>& registration() const noexcept {
    return registration_;
  }
  // Of this rank, where there is a registration.
  const partition::Partition& partition() const noexcept { return partition_; }
  // Of a damaged copy; empty: there is none.
  const std::string& registration_fault() const noexcept { return registration_fault_; }
  // What a tile has. Throws kCorrupt, saying what is wrong and which tensors it has. A frozen tile
  // needs the registration.
  StoredTile tile(std::uint32_t number);
  // Reads a chunk of a stream into `window` (kWindowBytes, aligned) and compares its checksum.
  // Returns the part of the window that it fills. Throws as tile().
  std::span<const std::byte> read_chunk(const StoredTile& tile, const StoredStream& stream,
                                        std::uint32_t chunk, std::span<std::byte> window);

 private:
  void read_registration();
  bool fits_registration(const swap::StoreRegistration& registration);
  void refuse_truncated();
  void verify_tile(std::uint32_t tile, Verified& out);
  void add_streams(StoredTile& tile);
  void add_frozen_weight(StoredTile& tile) const;
  std::vector<std::uint64_t> committed_checksums(std::uint32_t tile) const;
  std::string with_tensors(std::string fault, std::uint32_t tile, std::uint64_t first,
                           std::uint64_t elements) const;
  void read(const swap::Extent& extent, std::span<std::byte> into);

  std::string name_;
  std::vector<std::uint64_t> drive_bytes_;  // before what counts them
  std::unique_ptr<async::Conductor> conductor_;
  std::unique_ptr<swap::SwapTier> tier_;
  swap::StoreHead head_{};
  swap::CommitRing::Newest newest_;
  swap::IoBuffer memory_;  // the record
  std::optional<swap::CommitRecord> record_;
  swap::IoBuffer window_;  // what is being verified
  std::optional<swap::StoreRegistration> registration_;
  std::string registration_fault_;
  partition::Partition partition_;
  std::vector<std::uint64_t> first_weight_checksum_;  // by tile, with a registration
};
}  // namespace headrace::tools
