// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/instruction_set.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "settings/locate.hpp"

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
              "HEADRACE_SIMD is '" + settings::one_line(word) +
                  "', which names no instruction set: no update kernel was chosen; set it to " +
                  (near.empty() ? "scalar, avx2 or avx512" : std::string(near)) + ", or unset it");
}

#if defined(__x86_64__)
bool converts_f16() noexcept {  // __builtin_cpu_supports() of clang 14 knows no "f16c"
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif
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
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_f16();
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
}  // namespace headrace::optimizer_cpu
