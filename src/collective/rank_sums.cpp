// SPDX-License-Identifier: Apache-2.0
#include "collective/rank_sums.hpp"

#include <algorithm>
#include <bit>

#include "base/float_mode.hpp"
#include "base/number_formats.hpp"

namespace headrace::collective {
namespace {
constexpr std::uint64_t kStrip = 1024;

struct Half {
  std::uint16_t bits;
};
void load(const Half* from, std::uint64_t elements, float* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = base::f16_to_f32(from[i].bits);
}
void store(const float* from, std::uint64_t elements, Half* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i].bits = base::f32_to_f16(from[i]);
}
void load(const std::uint16_t* from, std::uint64_t elements, float* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = base::bf16_to_f32(from[i]);
}
void load(const float* from, std::uint64_t elements, float* to) { std::copy_n(from, elements, to); }
void store(const float* from, std::uint64_t elements, std::uint16_t* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = base::f32_to_bf16(from[i]);
}
void store(const float* from, std::uint64_t elements, float* to) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    to[i] = from[i] != from[i] ? std::bit_cast<float>(base::kCanonicalNan) : from[i];
  }
}

template <class Element>
[[gnu::noinline]] void sum_typed(std::span<const void* const> parts, std::uint64_t elements,
                                 Element* target) noexcept {
  float sum[kStrip];
  float next[kStrip];
  for (std::uint64_t done = 0; done < elements; done += kStrip) {
    const std::uint64_t strip = std::min(kStrip, elements - done);
    load(static_cast<const Element*>(parts[0]) + done, strip, sum);
    for (const void* part : parts.subspan(1)) {
      load(static_cast<const Element*>(part) + done, strip, next);
      for (std::uint64_t i = 0; i < strip; ++i) sum[i] += next[i];
    }
    store(sum, strip, target + done);
  }
}

[[gnu::noinline]] void sum_doubles(std::span<const double* const> parts, std::uint64_t elements,
                                   double* target) noexcept {
  for (std::uint64_t i = 0; i < elements; ++i) {
    double sum = parts[0][i];
    for (const double* part : parts.subspan(1)) sum += part[i];
    target[i] = sum;
  }
}
}  // namespace

void sum_ranks(std::span<const void* const> parts, DType dtype, std::uint64_t elements,
               void* target) noexcept {
  const base::DefaultFloatMode mode;
  if (dtype == DType::kF32) {
    sum_typed(parts, elements, static_cast<float*>(target));
  } else if (dtype == DType::kF16) {
    sum_typed(parts, elements, static_cast<Half*>(target));
  } else {
    sum_typed(parts, elements, static_cast<std::uint16_t*>(target));
  }
}

void sum_ranks(std::span<const double* const> parts, std::uint64_t elements,
               double* target) noexcept {
  const base::DefaultFloatMode mode;
  sum_doubles(parts, elements, target);
}
}  // namespace headrace::collective
