// SPDX-License-Identifier: Apache-2.0
// update_span.hpp: describes an update to the CPU's kernels (kernels.hpp) and to a device's
// (device/span_updates.hpp).
#pragma once
#include <cstdint>

#include "base/sizes.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/tensor.hpp"

namespace headrace::kernels {
using base::kScaleElements;

enum class MasterKind : std::uint8_t {
  kSplitResidual,  // bf16 weight + u16 residual (number_formats.hpp)
  kF32,            // bf16 weight, rounded to nearest even from an f32 master
  kWeightItself,   // f32 weight
  kF32OfF16,       // fp16 weight, rounded to nearest even from an f32 master
};
constexpr std::uint32_t weight_bytes(MasterKind kind) {
  return kind == MasterKind::kWeightItself ? 4 : 2;
}
constexpr std::uint32_t master_bytes(MasterKind kind) {
  if (kind == MasterKind::kWeightItself) return 0;
  return kind == MasterKind::kSplitResidual ? 2 : 4;
}

// The arithmetic of an update. The constants determine whether kAdam uses L2 or decoupled decay,
// and whether it corrects bias.
enum class Arithmetic : std::uint8_t { kAdam, kAdagrad, kLion, kMomentum, kPlain };
inline constexpr std::uint32_t kMaxMoments = 2;
constexpr std::uint32_t moments(Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kAdam) return 2;
  return arithmetic == Arithmetic::kPlain ? 0 : 1;
}
// In Adam and Adagrad, the last moment is a sum of squares: never negative.
constexpr bool is_square(Arithmetic arithmetic, std::uint32_t moment) {
  return arithmetic == Arithmetic::kAdagrad || (arithmetic == Arithmetic::kAdam && moment == 1);
}

// Bytes of an element, without its share of a scale (update_element.hpp).
constexpr std::uint32_t moment_bytes(MomentCodec codec) {
  switch (codec) {
    case MomentCodec::kF32:
      return 4;
    case MomentCodec::kBf16:
      return 2;
    case MomentCodec::kBlock8:
      break;
  }
  return 1;
}
// Whether each kScaleElements elements of a moment share a scale.
constexpr bool has_scales(MomentCodec codec) { return codec == MomentCodec::kBlock8; }

// The constants of a step for one hyperparameter set at step count t >= 1, rounded to f32 once in
// optimizer_cpu::make_update_step(). The arithmetic determines which fields are read.
struct UpdateStep {
  Arithmetic arithmetic = Arithmetic::kAdam;
  bool nesterov = false;      // kMomentum
  float gradient_factor = 1;  // gradient_scale * clip factor; negative: maximize
  float l2 = 0;               // weight decay added to the gradient; 0: none
  float decay_factor = 1;     // 1 - lr * weight_decay, decoupled
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float step_size = 0;           // lr, with the first moment's bias correction
  float inverse_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float lookahead = 0;           // kMomentum: beta1 with Nesterov momentum, else 0
  std::uint64_t random_key = 0;  // for stochastic rounding; random_bits.hpp
  friend bool operator==(const UpdateStep&, const UpdateStep&) = default;
};
// The arrays of an update (update_element.hpp). They need only the alignment of their elements.
struct UpdateSpan {
  std::uint64_t elements = 0;
  MasterKind kind = MasterKind::kSplitResidual;
  MomentCodec codec = MomentCodec::kF32;
  DType gradient_dtype = DType::kBf16;
  // The position in its parameter of the span's first element, which random bits and scales depend
  // on. With scales it is a multiple of kScaleElements.
  std::uint64_t first_element = 0;
  void* weight = nullptr;                        // written; read if it is (part of) the master
  void* master = nullptr;                        // u16 residual, f32, or null
  void* moment[kMaxMoments] = {};                // as many as the arithmetic uses
  std::uint8_t* moment_scale[kMaxMoments] = {};  // one per kScaleElements elements
  const void* gradient = nullptr;
};

// Elements [first, first + elements) of `whole`, whose arrays may be null. If there are scales,
// `first` is a multiple of kScaleElements.
UpdateSpan part_of(const UpdateSpan& whole, std::uint64_t first, std::uint64_t elements) noexcept;
}  // namespace headrace::kernels
