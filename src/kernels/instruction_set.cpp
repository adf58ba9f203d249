// SPDX-License-Identifier: Apache-2.0
#include "kernels/instruction_set.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "kernels/kernels.hpp"

namespace headrace::kernels {
namespace {
bool runs_scalar() noexcept { return true; }
#if defined(__x86_64__)
bool converts_f16() noexcept {  // __builtin_cpu_supports() of clang 14 knows no "f16c"
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool runs_avx2() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_f16();
}
bool runs_avx512() noexcept {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool runs_avx2() noexcept { return false; }
bool runs_avx512() noexcept { return false; }
constexpr auto* avx2_kernels = scalar_kernels;
constexpr auto* avx512_kernels = scalar_kernels;
#endif

struct Row {
  Simd set;
  bool (*runs)() noexcept;
  const Kernels& (*kernels)() noexcept;
};
constexpr std::array kRows = {
    // The best first.
    Row{Simd::kAvx512, runs_avx512, avx512_kernels},
    Row{Simd::kAvx2, runs_avx2, avx2_kernels},
    Row{Simd::kScalar, runs_scalar, scalar_kernels},
};

const Row* row_called(std::string_view word) noexcept {
  for (const Row& row : kRows) {
    if (word == name_of(row.set)) return &row;
  }
  return nullptr;
}
const Row* row_of(Simd set) noexcept {
  for (const Row& row : kRows) {
    if (row.set == set) return &row;
  }
  return nullptr;
}
Simd best_here() noexcept {
  for (const Row& row : kRows) {
    if (row.runs()) return row.set;
  }
  return Simd::kScalar;
}
std::string_view forced_word() noexcept {
  const char* const word = std::getenv("HEADRACE_SIMD");
  return word == nullptr ? "" : word;
}

[[noreturn]] void refuse_word(std::string_view word) {
  std::array<std::string_view, kRows.size()> words;
  std::string all;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = name_of(kRows[kRows.size() - 1 - i].set);
    all += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + std::string(words[i]);
  }
  const std::string_view near = base::nearest_word(word, words);
  throw Error(Code::kSettings,
              "HEADRACE_SIMD is '" + base::one_line(word) +
                  "', which names no instruction set: no update kernel was chosen; set it to " +
                  (near.empty() ? all : std::string(near)) + ", or unset it");
}
}  // namespace

bool runs_here(Simd set) noexcept {
  const Row* const row = row_of(set);
  return row != nullptr && row->runs();
}

std::optional<Simd> forced_instruction_set() {
  const std::string_view word = forced_word();
  if (word.empty()) return std::nullopt;
  const Row* const row = row_called(word);
  if (row == nullptr) refuse_word(word);
  if (row->runs()) return row->set;
  throw Error(Code::kUnsupported,
              "HEADRACE_SIMD asks for " + std::string(word) +
                  ", which this CPU lacks: no update kernel can run; unset HEADRACE_SIMD to use "
                  "the best one this CPU has");
}

Simd choose_instruction_set() {
  const std::optional<Simd> forced = forced_instruction_set();
  return forced ? *forced : best_here();
}

Simd usable_instruction_set() noexcept {
  const Row* const row = row_called(forced_word());
  return row != nullptr && row->runs() ? row->set : best_here();
}

const Kernels& kernels_of(Simd set) noexcept { return row_of(set)->kernels(); }

const HashKernels& hash_kernels_of(Simd set) noexcept { return *kernels_of(set).hash; }
}  // namespace headrace::kernels
