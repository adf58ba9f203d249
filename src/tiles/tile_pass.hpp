// SPDX-License-Identifier: Apache-2.0
// tile_pass.hpp: the single pass over a tile's bytes: verify, update or initialise, and checksum,
// 131,072 elements at a time.
//
// One checksum of each stream covers a chunk. Chunks are independent: any thread may take any
// chunk, in any order, with the same bits.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "optimizer_cpu/moment_codecs.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "optimizer_cpu/update.hpp"
#include "partition/partition.hpp"
#include "residency/lent.hpp"
#include "swap/record.hpp"

namespace headrace::tiles {
// The places of a tile's values during work on it.
struct TileLayout {
  std::uint64_t elements = 0;
  std::uint64_t first_element = 0;  // position of the tile in its section
  optimizer_cpu::MasterKind kind = optimizer_cpu::MasterKind::kSplitResidual;
  std::byte* weight = nullptr;  // null if they are lent
  std::uint32_t weight_bytes_per_element = 2;
  // If the trainer lends the weights: those of each segment lie in memory of their own.
  const residency::Lent* lent = nullptr;
  const partition::Parameter* parameters = nullptr;
  std::span<const partition::Segment> segments;
  // For the record; false if the tile has no state, or the state is not part of this.
  bool has_state = false;
  optimizer_cpu::Arithmetic arithmetic = optimizer_cpu::Arithmetic::kAdam;
  MomentCodec codec = MomentCodec::kF32;
  std::byte* master = nullptr;
  std::byte* moment[optimizer_cpu::kMaxMoments] = {};
  std::byte* moment_scale[optimizer_cpu::kMaxMoments] = {};  // for 8-bit moments

  // These elements, without a gradient. `first` is a multiple of kScaleElements.
  optimizer_cpu::UpdateSpan span_of(std::uint64_t first, std::uint64_t count) const noexcept;
  optimizer_cpu::StoredMoment stored_moment(std::uint32_t which,
                                            std::uint64_t first) const noexcept;
  // The weight of element `first`, which is a parameter's, and of those after it in its segment.
  std::byte* weight_at(std::uint64_t first) const noexcept;
};

// One stream of the tile: the weight, or a stream of its state.
struct PassStream {
  std::byte* data = nullptr;
  std::uint32_t bytes_per_scale = 0;  // the stream's bytes for kScaleElements elements
  // One per chunk, in the record's header or beside the weight. With `verify`, the old ones are
  // compared first; with `seal`, the new ones then replace them.
  std::uint64_t* checksums = nullptr;
  bool verify = false;
  bool seal = false;
  std::uint64_t verify_seed = 0;
  std::uint64_t seal_seed = 0;
};

// The elements of a tile to update, and the inputs.
struct TileUpdate {
  std::span<const partition::Segment> segments;
  const std::uint8_t* received = nullptr;            // per parameter: whether it has a gradient
  const optimizer_cpu::UpdateStep* steps = nullptr;  // per parameter
  const partition::Parameter* parameters = nullptr;
  const std::byte* gradient = nullptr;  // starts at the tile's first element; null if lent
  DType gradient_dtype = DType::kBf16;
  const residency::LentGradient* lent_gradients = nullptr;  // per parameter
  optimizer_cpu::UpdateFunction update = nullptr;
  std::byte* weight_copy = nullptr;  // a second place for the new weight, if any

  // Calls visit(begin, count, parameter, first element in it) for each stretch of elements
  // [first, first + count) of the tile that has a gradient.
  template <class Visit>
  void each(const TileLayout& tile, std::uint64_t first, std::uint64_t count, Visit visit) const {
    const std::uint64_t end = first + count;
    for (const partition::Segment& segment : segments) {
      if (segment.first_element >= end) break;
      const std::uint64_t begin = std::max(first, segment.first_element);
      const std::uint64_t stop = std::min(end, segment.first_element + segment.elements);
      if (begin >= stop || received[segment.parameter] == 0) continue;
      visit(begin, stop - begin, segment.parameter,
            tile.first_element + begin - parameters[segment.parameter].first_element);
    }
  }
  // As TileLayout::span_of(), with the gradient, unless that is lent.
  optimizer_cpu::UpdateSpan span_of(const TileLayout& tile, std::uint64_t first,
                                    std::uint64_t count) const noexcept;
  // Of one parameter, with what is lent.
  optimizer_cpu::UpdateSpan span_of_parameter(const TileLayout& tile, std::uint64_t first,
                                              std::uint64_t count, std::uint32_t parameter,
                                              std::uint64_t in_parameter) const noexcept;
};

// For each chunk: verifies, updates or initialises, and seals, each if asked. A device updates
// between two passes, one that verifies and one that seals.
struct TilePass {
  TileLayout tile;
  PassStream streams[1 + optimizer_cpu::kMaxStateStreams];
  std::uint32_t stream_count = 0;
  bool verifies = true, seals = true;  // false overrides the streams' flags
  const TileUpdate* update = nullptr;
  // Gives the first values: weights from `initial_weight`, unless they are lent, moments zero,
  // masters from the weights. Verifies nothing.
  bool initialises = false;
  const std::byte* initial_weight = nullptr;

  std::atomic<std::uint64_t>* busy_ns = nullptr;  // if not null, the time spent is added to it
  // The first damaged stream and chunk: 1 + (stream << 32 | chunk); 0: none. A damaged chunk is not
  // updated.
  std::atomic<std::uint64_t> fault{0};

  std::uint64_t chunks() const noexcept { return swap::chunks_of(tile.elements); }
  bool any_verify() const noexcept;
  bool any_seal() const noexcept;
  // For WorkerPool::for_units: `context` is the pass.
  static void run_chunk(void* context, std::uint64_t chunk) noexcept;

 private:
  // The bytes of a stream that a chunk covers.
  std::span<std::byte> bytes_of(const PassStream& stream, std::uint64_t chunk) const noexcept;
  bool verify(std::uint64_t chunk) noexcept;
  void seal(std::uint64_t chunk) noexcept;
};

// The parts of a pass other than checksums, for one chunk. Null as `initial_weight`: the weights
// are there.
void initialise(const TileLayout& tile, const std::byte* initial_weight, std::uint64_t first,
                std::uint64_t count) noexcept;
void update(const TileLayout& tile, const TileUpdate& with, std::uint64_t first,
            std::uint64_t count) noexcept;
}  // namespace headrace::tiles
