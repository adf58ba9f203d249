// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/masters.hpp"

#include <cstddef>
#include <cstring>

#include "base/units.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::optimizer_cpu {
namespace {
// A stream of its own, beside a weight of 16 bits.
bool is_f32(MasterKind kind) { return kind == MasterKind::kF32 || kind == MasterKind::kF32OfF16; }
}  // namespace

void read_master(MasterKind kind, const void* weight, const void* master, std::uint64_t elements,
                 float* out) noexcept {
  if (elements == 0) return;
  if (kind != MasterKind::kSplitResidual) {
    std::memcpy(out, kind == MasterKind::kWeightItself ? weight : master, elements * sizeof(float));
    return;
  }
  const auto* high = static_cast<const std::uint16_t*>(weight);
  const auto* low = static_cast<const std::uint16_t*>(master);
  for (std::uint64_t i = 0; i < elements; ++i) out[i] = kernels::join_master(high[i], low[i]);
}

void reset_master(MasterKind kind, const void* weight, void* master,
                  std::uint64_t elements) noexcept {
  if (elements == 0) return;
  if (kind == MasterKind::kSplitResidual) std::memset(master, 0, elements * sizeof(std::uint16_t));
  if (!is_f32(kind)) return;
  const auto* from = static_cast<const std::uint16_t*>(weight);
  auto* to = static_cast<float*>(master);
  for (std::uint64_t i = 0; i < elements; ++i) {
    to[i] = kind == MasterKind::kF32 ? kernels::bf16_to_f32(from[i]) : kernels::f16_to_f32(from[i]);
  }
}

namespace {
// Bytes over bytes; whether one changed.
bool replace_bytes(const void* from, void* to, std::uint64_t size_bytes) noexcept {
  if (size_bytes == 0 || std::memcmp(from, to, size_bytes) == 0) return false;
  std::memcpy(to, from, size_bytes);
  return true;
}
}  // namespace

bool replace_masters(MasterKind kind, const float* from, void* weight, void* master,
                     std::uint64_t elements) noexcept {
  if (kind == MasterKind::kWeightItself)
    return replace_bytes(from, weight, elements * sizeof(float));
  auto* const high = static_cast<std::uint16_t*>(weight);
  std::uint32_t changed = 0;
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (kind == MasterKind::kSplitResidual) {
      auto* const low = static_cast<std::uint16_t*>(master);
      const kernels::SplitMaster split = kernels::split_master(from[i]);
      changed |= std::uint32_t{high[i]} ^ split.weight;
      changed |= std::uint32_t{low[i]} ^ split.residual;
      high[i] = split.weight;
      low[i] = split.residual;
    } else {
      auto* const whole = static_cast<std::uint32_t*>(master);
      const std::uint32_t bits = kernels::canonical_bits(from[i]);
      const std::uint16_t rounded =
          kind == MasterKind::kF32 ? kernels::f32_to_bf16(from[i]) : kernels::f32_to_f16(from[i]);
      changed |= whole[i] ^ bits;
      changed |= std::uint32_t{high[i]} ^ rounded;
      whole[i] = bits;
      high[i] = rounded;
    }
  }
  return changed != 0;
}

bool replace_weights(MasterKind kind, const void* from, void* weight, void* master,
                     std::uint64_t elements) noexcept {
  if (kind == MasterKind::kWeightItself)
    return replace_bytes(from, weight, elements * sizeof(float));
  const auto* const given = static_cast<const std::uint16_t*>(from);
  auto* const high = static_cast<std::uint16_t*>(weight);
  bool changed = false;
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (high[i] == given[i]) continue;
    changed = true;
    high[i] = given[i];
    reset_master(kind, high + i, static_cast<std::byte*>(master) + i * master_bytes(kind), 1);
  }
  return changed;
}

void reset_state(Arithmetic arithmetic, const UpdateSpan& span) noexcept {
  for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
    std::memset(span.moment[k], 0, span.elements * moment_bytes(span.codec));
    if (span.moment_scale[k] != nullptr)
      std::memset(span.moment_scale[k], 0, base::ceil_div(span.elements, kScaleElements));
  }
  reset_master(span.kind, span.weight, span.master, span.elements);
}
}  // namespace headrace::optimizer_cpu
