// SPDX-License-Identifier: Apache-2.0
// open_store.hpp: one rank's part of a store, opened to be read, which keeps engines out, and read
// by the engine's own means. It is never written.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/conductor.hpp"
#include "swap/commit_ring.hpp"
#include "swap/io_buffer.hpp"
#include "swap/store_file.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::tools {
// Where the files of one rank of a store lie, by drive.
struct StorePlace {
  std::string name;
  std::uint32_t rank = 0;
  std::vector<swap::PathProbe> drives;
};
// Looks below the paths. No drives: there is no file of that rank. Throws kNotFound for a drive
// that is missing, kWrongState for one that is there twice.
StorePlace find_store(const std::string& name, std::uint32_t rank,
                      const std::vector<swap::PathProbe>& paths);

// The result of verify().
struct Verified {
  std::uint64_t tiles = 0, verified_bytes = 0;
  std::uint64_t unchecked_bytes = 0;  // written with headrace.checksums off
  std::uint64_t frozen_tiles = 0;     // which have a weight and no header: not verified
  std::vector<std::string> damage;    // "tile 3 on FILE at 8192: ..."
};

class OpenStore {
 public:
  // Takes the locks of all its files. Throws what StoreFile::open() and CommitRing throw.
  explicit OpenStore(const StorePlace& place);

  const swap::StoreHead& head() const noexcept { return head_; }
  // 0: nothing was ever committed.
  std::uint64_t root() const noexcept { return newest_.root; }
  // Of a place of the ring that holds neither a whole record nor zeros; empty: there is none.
  const std::string& ring_fault() const noexcept { return newest_.first_fault; }
  // The steps of the newest epoch; 0 without one.
  std::uint64_t steps() const noexcept { return root() == 0 ? 0 : record().head().steps; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  // Of the newest epoch, which is there.
  std::uint32_t tiles() const noexcept { return record().head().counts.tiles; }
  // Offset 0: the tile is frozen and has none. The header's size.
  swap::Extent place_of_record(std::uint32_t tile) const;
  // Compares every checksum of the newest epoch. `each_tile` is called between tiles.
  Verified verify(const std::function<void()>& each_tile);

 private:
  swap::CommitRecord record() const;
  void verify_tile(std::uint32_t tile, Verified& out);
  std::string verify_streams(std::uint32_t tile, const swap::RecordHeader& header, Verified& out);
  void read(const swap::Extent& extent);

  std::string name_;
  std::uint64_t size_bytes_ = 0;  // before what counts it
  std::unique_ptr<async::Conductor> conductor_;
  std::unique_ptr<swap::SwapTier> tier_;
  swap::StoreHead head_{};
  swap::CommitRing::Newest newest_;
  swap::IoBuffer memory_;  // the newest record
  swap::IoBuffer window_;  // what is being verified
};
}  // namespace headrace::tools
