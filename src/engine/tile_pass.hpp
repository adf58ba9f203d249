// SPDX-License-Identifier: Apache-2.0
// tile_pass.hpp: the one pass over a tile's bytes: verify, update, checksum, 131,072 elements at a
// time.
//
// A unit is what one checksum of each stream covers. Units are independent, so any thread may take
// any of them, in any order: the bits are the same.
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
#include "swap/record.hpp"

namespace headrace::engine {
inline constexpr std::uint64_t kUnitElements = swap::kChunkElements;

// One stream of the tile: the weight, or one of its state.
struct PassStream {
  std::byte* data = nullptr;
  std::uint32_t bytes_per_block = 0;  // of optimizer_cpu::kScaleBlock elements
  // One per unit, in the record's header or beside the weight. With verify the old ones are
  // compared first, with seal the new ones written over them.
  std::uint64_t* checksums = nullptr;
  bool verify = false;
  bool seal = false;
  std::uint64_t verify_seed = 0;
  std::uint64_t seal_seed = 0;
};

// What of a pass is done at one go: where a device updates, the CPU has what is before and after.
enum class PassWork : std::uint8_t { kAll, kVerify, kSeal };

struct TilePass {
  std::uint64_t elements = 0;
  PassWork work = PassWork::kAll;
  PassStream streams[1 + optimizer_cpu::kMaxStateStreams];
  std::uint32_t stream_count = 0;

  // The update; without segments nothing is updated.
  std::span<const partition::Segment> segments;
  const std::uint8_t* received = nullptr;            // per parameter: has it a gradient?
  const optimizer_cpu::UpdateStep* steps = nullptr;  // per parameter
  const partition::Parameter* parameters = nullptr;
  std::uint64_t first_element = 0;      // the tile's, in its section
  const std::byte* gradient = nullptr;  // of the tile's first element
  DType gradient_dtype = DType::kBf16;
  optimizer_cpu::UpdateFunction update = nullptr;
  std::byte* weight_copy = nullptr;  // where the new weight goes as well, if anywhere

  // The first values: weights from here, moments zero, master from the weight. Instead of verify
  // and update.
  const std::byte* initial_weight = nullptr;

  optimizer_cpu::MasterKind kind = optimizer_cpu::MasterKind::kSplitResidual;
  std::byte* weight = nullptr;
  std::uint32_t weight_bytes_per_element = 2;
  std::byte* master = nullptr;
  optimizer_cpu::Arithmetic arithmetic = optimizer_cpu::Arithmetic::kAdam;
  MomentCodec codec = MomentCodec::kF32;
  bool has_state = false;  // the record is part of the pass
  std::byte* moment[optimizer_cpu::kMaxMoments] = {};
  std::byte* moment_scale[optimizer_cpu::kMaxMoments] = {};  // of 8-bit moments

  std::atomic<std::uint64_t>* busy_ns = nullptr;  // time spent is added, if given
  // The first stream and unit found damaged: 1 + (stream << 32 | unit); 0: none. A damaged unit
  // is not updated.
  std::atomic<std::uint64_t> fault{0};

  std::uint64_t units() const noexcept { return (elements + kUnitElements - 1) / kUnitElements; }
  // For WorkerPool::for_units: `context` is the pass.
  static void run_unit(void* context, std::uint64_t unit) noexcept;

  optimizer_cpu::StoredMoment stored_moment(std::uint32_t which,
                                            std::uint64_t first) const noexcept;
  // visit(begin, count, first element in its parameter, step) for each stretch of elements [first,
  // first + count) that has a gradient.
  template <class Visit>
  void each_update(std::uint64_t first, std::uint64_t count, Visit visit) const {
    const std::uint64_t end = first + count;
    for (const partition::Segment& segment : segments) {
      if (segment.first_element >= end) break;
      const std::uint64_t begin = std::max(first, segment.first_element);
      const std::uint64_t stop = std::min(end, segment.first_element + segment.elements);
      if (begin >= stop || received[segment.parameter] == 0) continue;
      visit(begin, stop - begin,
            first_element + begin - parameters[segment.parameter].first_element,
            steps[segment.parameter]);
    }
  }
  // Where the tile keeps these elements. `first` is a multiple of kScaleBlock.
  optimizer_cpu::UpdateSpan span_of(std::uint64_t first, std::uint64_t count) const noexcept;

 private:
  // Bytes of a stream that a unit covers.
  std::span<std::byte> bytes_of(const PassStream& stream, std::uint64_t unit) const noexcept;
  bool verify_unit(std::uint64_t unit) noexcept;
  void initialise_unit(std::uint64_t first, std::uint64_t count) noexcept;
  void update_unit(std::uint64_t first, std::uint64_t count) noexcept;
  void copy_weight(std::uint64_t first, std::uint64_t count) const noexcept;
  void seal_unit(std::uint64_t unit) noexcept;
};
}  // namespace headrace::engine
