// SPDX-License-Identifier: Apache-2.0
// all_values.hpp: hands out or takes every value of this rank's shards, for checkpoints.
//
// Values goes parameter by parameter and reads a tile again for each kind of content. This goes
// tile by tile: each tile is read once, or written once. While the caller works on one tile, drives
// read the next ones into the other update slots, or write those before.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <span>

#include "engine/held_tile.hpp"
#include "engine/values.hpp"

namespace headrace::engine {
// A range of one parameter's values that lies in one tile: a weight in its dtype, else f32.
struct ValueRange {
  ParameterId id;
  Content content = Content::kWeight;
  std::uint64_t first_byte = 0;  // of all of them
};
using RangeSink = std::function<void(const ValueRange& range, std::span<const std::byte> values)>;
using RangeSource = std::function<void(const ValueRange& range, std::span<std::byte> values)>;

// For trainer threads, one at a time.
class AllValues {
 public:
  AllValues(const Values::Parts& parts, Values& values);

  // Each element of every content that the engine keeps, once. For one parameter and content, in
  // rising order. `call` names it in errors.
  void store(const char* call, const RangeSink& sink);
  // The same of the epoch that is pinned, on a thread of the engine's own, while training goes on:
  // takes no update slot. `memory`: Plan::saved_tile_bytes and kScratchBytes.
  void store_pinned(const Epochs& epochs, std::span<std::byte> memory, const RangeSink& sink) const;
  // Asks for the same ranges, and sets each parameter's step count. No group needs values
  // beforehand; after an error, none has any. With several ranks, all of them make this call.
  void load(const char* call, const RangeSource& source, std::span<const std::uint64_t> steps);

 private:
  // A tile in memory, or on its way between memory and its drive.
  struct Place {
    explicit Place(tiles::TileStore& tiles) : held(tiles) {}
    async::TaskGroup transfer;
    HeldTile held;
  };
  Place& place_of(std::uint32_t tile) { return places_[tile % places_.size()]; }
  async::Task<> let_go();
  async::Task<> hold(std::uint32_t tile);
  async::Task<> take_empty(std::uint32_t tile, const char* call);
  async::Task<> begin_write(std::uint32_t tile);
  // `may_end`: EngineOptions::poll may end the call between two tiles.
  template <class Work>
  void each_tile(const char* call, bool may_end, const Work& work);
  template <class Visit>
  void each_range(std::uint32_t tile, const tiles::TileLayout& at, const Visit& visit) const;
  void fill(std::uint32_t tile, const RangeSource& source);

  const Values::Parts p_;
  Values& values_;
  std::deque<Place> places_;     // of consecutive tiles, as many as there are update slots
  std::uint32_t next_read_ = 0;  // the first tile that nobody reads yet
};
}  // namespace headrace::engine
