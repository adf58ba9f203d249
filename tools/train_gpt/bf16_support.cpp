// SPDX-License-Identifier: Apache-2.0
#include "bf16_support.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <initializer_list>

namespace train_gpt {
namespace {
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// The instructions that ONEDNN_MAX_CPU_ISA allows.
struct Allowed {
  bool avx512_bf16 = true, amx = true;
};
Allowed allowed_by(std::string_view limit) {
  std::string level(limit);
  std::ranges::transform(level, level.begin(), [](unsigned char c) { return std::toupper(c); });
  if (is_one_of(level, {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE",
                        "AVX512_CORE_VNNI"}))
    return {false, false};
  return {true, !is_one_of(level, {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"})};
}

// DNNL_ is its older name. The newer one wins where both are set.
OneDnnLimit onednn_limit() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      return {value, name};
  }
  return {};
}
}  // namespace

Bf16Support bf16_support(const CpuFacts& cpu, const OneDnnLimit& limit, std::string_view level) {
  const bool amx = cpu.has("amx_bf16"), dot = cpu.has("avx512_bf16");
  // AMD's multiply two bf16 where their units multiply one f32.
  const bool fast_dot = dot && cpu.vendor == "AuthenticAMD";
  if (!amx && !fast_dot) {
    return {false, dot ? "the CPU lacks amx_bf16, and its avx512_bf16 is no faster than f32"
                       : "the CPU lacks amx_bf16 and avx512_bf16"};
  }
  const Allowed allowed = allowed_by(limit.value);
  const bool amx_serves = amx && allowed.amx;
  // Attention is computed by torch's own loops, which pack for AMX with AVX-512 alone.
  if (!level.starts_with("AVX512"))
    return {false, "ATEN_CPU_CAPABILITY keeps torch's attention from AVX-512", !amx_serves};
  if (amx_serves) return {true, "the CPU has amx_bf16"};
  if (fast_dot && allowed.avx512_bf16) return {true, "the CPU has avx512_bf16"};
  return {false, std::string(limit.name) + "=" + std::string(limit.value) + " leaves out " +
                     (amx ? "amx_bf16" : "avx512_bf16")};
}

Bf16Support bf16_support_here(std::string_view level) {
  return bf16_support(headrace::tools::cpu_facts(), onednn_limit(), level);
}
}  // namespace train_gpt
