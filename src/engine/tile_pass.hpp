// SPDX-License-Identifier: Apache-2.0
// tile_pass.hpp: the one pass over a tile's bytes: verify, update, checksum, 131,072 elements at a
// time.
//
// A unit is what its checksums cover: 256 KiB of a 2-byte stream, twice that of a 4-byte one. Units
// are independent, so any thread may take any of them, in any order: the bits are the same.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "optimizer_cpu/adamw.hpp"
#include "partition/partition.hpp"

namespace headrace::engine {
inline constexpr std::uint64_t kUnitElements = 131072;

// One stream of the tile: the weight, or one of its state.
struct PassStream {
  std::byte* data = nullptr;
  std::uint32_t bytes_per_element = 0;
  // Checksums per 256 KiB, in the record's header or beside the weight. With verify the old ones
  // are compared first, with seal the new ones written over them.
  std::uint64_t* checksums = nullptr;
  bool verify = false;
  bool seal = false;
  std::uint64_t verify_seed = 0;
  std::uint64_t seal_seed = 0;
};

struct TilePass {
  std::uint64_t elements = 0;
  PassStream streams[5];
  std::uint32_t stream_count = 0;

  // The update; without segments nothing is updated.
  std::span<const partition::Segment> segments;
  const std::uint8_t* received = nullptr;           // per parameter: has it a gradient?
  const optimizer_cpu::AdamWStep* steps = nullptr;  // per parameter
  const std::byte* gradient = nullptr;              // of the tile's first element
  DType gradient_dtype = DType::kBf16;
  optimizer_cpu::AdamWFunction update = nullptr;

  // The first values: weights from here, moments zero, master from the weight. Instead of verify
  // and update.
  const std::byte* initial_weight = nullptr;

  optimizer_cpu::MasterKind kind = optimizer_cpu::MasterKind::kSplitResidual;
  std::byte* weight = nullptr;
  std::uint32_t weight_bytes_per_element = 2;
  std::byte* master = nullptr;
  std::byte* exp_avg = nullptr;
  std::byte* exp_avg_sq = nullptr;

  std::atomic<std::uint64_t>* busy_ns = nullptr;  // time spent is added, if given
  // The first stream and chunk found damaged: 1 + (stream << 32 | chunk); 0: none. A damaged unit
  // is not updated.
  std::atomic<std::uint64_t> fault{0};

  std::uint64_t units() const noexcept { return (elements + kUnitElements - 1) / kUnitElements; }
  // For WorkerPool::for_units: `context` is the pass.
  static void run_unit(void* context, std::uint64_t unit) noexcept;

 private:
  bool verify_unit(std::uint64_t first, std::uint64_t count) noexcept;
  void initialise_unit(std::uint64_t first, std::uint64_t count) noexcept;
  void update_unit(std::uint64_t first, std::uint64_t count) noexcept;
  void seal_unit(std::uint64_t first, std::uint64_t count) noexcept;
};
}  // namespace headrace::engine
