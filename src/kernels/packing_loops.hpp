// SPDX-License-Identifier: Apache-2.0
// packing_loops.hpp: packed_values.hpp as plain loops over blocks, compiled once per instruction
// set. Everything has internal linkage, for the reason given in gradient_loops.hpp.
#pragma once
#include <cstdint>

#include "kernels/float_mode.hpp"
#include "kernels/packed_values.hpp"

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see above
inline std::uint32_t largest_bits(const float* __restrict values, std::uint64_t elements) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = as_bits(values[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

inline void pack_int8(const float* __restrict values, std::uint8_t* __restrict codes,
                      std::uint64_t elements, float inverse, std::int32_t largest) {
  for (std::uint64_t i = 0; i < elements; ++i)
    codes[i] = static_cast<std::uint8_t>(int8_code(values[i], inverse, largest));
}

inline void pack_int4(const float* __restrict values, std::uint8_t* __restrict codes,
                      std::uint64_t elements, float inverse, std::int32_t largest, RandomKeys keys,
                      std::uint32_t in_block) {
  alignas(64) std::uint32_t halves[kScaleElements + 1];
  for (std::uint32_t i = 0; i < elements; ++i) {
    const std::uint32_t random = random_bits(keys, in_block + i) & 0xffffu;
    halves[i] = static_cast<std::uint32_t>(int4_code(values[i], inverse, largest, random) + 8);
  }
  halves[elements] = 8;
  for (std::uint64_t i = 0; i < (elements + 1) / 2; ++i)
    codes[i] = static_cast<std::uint8_t>(halves[2 * i] | halves[2 * i + 1] << 4);
}

template <class Value>
[[gnu::noinline]] void pack_values(const PackWork& work) noexcept {
  alignas(64) float values[kScaleElements];
  const auto* const source = static_cast<const Value*>(work.values);
  for (std::uint64_t at = 0, block = 0; at < work.elements; at += kScaleElements, ++block) {
    const std::uint64_t left = work.elements - at;
    const std::uint64_t elements = left < kScaleElements ? left : kScaleElements;
    for (std::uint64_t i = 0; i < elements; ++i) values[i] = widen(source[at + i]);
    const std::uint32_t scale =
        packed_scale(work.packing, work.dtype, largest_bits(values, elements));
    work.scales[block] = static_cast<std::uint8_t>(scale);
    std::uint8_t* const codes = work.codes + code_bytes(work.packing, at);
    if (scale == kPackedNan) {
      __builtin_memset(codes, 0, code_bytes(work.packing, elements));
      continue;
    }
    const float inverse = packed_inverse(scale);
    const std::int32_t largest = largest_code(work.packing, work.dtype, scale);
    if (work.packing == Packing::kInt8) {
      pack_int8(values, codes, elements, inverse, largest);
    } else {
      const std::uint64_t element = work.first_element + at;
      pack_int4(values, codes, elements, inverse, largest, random_keys(work.random_key, element),
                static_cast<std::uint32_t>(element % kBlockElements));
    }
  }
}

template <class Value>
[[gnu::noinline]] void unpack_values(const PackWork& work) noexcept {
  auto* const target = static_cast<Value*>(work.values);
  for (std::uint64_t at = 0, block = 0; at < work.elements; at += kScaleElements, ++block) {
    const std::uint64_t left = work.elements - at;
    const std::uint64_t elements = left < kScaleElements ? left : kScaleElements;
    const std::uint32_t scale = work.scales[block];
    const std::uint8_t* const codes = work.codes + code_bytes(work.packing, at);
    if (work.packing == Packing::kInt8) {
      for (std::uint64_t i = 0; i < elements; ++i)
        round_to(target[at + i], unpacked(int8_of(codes[i]), scale));
    } else {
      for (std::uint64_t i = 0; i < elements; ++i)
        round_to(target[at + i], unpacked(int4_of(codes[i / 2], i), scale));
    }
  }
}

inline void pack_work(const PackWork& work) noexcept {
  const DefaultFloatMode mode;
  if (work.dtype == DType::kF32) return pack_values<float>(work);
  if (work.dtype == DType::kF16) return pack_values<Half>(work);
  pack_values<Bfloat>(work);
}
inline void unpack_work(const PackWork& work) noexcept {
  const DefaultFloatMode mode;
  if (work.dtype == DType::kF32) return unpack_values<float>(work);
  if (work.dtype == DType::kF16) return unpack_values<Half>(work);
  unpack_values<Bfloat>(work);
}
}  // namespace
}  // namespace headrace::kernels
