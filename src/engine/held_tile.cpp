// SPDX-License-Identifier: Apache-2.0
#include "engine/held_tile.hpp"

namespace headrace::engine {
async::Task<> HeldTile::hold(std::uint32_t tile, tiles::TileParts parts) {
  if (held_ && tile_ == tile && parts_.weight >= parts.weight && parts_.record >= parts.record)
    co_return;
  co_await let_go();
  if (tiles_.needs_slot(tile)) slot_ = co_await tiles_.slots().acquire();
  view_ = tiles_.view(tile, slot_ ? slot_.bytes() : std::span<std::byte>{});
  try {
    co_await tiles_.read_verified(tile, view_, parts, swap::Priority::kDemand);
  } catch (...) {
    slot_.release();
    throw;
  }
  tile_ = tile;
  parts_ = parts;
  held_ = true;
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
