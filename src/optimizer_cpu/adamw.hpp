// SPDX-License-Identifier: Apache-2.0
// adamw.hpp: the AdamW update of a span of elements, the same bits on every instruction set.
//
// adamw_reference.cpp defines what is right, one element at a time; every other file gives its bits
// (0 ulp). All operations are single IEEE operations in a fixed order: fused multiply-adds are
// written as such, nothing is reassociated. Denormals are kept whatever the caller's MXCSR: the
// entry sets it and puts it back. NaN results are canonical.
#pragma once
#include <cstdint>
#include <string_view>

#include "headrace/optimizer.hpp"
#include "headrace/tensor.hpp"

namespace headrace::optimizer_cpu {
enum class InstructionSet { kScalar, kAvx2, kAvx512 };
const char* name_of(InstructionSet set) noexcept;
bool runs_here(InstructionSet set) noexcept;
// The best one this CPU has; HEADRACE_SIMD (scalar, avx2, avx512) forces another: throws
// headrace::Error kUnsupported when this CPU lacks it, kSettings for another word.
InstructionSet choose_instruction_set();

enum class MasterKind : std::uint8_t {
  kSplitResidual,  // weight bf16 + residual u16 (base/number_formats.hpp)
  kF32,            // weight bf16, rounded to nearest even from master f32
  kWeightItself,   // weight f32
};

// What one step means for one hyperparameter set at step count t >= 1, rounded to f32 once, here.
struct AdamWStep {
  float decay_factor;  // 1 - lr * weight_decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;           // lr / (1 - beta1^t)
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float gradient_factor;  // gradient_scale * clip factor
};
AdamWStep make_adamw_step(const Hyperparameters& values, double learning_rate, std::uint64_t t,
                          double gradient_factor);

// Elements i of the span:
//   g = gradient[i] * gradient_factor
//   p = master[i] * decay_factor
//   m = fma(one_minus_beta1, g, beta1 * m);  v = fma(one_minus_beta2 * g, g, beta2 * v)
//   p = fma(-step_size, m / fma(sqrt(v), inverse_sqrt_bias2, eps), p)
// then p is stored as `kind` says. No alignment beyond the element's own is asked.
struct AdamWSpan {
  std::uint64_t elements = 0;
  MasterKind kind = MasterKind::kSplitResidual;
  void* weight = nullptr;  // bf16 or f32; written, and read for kSplitResidual and kWeightItself
  void* master = nullptr;  // u16 residual, f32, or null
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kBf16;
};
using AdamWFunction = void (*)(const AdamWSpan& span, const AdamWStep& step) noexcept;
AdamWFunction adamw_function(InstructionSet set) noexcept;

// Master values of a span, f32, for export; and the reverse for load: weights from outside, master
// joined to them (split: residual 0; f32: the weight; weight itself: nothing to do).
void read_master(MasterKind kind, const void* weight, const void* master, std::uint64_t elements,
                 float* out) noexcept;
void reset_master(MasterKind kind, const void* weight, void* master,
                  std::uint64_t elements) noexcept;
// New values of a span, in place of what it has; whether a bit changed. Masters: weights follow as
// an update stores them, so read_master() gives `from` again; a NaN becomes the canonical one
// (weight itself: is kept as it is). Weights: one whose bits are new gets its master as
// reset_master() sets it, every other keeps its master.
bool replace_masters(MasterKind kind, const float* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;
bool replace_weights(MasterKind kind, const void* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;
}  // namespace headrace::optimizer_cpu
