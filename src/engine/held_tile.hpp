// SPDX-License-Identifier: Apache-2.0
// held_tile.hpp: a tile that a call works on. That of store() and load() of one parameter stays in
// an update slot between calls, since consecutive parameters often lie in the same tile.
#pragma once
#include "async/task.hpp"
#include "pinned/slot_pool.hpp"
#include "tiles/tile_store.hpp"

namespace headrace::engine {
// Conductor only; the trainer's thread works on the tile's bytes between two calls.
class HeldTile {
 public:
  explicit HeldTile(tiles::TileStore& tiles) : tiles_(tiles) {}

  // Reads and verifies these parts of the tile, unless it holds them already.
  async::Task<> hold(std::uint32_t tile, tiles::TileParts parts);
  // A place for all of the tile's bytes, to be filled. `call` names it in errors.
  async::Task<> take_empty(std::uint32_t tile, const char* call);
  // Gives the slot back.
  async::Task<> let_go();
  // Seals the changed tile and writes all of it, as its next generation.
  async::Task<> write();

  // The layout of the tile that it holds.
  tiles::TileLayout layout() const { return tiles_.layout(tile_, view_, parts_); }

 private:
  async::Task<> take(std::uint32_t tile, tiles::TileParts parts);

  tiles::TileStore& tiles_;
  std::uint32_t tile_ = 0;
  tiles::TileParts parts_;
  tiles::TileView view_;
  pinned::SlotLease slot_;
  bool held_ = false;
};
}  // namespace headrace::engine
