// SPDX-License-Identifier: Apache-2.0
#include "collective/rank_sums.hpp"

#include <algorithm>

#include "kernels/float_mode.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::collective {
namespace {
constexpr std::uint64_t kStrip = 1024;

template <class Element>
[[gnu::noinline]] void sum_typed(std::span<const void* const> parts, std::uint64_t elements,
                                 Element* target) noexcept {
  float sum[kStrip];
  for (std::uint64_t done = 0; done < elements; done += kStrip) {
    const std::uint64_t strip = std::min(kStrip, elements - done);
    const auto* const first = static_cast<const Element*>(parts[0]) + done;
    for (std::uint64_t i = 0; i < strip; ++i) sum[i] = kernels::widen(first[i]);
    for (const void* part : parts.subspan(1)) {
      const auto* const next = static_cast<const Element*>(part) + done;
      for (std::uint64_t i = 0; i < strip; ++i) sum[i] += kernels::widen(next[i]);
    }
    for (std::uint64_t i = 0; i < strip; ++i) kernels::round_to(target[done + i], sum[i]);
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
  const kernels::DefaultFloatMode mode;
  if (dtype == DType::kF32) {
    sum_typed(parts, elements, static_cast<float*>(target));
  } else if (dtype == DType::kF16) {
    sum_typed(parts, elements, static_cast<kernels::Half*>(target));
  } else {
    sum_typed(parts, elements, static_cast<kernels::Bfloat*>(target));
  }
}

void sum_ranks(std::span<const double* const> parts, std::uint64_t elements,
               double* target) noexcept {
  const kernels::DefaultFloatMode mode;
  sum_doubles(parts, elements, target);
}
}  // namespace headrace::collective
