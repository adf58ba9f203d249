// SPDX-License-Identifier: Apache-2.0
// gradient_kernels.cpp: which of the gradient loops runs.
#include "device/gradient_kernels.hpp"

#include <cstdlib>
#include <string_view>

#include "device/gradient_targets.hpp"

namespace headrace::device {
namespace {
using AccumulateFunction = void (*)(const Accumulation&) noexcept;

// HEADRACE_SIMD bounds the choice. A word it does not know, or that this CPU lacks, is refused by
// the optimizer's choose_instruction_set(); the bits are the same either way.
AccumulateFunction choose() noexcept {
#if defined(__x86_64__)
  const char* text = std::getenv("HEADRACE_SIMD");
  const std::string_view word = text == nullptr ? "" : text;
  if (word == "scalar") return accumulate_baseline;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return accumulate_baseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 && word != "avx2" ? accumulate_avx512 : accumulate_avx2;
#else
  return accumulate_baseline;
#endif
}
}  // namespace

void accumulate_on_host(const Accumulation& work) noexcept {
  static const AccumulateFunction accumulate = choose();
  accumulate(work);
}

double tree_sum(std::span<const GradientPiece> pieces) noexcept {
  if (pieces.empty()) return 0;
  if (pieces.size() == 1) return pieces[0].sum_squares;
  const std::size_t half = (pieces.size() + 1) / 2;
  return tree_sum(pieces.first(half)) + tree_sum(pieces.subspan(half));
}
}  // namespace headrace::device
