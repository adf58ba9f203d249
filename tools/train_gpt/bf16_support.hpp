// SPDX-License-Identifier: Apache-2.0
// bf16_support.hpp: whether this CPU multiplies bf16 fast, without asking torch.
#pragma once
#include <string>
#include <string_view>

#include "machine/cpu_facts.hpp"

namespace train_gpt {
using headrace::tools::CpuFacts;

// LibTorch multiplies bf16 on every CPU, and on most of them f32 faster. Measured with train_gpt:
// bf16 takes 2.7 times as long on a CPU with AVX-512 alone, and 1.4 times as long on an Intel CPU
// with avx512_bf16 and no AMX, whose avx512_bf16 multiplies no more numbers a cycle than f32's
// units do. What decides is a fact, not a measurement: two runs on one machine have to compute the
// same way to give the same bits.
struct Bf16Support {
  bool fast = false;
  std::string reason;  // "the CPU has amx_bf16"; "the CPU lacks amx_bf16"
  bool works = true;   // false: LibTorch 2.11 fails in it
};

// The limit that LibTorch's library of products obeys. Empty: none.
struct OneDnnLimit {
  std::string_view value, name = "ONEDNN_MAX_CPU_ISA";
};
//   torch_level  what torch's own loops may use: "AVX512", "AVX2", "DEFAULT"
Bf16Support bf16_support(const CpuFacts& cpu, const OneDnnLimit& limit,
                         std::string_view torch_level);
// Of this machine and this process's environment.
Bf16Support bf16_support_here(std::string_view torch_level);
}  // namespace train_gpt
