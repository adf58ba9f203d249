// SPDX-License-Identifier: Apache-2.0
// bf16_support_test: on which CPUs the reference trainer multiplies in bf16.
#include "bf16_support.hpp"

#include <gtest/gtest.h>

namespace train_gpt {
namespace {
const CpuFacts kIceLake{.vendor = "GenuineIntel", .flags = {"avx512f", "avx512_vnni"}};
const CpuFacts kWithoutAmx{.vendor = "GenuineIntel", .flags = {"avx512f", "avx512_bf16"}};
const CpuFacts kSapphireRapids{.vendor = "GenuineIntel",
                               .flags = {"avx512f", "avx512_bf16", "amx_bf16", "amx_tile"}};
const CpuFacts kZen4{.vendor = "AuthenticAMD", .flags = {"avx512f", "avx512_bf16"}};

TEST(Bf16Support, IsWhatTheCpuHasOfAmxOrOfAmdsAvx512) {
  EXPECT_FALSE(bf16_support(kIceLake, {""}, "AVX512").fast);
  EXPECT_FALSE(bf16_support(kWithoutAmx, {""}, "AVX512").fast);
  EXPECT_TRUE(bf16_support(kSapphireRapids, {""}, "AVX512").fast);
  EXPECT_TRUE(bf16_support(kZen4, {""}, "AVX512").fast);
  EXPECT_FALSE(bf16_support({}, {""}, "AVX512").fast) << "no /proc/cpuinfo";
}

TEST(Bf16Support, IsNoneWhereOneDnnOrTorchMayNotUseIt) {
  for (const char* limit : {"SSE41", "AVX2", "avx2", "AVX512_CORE", "AVX512_CORE_VNNI"}) {
    EXPECT_FALSE(bf16_support(kSapphireRapids, {limit}, "AVX512").fast) << limit;
    EXPECT_FALSE(bf16_support(kZen4, {limit}, "AVX512").fast) << limit;
  }
  for (const char* limit : {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"})
    EXPECT_FALSE(bf16_support(kSapphireRapids, {limit}, "AVX512").fast) << limit;
  EXPECT_TRUE(bf16_support(kZen4, {"AVX512_CORE_BF16"}, "AVX512").fast);
  for (const char* limit : {"ALL", "DEFAULT", "AVX512_CORE_AMX"})
    EXPECT_TRUE(bf16_support(kSapphireRapids, {limit}, "AVX512").fast) << limit;
  EXPECT_FALSE(bf16_support(kSapphireRapids, {""}, "AVX2").fast);
  EXPECT_FALSE(bf16_support(kSapphireRapids, {""}, "DEFAULT").fast);
}

TEST(Bf16Support, SaysWhy) {
  EXPECT_EQ(bf16_support(kIceLake, {""}, "AVX512").reason,
            "the CPU lacks amx_bf16 and avx512_bf16");
  EXPECT_EQ(bf16_support(kZen4, {""}, "AVX512").reason, "the CPU has avx512_bf16");
  EXPECT_EQ(bf16_support(kZen4, {"AVX2"}, "AVX512").reason,
            "ONEDNN_MAX_CPU_ISA=AVX2 leaves out avx512_bf16");
  EXPECT_EQ(
      bf16_support(kSapphireRapids, {"AVX512_CORE_BF16", "DNNL_MAX_CPU_ISA"}, "AVX512").reason,
      "DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 leaves out amx_bf16");
  EXPECT_EQ(bf16_support(kZen4, {}, "AVX2").reason,
            "ATEN_CPU_CAPABILITY keeps torch's attention from AVX-512");
}

TEST(Bf16Support, FailsWithAmxWhereAttentionHasNoAvx512) {
  EXPECT_FALSE(bf16_support(kSapphireRapids, {}, "AVX2").works);
  EXPECT_TRUE(bf16_support(kSapphireRapids, {}, "AVX512").works);
  EXPECT_TRUE(bf16_support(kSapphireRapids, {"AVX512_CORE"}, "AVX2").works);
  EXPECT_TRUE(bf16_support(kZen4, {}, "AVX2").works);
  EXPECT_TRUE(bf16_support(kWithoutAmx, {}, "AVX2").works);
}
}  // namespace
}  // namespace train_gpt
