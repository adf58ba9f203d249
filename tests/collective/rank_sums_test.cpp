// SPDX-License-Identifier: Apache-2.0
// rank_sums_test.cpp: sums over ranks against the definition, one element at a time.
#include "collective/rank_sums.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/number_formats.hpp"

namespace headrace::collective {
namespace {
constexpr std::uint64_t kSeed = 31;

TEST(RankSums, RoundOnceAfterAllRanksAtEveryLength) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (const std::uint64_t elements : {0, 1, 7, 1023, 1024, 1025, 5000, 5001}) {
    const bool f16 = elements % 2 == 1;
    const auto widen = f16 ? kernels::f16_to_f32 : kernels::bf16_to_f32;
    const auto narrow = f16 ? kernels::f32_to_f16 : kernels::f32_to_bf16;
    std::vector<std::vector<std::uint16_t>> parts(3, std::vector<std::uint16_t>(elements));
    for (auto& part : parts) {
      for (auto& value : part)
        value = static_cast<std::uint16_t>(random());  // any pattern, NaN and denormals too
    }
    std::vector<std::uint16_t> expected(elements);
    for (std::uint64_t i = 0; i < elements; ++i) {
      float sum = widen(parts[0][i]);
      sum += widen(parts[1][i]);
      sum += widen(parts[2][i]);
      expected[i] = narrow(sum);
    }
    const void* pointers[] = {parts[0].data(), parts[1].data(), parts[2].data()};
    // Onto one of them, as ranks do.
    sum_ranks(pointers, f16 ? DType::kF16 : DType::kBf16, elements, parts[1].data());
    ASSERT_EQ(parts[1], expected) << elements;
  }
}

TEST(RankSums, KeepF32InRankOrderAndNansInOneForm) {
  const std::vector<float> a = {1.0f, 1e-42f, std::bit_cast<float>(0xffa00001u)};
  const std::vector<float> b = {0x1p24f, 1e-42f, 1.0f};
  const std::vector<float> c = {-0x1p24f, 1e-42f, 1.0f};
  std::vector<float> sum(3);
  const void* pointers[] = {a.data(), b.data(), c.data()};
  sum_ranks(pointers, DType::kF32, 3, sum.data());
  EXPECT_EQ(sum[0], 0.0f);
  EXPECT_EQ(sum[1], 1e-42f + 1e-42f + 1e-42f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum[2]), kernels::kCanonicalNan);
}
}  // namespace
}  // namespace headrace::collective
