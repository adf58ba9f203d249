// SPDX-License-Identifier: Apache-2.0
// state.hpp: weights, optimizer state and gradients in memory as the engine has it, as after some
// steps: no zeros, no denormals.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench_optimizer/cases.hpp"
#include "bench_optimizer/gang.hpp"
#include "pinned/arena.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::tools {
// All streams that any case has, each once. Every chunk begins with the same values.
class StateMemory {
 public:
  //   elements  a multiple of kScaleElements
  // Throws headrace::Error kOutOfBudget.
  StateMemory(std::vector<Stream> streams, std::uint64_t elements, Gang& gang,
              std::uint32_t threads);
  static std::uint64_t bytes_of(const std::vector<Stream>& streams, std::uint64_t elements);

  std::uint64_t elements() const noexcept { return elements_; }
  std::uint64_t chunks() const noexcept;
  std::byte* data(const Stream& stream) const;
  // The part of the stream that belongs to one chunk.
  std::span<std::byte> chunk(const Stream& stream, std::uint64_t chunk) const;

 private:
  std::vector<Stream> streams_;
  std::uint64_t elements_;
  pinned::Arena arena_;
  std::vector<std::byte*> begin_;  // per stream
};
// Of all cases, each once.
std::vector<Stream> streams_of(const std::vector<Case>& cases);

// The engine's pass of one case over all of the memory.
class UpdatePass {
 public:
  UpdatePass(const Case& of, const StateMemory& memory);
  UpdatePass(const UpdatePass&) = delete;
  UpdatePass& operator=(const UpdatePass&) = delete;

  // With checksums: those of what the streams hold now. Before run(), where another case may have
  // run.
  void prepare(Gang& gang);
  // Seconds.
  double run(Gang& gang);
  // Runs once, checks that something was written and that all of it is finite, and returns what
  // run() returned. Throws headrace::Error kCorrupt or kNotFinite.
  double run_checked(Gang& gang);

 private:
  void place_streams();
  void check_checksums() const;
  void check_finite() const;
  std::vector<std::byte> written_sample() const;

  const Case case_;
  const StateMemory& memory_;
  const partition::Segment segment_;
  const partition::Parameter parameter_;
  const std::uint8_t received_ = 1;
  const optimizer_cpu::UpdateStep step_;
  std::vector<std::uint64_t> checksums_;
  tiles::TileUpdate update_;
  tiles::TilePass pass_;
};
}  // namespace headrace::tools
