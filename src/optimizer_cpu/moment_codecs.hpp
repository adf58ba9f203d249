// SPDX-License-Identifier: Apache-2.0
// moment_codecs.hpp: converts between stored moments and values. kernels/update_element.hpp defines
// the stored bytes.
#pragma once
#include <cstdint>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// One stored moment of a span.
struct StoredMoment {
  MomentCodec codec = MomentCodec::kF32;
  bool square = false;
  std::uint32_t index = 0;          // 0 or 1: selects the half of the random bits
  std::uint64_t first_element = 0;  // as in UpdateSpan
  void* data = nullptr;
  std::uint8_t* scale = nullptr;  // kBlock8
};
void decode_moment(const StoredMoment& moment, std::uint64_t elements, float* out) noexcept;
// `key`: UpdateStep::random_key. NaNs are made canonical.
void encode_moment(const StoredMoment& moment, std::uint64_t key, const float* values,
                   std::uint64_t elements) noexcept;
}  // namespace headrace::optimizer_cpu
