// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/moment_codecs.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/float_mode.hpp"
#include "kernels/update_element.hpp"

namespace headrace::optimizer_cpu {
namespace {
[[gnu::noinline]] void decode_codes(const StoredMoment& moment, std::uint64_t elements,
                                    float* out) {
  const auto* const data = static_cast<const std::uint8_t*>(moment.data);
  for (std::uint64_t i = 0; i < elements; ++i)
    out[i] = kernels::decode_code(data[i], moment.square, moment.scale[i / kScaleElements]);
}

[[gnu::noinline]] void encode_codes(const StoredMoment& moment, std::uint64_t key,
                                    const float* values, std::uint64_t first, std::uint64_t end) {
  auto* const data = static_cast<std::uint8_t*>(moment.data);
  std::uint32_t largest = 0;
  for (std::uint64_t i = first; i < end; ++i)
    largest = std::max(largest, kernels::as_bits(values[i]) & 0x7fffffffu);
  const std::uint32_t scale = kernels::scale_of(largest);
  moment.scale[first / kScaleElements] = static_cast<std::uint8_t>(scale);
  for (std::uint64_t i = first; i < end; ++i) {
    const auto random = kernels::random_half(key, moment.first_element + i, moment.index);
    data[i] =
        static_cast<std::uint8_t>(kernels::encode_code(values[i], moment.square, scale, random));
  }
}
}  // namespace

void decode_moment(const StoredMoment& moment, std::uint64_t elements, float* out) noexcept {
  const kernels::DefaultFloatMode mode;
  if (elements == 0) return;
  switch (moment.codec) {
    case MomentCodec::kF32:
      std::memcpy(out, moment.data, elements * sizeof(float));
      return;
    case MomentCodec::kBf16: {
      const auto* const data = static_cast<const std::uint16_t*>(moment.data);
      for (std::uint64_t i = 0; i < elements; ++i) out[i] = kernels::bf16_to_f32(data[i]);
      return;
    }
    case MomentCodec::kBlock8:
      return decode_codes(moment, elements, out);
  }
}

void encode_moment(const StoredMoment& moment, std::uint64_t key, const float* values,
                   std::uint64_t elements) noexcept {
  const kernels::DefaultFloatMode mode;
  switch (moment.codec) {
    case MomentCodec::kF32: {
      auto* const data = static_cast<float*>(moment.data);
      for (std::uint64_t i = 0; i < elements; ++i) data[i] = kernels::canonical(values[i]);
      return;
    }
    case MomentCodec::kBf16: {
      auto* const data = static_cast<std::uint16_t*>(moment.data);
      for (std::uint64_t i = 0; i < elements; ++i) {
        const auto random = kernels::random_half(key, moment.first_element + i, moment.index);
        data[i] = kernels::stochastic_bf16(kernels::canonical(values[i]), random);
      }
      return;
    }
    case MomentCodec::kBlock8:
      for (std::uint64_t first = 0; first < elements; first += kScaleElements)
        encode_codes(moment, key, values, first, std::min(first + kScaleElements, elements));
      return;
  }
}
}  // namespace headrace::optimizer_cpu
