// SPDX-License-Identifier: Apache-2.0
// adamw.cpp: which kernel runs, the constants of a step, and masters in and out.
#include "optimizer_cpu/adamw.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error_text.hpp"
#include "base/float_mode.hpp"
#include "base/number_formats.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/adamw_targets.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::array kAllSets = {InstructionSet::kAvx512, InstructionSet::kAvx2,
                                 InstructionSet::kScalar};

InstructionSet forced_set(std::string_view word) {
  for (const InstructionSet set : kAllSets) {
    if (word != name_of(set)) continue;
    if (runs_here(set)) return set;
    throw Error(Code::kUnsupported,
                "HEADRACE_SIMD asks for " + std::string(word) +
                    ", which this CPU lacks: no update kernel can run; unset HEADRACE_SIMD to use "
                    "the best one this CPU has");
  }
  constexpr std::array<std::string_view, 3> words = {"scalar", "avx2", "avx512"};
  const std::string_view near = base::nearest_word(word, words);
  throw Error(Code::kSettings,
              "HEADRACE_SIMD is '" + std::string(word) +
                  "', which names no instruction set: no update kernel was chosen; set it to " +
                  (near.empty() ? "scalar, avx2 or avx512" : std::string(near)) + ", or unset it");
}

// By squaring, in plain multiplications: libm's pow() picks its own instructions, this is the same
// on every CPU.
double integer_power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

[[gnu::noinline]] AdamWStep step_constants(const Hyperparameters& values, double learning_rate,
                                           std::uint64_t t, double gradient_factor) {
  const double rate = learning_rate * values.learning_rate_scale;
  const double beta1 = values.beta1;
  const double beta2 = values.beta2;
  return {.decay_factor = static_cast<float>(1.0 - rate * values.weight_decay),
          .beta1 = values.beta1,
          .one_minus_beta1 = static_cast<float>(1.0 - beta1),
          .beta2 = values.beta2,
          .one_minus_beta2 = static_cast<float>(1.0 - beta2),
          .step_size = static_cast<float>(rate / (1.0 - integer_power(beta1, t))),
          .inverse_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - integer_power(beta2, t))),
          .eps = values.eps,
          .gradient_factor = static_cast<float>(gradient_factor)};
}
}  // namespace

const char* name_of(InstructionSet set) noexcept {
  switch (set) {
    case InstructionSet::kScalar:
      return "scalar";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool runs_here(InstructionSet set) noexcept {
  if (set == InstructionSet::kScalar) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == InstructionSet::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

InstructionSet choose_instruction_set() {
  const char* word = std::getenv("HEADRACE_SIMD");
  if (word != nullptr && *word != '\0') return forced_set(word);
  for (const InstructionSet set : kAllSets) {
    if (runs_here(set)) return set;
  }
  return InstructionSet::kScalar;
}

AdamWFunction adamw_function(InstructionSet set) noexcept {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return adamw_avx512;
  if (set == InstructionSet::kAvx2) return adamw_avx2;
#endif
  (void)set;
  return adamw_scalar;
}

AdamWStep make_adamw_step(const Hyperparameters& values, double learning_rate, std::uint64_t t,
                          double gradient_factor) {
  const base::DefaultFloatMode mode;
  return step_constants(values, learning_rate, t, gradient_factor);
}

void read_master(MasterKind kind, const void* weight, const void* master, std::uint64_t elements,
                 float* out) noexcept {
  if (elements == 0) return;
  if (kind != MasterKind::kSplitResidual) {
    std::memcpy(out, kind == MasterKind::kF32 ? master : weight, elements * sizeof(float));
    return;
  }
  const auto* high = static_cast<const std::uint16_t*>(weight);
  const auto* low = static_cast<const std::uint16_t*>(master);
  for (std::uint64_t i = 0; i < elements; ++i) out[i] = base::join_master(high[i], low[i]);
}

void reset_master(MasterKind kind, const void* weight, void* master,
                  std::uint64_t elements) noexcept {
  if (elements == 0) return;
  if (kind == MasterKind::kSplitResidual) std::memset(master, 0, elements * sizeof(std::uint16_t));
  if (kind != MasterKind::kF32) return;
  const auto* from = static_cast<const std::uint16_t*>(weight);
  auto* to = static_cast<float*>(master);
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = base::bf16_to_f32(from[i]);
}

namespace {
// Bytes over bytes; whether one changed.
bool replace_bytes(const void* from, void* to, std::uint64_t size_bytes) noexcept {
  if (size_bytes == 0 || std::memcmp(from, to, size_bytes) == 0) return false;
  std::memcpy(to, from, size_bytes);
  return true;
}
}  // namespace

bool replace_masters(MasterKind kind, const float* from, void* weight, void* master,
                     std::uint64_t elements) noexcept {
  if (kind == MasterKind::kWeightItself)
    return replace_bytes(from, weight, elements * sizeof(float));
  auto* const high = static_cast<std::uint16_t*>(weight);
  std::uint32_t changed = 0;
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (kind == MasterKind::kSplitResidual) {
      auto* const low = static_cast<std::uint16_t*>(master);
      const base::SplitMaster split = base::split_master(from[i]);
      changed |= std::uint32_t{high[i]} ^ split.weight;
      changed |= std::uint32_t{low[i]} ^ split.residual;
      high[i] = split.weight;
      low[i] = split.residual;
    } else {
      auto* const whole = static_cast<std::uint32_t*>(master);
      std::uint32_t bits = std::bit_cast<std::uint32_t>(from[i]);
      if ((bits & 0x7fffffffu) > 0x7f800000u) bits = base::kCanonicalNan;
      const std::uint16_t rounded = base::f32_to_bf16(from[i]);
      changed |= whole[i] ^ bits;
      changed |= std::uint32_t{high[i]} ^ rounded;
      whole[i] = bits;
      high[i] = rounded;
    }
  }
  return changed != 0;
}

bool replace_weights(MasterKind kind, const void* from, void* weight, void* master,
                     std::uint64_t elements) noexcept {
  if (kind == MasterKind::kWeightItself)
    return replace_bytes(from, weight, elements * sizeof(float));
  const auto* const given = static_cast<const std::uint16_t*>(from);
  auto* const high = static_cast<std::uint16_t*>(weight);
  bool changed = false;
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (high[i] == given[i]) continue;
    changed = true;
    high[i] = given[i];
    const std::uint64_t master_bytes = kind == MasterKind::kF32 ? 4 : 2;
    reset_master(kind, high + i, static_cast<std::byte*>(master) + i * master_bytes, 1);
  }
  return changed;
}
}  // namespace headrace::optimizer_cpu
