// SPDX-License-Identifier: Apache-2.0
#include "engine/held_tile.hpp"

namespace headrace::engine {
async::Task<> HeldTile::hold(std::uint32_t tile, tiles::TileParts parts) {
  if (held_ && tile_ == tile && parts_.weight >= parts.weight && parts_.record >= parts.record)
    co_return;
  co_await take(tile, parts);
  try {
    co_await tiles_.read_verified(tile, view_, parts, swap::Priority::kDemand);
  } catch (...) {
    slot_.release();
    throw;
  }
  held_ = true;
}

async::Task<> HeldTile::take_empty(std::uint32_t tile, const char* call) {
  co_await take(tile, tiles::kWholeTile);
  tiles_.refuse_after_stall(call);
}

async::Task<> HeldTile::take(std::uint32_t tile, tiles::TileParts parts) {
  co_await let_go();
  if (tiles_.needs_slot(tile)) slot_ = co_await tiles_.slots().acquire();
  view_ = tiles_.view(tile, slot_ ? slot_.bytes() : std::span<std::byte>{});
  tile_ = tile;
  parts_ = parts;
}

async::Task<> HeldTile::let_go() {
  held_ = false;
  slot_.release();
  co_return;
}

async::Task<> HeldTile::write() {
  tiles::TilePass pass;
  tiles_.prepare(pass, tile_, view_, parts_, true);
  pass.verifies = false;  // that was when it was read; it has changed since
  co_await tiles_.run(pass, tile_);
  co_await tiles_.write(tile_, view_, parts_);
}
}  // namespace headrace::engine
