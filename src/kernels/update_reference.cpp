// SPDX-License-Identifier: Apache-2.0
// update_reference.cpp: the definition, run over a span.
#include <algorithm>

#include "kernels/float_mode.hpp"
#include "kernels/kernels.hpp"
#include "kernels/update_element.hpp"

namespace headrace::kernels {
namespace {
[[gnu::noinline]] void update_scale_block(const UpdateSpan& span, const UpdateStep& step,
                                          std::uint64_t first, std::uint64_t end) {
  NewMoments fresh[kScaleElements];
  for (std::uint64_t i = first; i < end; ++i) fresh[i - first] = update_element(span, step, i);
  if (!has_scales(span.codec)) return;
  for (std::uint32_t k = 0; k < moments(step.arithmetic); ++k) {
    std::uint32_t largest = 0;
    for (std::uint64_t i = first; i < end; ++i)
      largest = std::max(largest, as_bits(fresh[i - first].value[k]) & 0x7fffffffu);
    const std::uint32_t scale = scale_of(largest);
    span.moment_scale[k][first / kScaleElements] = static_cast<std::uint8_t>(scale);
    for (std::uint64_t i = first; i < end; ++i)
      store_code(span, step, i, k, fresh[i - first].value[k], scale);
  }
}
}  // namespace

void update_reference(const UpdateSpan& span, const UpdateStep& step) noexcept {
  const DefaultFloatMode mode;
  for (std::uint64_t first = 0; first < span.elements; first += kScaleElements)
    update_scale_block(span, step, first, std::min(first + kScaleElements, span.elements));
}
}  // namespace headrace::kernels
