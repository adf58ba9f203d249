// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/values.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/number_formats.hpp"
#include "optimizer_cpu/moment_codecs.hpp"

namespace headrace::tools {
namespace {
// Magnitudes from `least` to `most`, none of them denormal in any format here.
struct Spread {
  std::uint64_t seed;
  double least, most;
  bool is_signed;
};
constexpr Spread kWeightSpread{1, 5e-3, 5e-2, true};
constexpr Spread kGradientSpread{2, 2.5e-3, 1e-2, true};
constexpr Spread kMomentSpread{3, 1e-3, 1e-2, true};
constexpr Spread kSquareSpread{4, 6e-6, 1e-4, false};

std::vector<float> numbers(const Spread& spread, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = kernels::mix64(spread.seed, i);
    const double share = static_cast<double>(bits >> 12) * 0x1p-52;
    const double size = spread.least + share * (spread.most - spread.least);
    values[i] = static_cast<float>(spread.is_signed && (bits & 1) != 0 ? -size : size);
  }
  return values;
}

template <class T, class Of>
void write_each(const std::vector<float>& values, std::byte* out, const Of& of) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = of(values[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void write_floats(DType dtype, const std::vector<float>& values, std::byte* out) {
  if (dtype == DType::kBf16) return write_each<std::uint16_t>(values, out, kernels::f32_to_bf16);
  if (dtype == DType::kF16) return write_each<std::uint16_t>(values, out, kernels::f32_to_f16);
  write_each<float>(values, out, [](float value) { return value; });
}

DType dtype_of(MasterKind kind) {
  if (kind == MasterKind::kWeightItself) return DType::kF32;
  return kind == MasterKind::kF32OfF16 ? DType::kF16 : DType::kBf16;
}

void write_weight_or_master(const Stream& stream, const std::vector<float>& values,
                            std::byte* out) {
  const bool master = stream.role == Role::kMaster;
  if (stream.weight != MasterKind::kSplitResidual)
    return write_floats(master ? DType::kF32 : dtype_of(stream.weight), values, out);
  write_each<std::uint16_t>(values, out, [master](float value) {
    const kernels::SplitMaster split = kernels::split_master(value);
    return master ? split.residual : split.weight;
  });
}

void write_moment(const Stream& stream, const std::vector<float>& values, std::byte* out) {
  // The stream holds codes or scales; encoding makes both.
  std::vector<std::byte> codes(values.size() * sizeof(float));
  std::vector<std::uint8_t> scales(values.size() / base::kScaleElements);
  optimizer_cpu::encode_moment({.codec = stream.codec,
                                .square = stream.square,
                                .index = stream.square ? 1u : 0u,
                                .data = codes.data(),
                                .scale = scales.data()},
                               optimizer_cpu::random_key(1, 0, 999), values.data(), values.size());
  const void* const from =
      stream.role == Role::kScale ? static_cast<const void*>(scales.data()) : codes.data();
  std::memcpy(out, from, stream.bytes(values.size()));
}
}  // namespace

void write_values(const Stream& stream, std::uint64_t elements, std::byte* out) {
  switch (stream.role) {
    case Role::kWeight:
    case Role::kMaster:
      return write_weight_or_master(stream, numbers(kWeightSpread, elements), out);
    case Role::kMoment:
    case Role::kScale:
      return write_moment(stream, numbers(stream.square ? kSquareSpread : kMomentSpread, elements),
                          out);
    case Role::kGradient:
      return write_floats(stream.gradient, numbers(kGradientSpread, elements), out);
  }
}

void read_weights(MasterKind kind, const std::byte* weights, std::uint64_t elements, float* out) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (kind == MasterKind::kWeightItself) {
      std::memcpy(&out[i], weights + i * sizeof(float), sizeof(float));
      continue;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, weights + i * sizeof(bits), sizeof(bits));
    out[i] = kind == MasterKind::kF32OfF16 ? kernels::f16_to_f32(bits) : kernels::bf16_to_f32(bits);
  }
}
}  // namespace headrace::tools
