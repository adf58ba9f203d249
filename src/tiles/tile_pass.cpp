// SPDX-License-Identifier: Apache-2.0
#include "tiles/tile_pass.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/hash.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace::tiles {
optimizer_cpu::UpdateSpan TileLayout::span_of(std::uint64_t first,
                                              std::uint64_t count) const noexcept {
  optimizer_cpu::UpdateSpan whole;
  whole.kind = kind;
  whole.codec = codec;
  whole.weight = weight;
  whole.master = master;
  for (std::uint32_t k = 0; k < optimizer_cpu::kMaxMoments; ++k) {
    whole.moment[k] = moment[k];
    whole.moment_scale[k] = reinterpret_cast<std::uint8_t*>(moment_scale[k]);
  }
  return optimizer_cpu::part_of(whole, first, count);
}

// `first` as an element of the tile: the random bits of a value that is loaded depend on its place.
optimizer_cpu::StoredMoment TileLayout::stored_moment(std::uint32_t which,
                                                      std::uint64_t first) const noexcept {
  const optimizer_cpu::UpdateSpan span = span_of(first, 0);
  return {.codec = codec,
          .square = is_square(arithmetic, which),
          .index = which,
          .first_element = first,
          .data = span.moment[which],
          .scale = span.moment_scale[which]};
}

std::byte* TileLayout::weight_at(std::uint64_t first) const noexcept {
  if (lent == nullptr) return weight + first * weight_bytes_per_element;
  const partition::Segment& segment = *std::ranges::find_if(
      segments, [&](const auto& one) { return first - one.first_element < one.elements; });
  const std::uint64_t in_parameter =
      first_element + first - parameters[segment.parameter].first_element;
  return lent->weights[segment.parameter] + in_parameter * weight_bytes_per_element;
}

optimizer_cpu::UpdateSpan TileUpdate::span_of(const TileLayout& tile, std::uint64_t first,
                                              std::uint64_t count) const noexcept {
  optimizer_cpu::UpdateSpan span = tile.span_of(first, count);
  span.gradient_dtype = gradient_dtype;
  if (gradient != nullptr) span.gradient = gradient + first * size_bytes(gradient_dtype);
  return span;
}

optimizer_cpu::UpdateSpan TileUpdate::span_of_parameter(const TileLayout& tile, std::uint64_t first,
                                                        std::uint64_t count,
                                                        std::uint32_t parameter,
                                                        std::uint64_t in_parameter) const noexcept {
  optimizer_cpu::UpdateSpan span = span_of(tile, first, count);
  span.first_element = in_parameter;
  if (tile.lent != nullptr) span.weight = tile.weight_at(first);
  if (gradient != nullptr) return span;
  const residency::LentGradient& lent = lent_gradients[parameter];
  span.gradient_dtype = lent.dtype;
  span.gradient = lent.values + in_parameter * size_bytes(lent.dtype);
  return span;
}

void initialise(const TileLayout& tile, const std::byte* initial_weight, std::uint64_t first,
                std::uint64_t count) noexcept {
  const std::uint64_t at = first * tile.weight_bytes_per_element;
  if (initial_weight != nullptr && tile.weight != initial_weight)
    std::memcpy(tile.weight + at, initial_weight + at, count * tile.weight_bytes_per_element);
  if (!tile.has_state) return;  // the weight alone
  optimizer_cpu::reset_state(tile.arithmetic, tile.span_of(first, count));
}

void update(const TileLayout& tile, const TileUpdate& with, std::uint64_t first,
            std::uint64_t count) noexcept {
  with.each(tile, first, count,
            [&](std::uint64_t begin, std::uint64_t elements, std::uint32_t parameter,
                std::uint64_t in_parameter) {
              with.update(with.span_of_parameter(tile, begin, elements, parameter, in_parameter),
                          with.steps[parameter]);
            });
  if (with.weight_copy == nullptr) return;
  const std::uint64_t at = first * tile.weight_bytes_per_element;
  std::memcpy(with.weight_copy + at, tile.weight + at, count * tile.weight_bytes_per_element);
}

std::span<std::byte> TilePass::bytes_of(const PassStream& stream,
                                        std::uint64_t chunk) const noexcept {
  const auto bytes = [&](std::uint64_t elements) {
    return elements / base::kScaleElements * stream.bytes_per_scale;
  };
  const std::uint64_t first = chunk * base::kChunkElements;
  const std::uint64_t end = std::min(first + base::kChunkElements, tile.elements);
  return {stream.data + bytes(first), bytes(end) - bytes(first)};
}

bool TilePass::any_verify() const noexcept {
  return std::ranges::any_of(std::span(streams, stream_count), &PassStream::verify);
}
bool TilePass::any_seal() const noexcept {
  return std::ranges::any_of(std::span(streams, stream_count), &PassStream::seal);
}

bool TilePass::verify(std::uint64_t chunk) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (!stream.verify) continue;
    if (kernels::xxh3_64(bytes_of(stream, chunk), stream.verify_seed) == stream.checksums[chunk])
      continue;
    std::uint64_t none = 0;
    fault.compare_exchange_strong(none, 1 + ((std::uint64_t{s} << 32) | chunk));
    return false;
  }
  return true;
}

void TilePass::seal(std::uint64_t chunk) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (stream.seal)
      stream.checksums[chunk] = kernels::xxh3_64(bytes_of(stream, chunk), stream.seal_seed);
  }
}

void TilePass::run_chunk(void* context, std::uint64_t chunk) noexcept {
  auto& pass = *static_cast<TilePass*>(context);
  const std::uint64_t first = chunk * base::kChunkElements;
  const std::uint64_t count = std::min(base::kChunkElements, pass.tile.elements - first);
  const auto began = std::chrono::steady_clock::now();
  if (pass.initialises) {
    initialise(pass.tile, pass.initial_weight, first, count);
  } else {
    if (pass.verifies && !pass.verify(chunk)) return;
    if (pass.update != nullptr) tiles::update(pass.tile, *pass.update, first, count);
  }
  if (pass.seals) pass.seal(chunk);
  if (pass.busy_ns != nullptr) {
    pass.busy_ns->fetch_add(
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() - began).count()),
        std::memory_order_relaxed);
  }
}
}  // namespace headrace::tiles
