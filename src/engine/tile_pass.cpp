// SPDX-License-Identifier: Apache-2.0
#include "engine/tile_pass.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/hash.hpp"
#include "swap/record.hpp"

namespace headrace::engine {
namespace {
// Calls visit(chunk index, bytes) for each checksum chunk of the elements [first, first + count).
template <class Visit>
void for_chunks(const PassStream& stream, std::uint64_t first, std::uint64_t count, Visit visit) {
  const std::uint64_t begin = first * stream.bytes_per_element;
  const std::uint64_t end = begin + count * stream.bytes_per_element;
  for (std::uint64_t at = begin; at < end; at += swap::kChunkBytes) {
    const std::span<const std::byte> bytes(stream.data + at, std::min(swap::kChunkBytes, end - at));
    if (!visit(at / swap::kChunkBytes, bytes)) return;
  }
}
}  // namespace

bool TilePass::verify_unit(std::uint64_t first, std::uint64_t count) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (!stream.verify) continue;
    bool whole = true;
    for_chunks(stream, first, count, [&](std::uint64_t chunk, std::span<const std::byte> bytes) {
      whole = base::xxh3_64(bytes, stream.verify_seed) == stream.checksums[chunk];
      if (!whole) {
        std::uint64_t none = 0;
        fault.compare_exchange_strong(none, 1 + ((std::uint64_t{s} << 32) | chunk));
      }
      return whole;
    });
    if (!whole) return false;
  }
  return true;
}

void TilePass::initialise_unit(std::uint64_t first, std::uint64_t count) noexcept {
  std::byte* const out = weight + first * weight_bytes_per_element;
  const std::byte* const in = initial_weight + first * weight_bytes_per_element;
  if (out != in) std::memcpy(out, in, count * weight_bytes_per_element);
  if (exp_avg == nullptr) return;  // the weight alone
  std::memset(exp_avg + first * 4, 0, count * 4);
  std::memset(exp_avg_sq + first * 4, 0, count * 4);
  const std::uint32_t master_bytes = kind == optimizer_cpu::MasterKind::kF32 ? 4 : 2;
  optimizer_cpu::reset_master(kind, out,
                              master == nullptr ? nullptr : master + first * master_bytes, count);
}

void TilePass::update_unit(std::uint64_t first, std::uint64_t count) noexcept {
  const std::uint64_t end = first + count;
  const std::uint32_t gradient_bytes = size_bytes(gradient_dtype);
  const std::uint32_t master_bytes = kind == optimizer_cpu::MasterKind::kF32 ? 4 : 2;
  for (const partition::Segment& segment : segments) {
    if (segment.first_element >= end) break;
    const std::uint64_t begin = std::max(first, segment.first_element);
    const std::uint64_t stop = std::min(end, segment.first_element + segment.elements);
    if (begin >= stop || received[segment.parameter] == 0) continue;
    optimizer_cpu::AdamWSpan span;
    span.elements = stop - begin;
    span.kind = kind;
    span.weight = weight + begin * weight_bytes_per_element;
    span.master = master == nullptr ? nullptr : master + begin * master_bytes;
    span.exp_avg = reinterpret_cast<float*>(exp_avg) + begin;
    span.exp_avg_sq = reinterpret_cast<float*>(exp_avg_sq) + begin;
    span.gradient = gradient + begin * gradient_bytes;
    span.gradient_dtype = gradient_dtype;
    update(span, steps[segment.parameter]);
  }
}

void TilePass::seal_unit(std::uint64_t first, std::uint64_t count) noexcept {
  for (std::uint32_t s = 0; s < stream_count; ++s) {
    const PassStream& stream = streams[s];
    if (!stream.seal) continue;
    for_chunks(stream, first, count, [&](std::uint64_t chunk, std::span<const std::byte> bytes) {
      stream.checksums[chunk] = base::xxh3_64(bytes, stream.seal_seed);
      return true;
    });
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
    if (!pass.verify_unit(first, count)) return;
    pass.update_unit(first, count);
  }
  pass.seal_unit(first, count);
  if (pass.busy_ns != nullptr) {
    pass.busy_ns->fetch_add(
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() - began).count()),
        std::memory_order_relaxed);
  }
}
}  // namespace headrace::engine
