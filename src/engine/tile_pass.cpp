// SPDX-License-Identifier: Apache-2.0
#include "engine/tile_pass.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/hash.hpp"
#include "optimizer_cpu/span_parts.hpp"

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
  optimizer_cpu::reset_state(arithmetic, span_of(first, count));
}

optimizer_cpu::UpdateSpan TilePass::span_of(std::uint64_t first,
                                            std::uint64_t count) const noexcept {
  optimizer_cpu::UpdateSpan whole;
  whole.kind = kind;
  whole.codec = codec;
  whole.gradient_dtype = gradient_dtype;
  whole.weight = weight;
  whole.master = master;
  for (std::uint32_t k = 0; k < optimizer_cpu::kMaxMoments; ++k) {
    whole.moment[k] = moment[k];
    whole.moment_scale[k] = reinterpret_cast<std::uint8_t*>(moment_scale[k]);
  }
  whole.gradient = gradient;
  return optimizer_cpu::part_of(whole, first, count);
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
  each_update(first, count,
              [&](std::uint64_t begin, std::uint64_t elements, std::uint64_t in_parameter,
                  const optimizer_cpu::UpdateStep& step) {
                optimizer_cpu::UpdateSpan span = span_of(begin, elements);
                span.first_element = in_parameter;
                update(span, step);
              });
}

void TilePass::copy_weight(std::uint64_t first, std::uint64_t count) const noexcept {
  if (weight_copy == nullptr) return;
  const std::uint64_t at = first * weight_bytes_per_element;
  std::memcpy(weight_copy + at, weight + at, count * weight_bytes_per_element);
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
    if (pass.work != PassWork::kSeal && !pass.verify_unit(unit)) return;
    if (pass.work == PassWork::kAll) {
      pass.update_unit(first, count);
      pass.copy_weight(first, count);
    }
  }
  if (pass.work != PassWork::kVerify) pass.seal_unit(unit);
  if (pass.busy_ns != nullptr) {
    pass.busy_ns->fetch_add(
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() - began).count()),
        std::memory_order_relaxed);
  }
}
}  // namespace headrace::engine
