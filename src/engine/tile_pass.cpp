// SPDX-License-Identifier: Apache-2.0
#include "engine/tile_pass.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/hash.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace::engine {
std::span<std::byte> TilePass::bytes_of(const PassStream& stream,
                                        std::uint64_t unit) const noexcept {
  const auto bytes = [&](std::uint64_t elements) {
    return elements / optimizer_cpu::kScaleBlock * stream.bytes_per_block;
  };
  const std::uint64_t first = unit * kUnitElements;
  const std::uint64_t end = std::min(first + kUnitElements, elements);
  return {stream.data + bytes(first), bytes(end) - bytes(first)};
}

bool TilePass::verify_unit(std::uint64_t unit) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (!stream.verify) continue;
    if (base::xxh3_64(bytes_of(stream, unit), stream.verify_seed) == stream.checksums[unit])
      continue;
    std::uint64_t none = 0;
    fault.compare_exchange_strong(none, 1 + ((std::uint64_t{s} << 32) | unit));
    return false;
  }
  return true;
}

void TilePass::initialise_unit(std::uint64_t first, std::uint64_t count) noexcept {
  std::byte* const out = weight + first * weight_bytes_per_element;
  const std::byte* const in = initial_weight + first * weight_bytes_per_element;
  if (out != in) std::memcpy(out, in, count * weight_bytes_per_element);
  if (!has_state) return;  // the weight alone
  for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
    const std::uint32_t bytes = optimizer_cpu::moment_bytes(codec);
    std::memset(moment[k] + first * bytes, 0, count * bytes);
    if (moment_scale[k] == nullptr) continue;
    const std::uint64_t block = first / optimizer_cpu::kScaleBlock;
    std::memset(moment_scale[k] + block, 0, count / optimizer_cpu::kScaleBlock);
  }
  std::byte* const masters =
      master == nullptr ? nullptr : master + first * optimizer_cpu::master_bytes(kind);
  optimizer_cpu::reset_master(kind, out, masters, count);
}

optimizer_cpu::UpdateSpan TilePass::span_of(std::uint64_t first,
                                            std::uint64_t count) const noexcept {
  optimizer_cpu::UpdateSpan span;
  span.elements = count;
  span.kind = kind;
  span.codec = codec;
  span.gradient_dtype = gradient_dtype;
  span.weight = weight + first * weight_bytes_per_element;
  span.master = master == nullptr ? nullptr : master + first * optimizer_cpu::master_bytes(kind);
  for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
    span.moment[k] = moment[k] + first * optimizer_cpu::moment_bytes(codec);
    if (moment_scale[k] == nullptr) continue;
    span.moment_scale[k] =
        reinterpret_cast<std::uint8_t*>(moment_scale[k]) + first / optimizer_cpu::kScaleBlock;
  }
  return span;
}

// `first` as an element of the tile: the random bits of a value that is loaded hang on its place.
optimizer_cpu::StoredMoment TilePass::stored_moment(std::uint32_t which,
                                                    std::uint64_t first) const noexcept {
  const optimizer_cpu::UpdateSpan span = span_of(first, 0);
  return {.codec = codec,
          .square = is_square(arithmetic, which),
          .index = which,
          .first_element = first,
          .data = span.moment[which],
          .scale = span.moment_scale[which]};
}

void TilePass::update_unit(std::uint64_t first, std::uint64_t count) noexcept {
  const std::uint64_t end = first + count;
  for (const partition::Segment& segment : segments) {
    if (segment.first_element >= end) break;
    const std::uint64_t begin = std::max(first, segment.first_element);
    const std::uint64_t stop = std::min(end, segment.first_element + segment.elements);
    if (begin >= stop || received[segment.parameter] == 0) continue;
    optimizer_cpu::UpdateSpan span = span_of(begin, stop - begin);
    span.first_element = first_element + begin - parameters[segment.parameter].first_element;
    span.gradient = gradient + begin * size_bytes(gradient_dtype);
    update(span, steps[segment.parameter]);
  }
}

void TilePass::seal_unit(std::uint64_t unit) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (stream.seal)
      stream.checksums[unit] = base::xxh3_64(bytes_of(stream, unit), stream.seal_seed);
  }
}

void TilePass::run_unit(void* context, std::uint64_t unit) noexcept {
  auto& pass = *static_cast<TilePass*>(context);
  const std::uint64_t first = unit * kUnitElements;
  const std::uint64_t count = std::min(kUnitElements, pass.elements - first);
  const auto began = std::chrono::steady_clock::now();
  if (pass.initial_weight != nullptr) {
    pass.initialise_unit(first, count);
  } else {
    if (!pass.verify_unit(unit)) return;
    pass.update_unit(first, count);
  }
  pass.seal_unit(unit);
  if (pass.busy_ns != nullptr) {
    pass.busy_ns->fetch_add(
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() - began).count()),
        std::memory_order_relaxed);
  }
}
}  // namespace headrace::engine
