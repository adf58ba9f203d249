// SPDX-License-Identifier: Apache-2.0
#include "kernels/update_span.hpp"

#include <cstddef>

namespace headrace::kernels {
UpdateSpan part_of(const UpdateSpan& whole, std::uint64_t first, std::uint64_t elements) noexcept {
  const auto moved = [first](void* array, std::uint64_t element_bytes) -> void* {
    return array == nullptr ? nullptr : static_cast<std::byte*>(array) + first * element_bytes;
  };
  UpdateSpan part = whole;
  part.elements = elements;
  part.first_element += first;
  part.weight = moved(whole.weight, weight_bytes(whole.kind));
  part.master = moved(whole.master, master_bytes(whole.kind));
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    part.moment[k] = moved(whole.moment[k], moment_bytes(whole.codec));
    if (whole.moment_scale[k] != nullptr) part.moment_scale[k] += first / kScaleElements;
  }
  if (whole.gradient != nullptr) {
    part.gradient =
        static_cast<const std::byte*>(whole.gradient) + first * size_bytes(whole.gradient_dtype);
  }
  return part;
}
}  // namespace headrace::kernels
