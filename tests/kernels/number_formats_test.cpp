// SPDX-License-Identifier: Apache-2.0
// bf16 and the split master against definitions written another way, over a sweep of all bit
// patterns and every special case.
#include "kernels/number_formats.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace headrace::kernels {
namespace {
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

// Everything that is special, each with its neighbours and both signs.
std::vector<std::uint32_t> special_patterns() {
  std::vector<std::uint32_t> patterns;
  for (const std::uint32_t base :
       {0x00000000u, 0x00000001u, 0x00007fffu, 0x00008000u, 0x00018000u, 0x007fffffu, 0x00800000u,
        0x3f800000u, 0x3f808000u, 0x3f818000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u,
        0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fff7fffu, 0x7fff8000u, 0x7fffffffu}) {
    for (int offset = -2; offset <= 2; ++offset) {
      const std::uint32_t pattern = base + static_cast<std::uint32_t>(offset);
      patterns.push_back(pattern);
      patterns.push_back(pattern ^ 0x80000000u);
    }
  }
  return patterns;
}

template <class Check>
void for_many_patterns(Check check) {
  for (const std::uint32_t pattern : special_patterns()) check(pattern);
  // An odd stride meets every low half with many high ones.
  constexpr std::uint64_t kStride = 4099;
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += kStride) {
    check(static_cast<std::uint32_t>(pattern));
  }
}

TEST(SplitMaster, ComesTogetherAgainBitForBit) {
  for_many_patterns([](std::uint32_t bits) {
    const SplitMaster split = split_master(of_bits(bits));
    const std::uint32_t joined = bits_of(join_master(split.weight, split.residual));
    ASSERT_EQ(joined, is_nan(bits) ? kCanonicalNan : bits) << std::hex << bits;
  });
}

#if defined(HEADRACE_FULL_SWEEP)
TEST(SplitMaster, ComesTogetherAgainForAllFloatsThereAre) {
  std::uint64_t wrong = 0;
  for (std::uint64_t high = 0; high < (1u << 16); ++high) {
    std::uint32_t wrong_here = 0;
    for (std::uint32_t low = 0; low < (1u << 16); ++low) {
      const std::uint32_t bits = (static_cast<std::uint32_t>(high) << 16) | low;
      const SplitMaster split = split_master(of_bits(bits));
      const std::uint32_t joined = bits_of(join_master(split.weight, split.residual));
      wrong_here += joined != (is_nan(bits) ? kCanonicalNan : bits) ? 1u : 0u;
    }
    wrong += wrong_here;
  }
  EXPECT_EQ(wrong, 0u);
}
#endif

TEST(SplitMaster, ItsWeightIsTheNearestBf16WithTiesAwayFromZero) {
  for_many_patterns([](std::uint32_t bits) {
    if (is_nan(bits)) return;
    // By magnitude: the bf16 below, and one more where the rest is half a step or above.
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t expected = magnitude >> 16;
    if ((magnitude & 0xffffu) >= 0x8000u) ++expected;
    expected |= (bits >> 16) & 0x8000u;
    ASSERT_EQ(split_master(of_bits(bits)).weight, expected) << std::hex << bits;
  });
}

TEST(SplitMaster, KeepsTheSignOfZeroAndTheInfinities) {
  for (const std::uint32_t bits : {0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u}) {
    const SplitMaster split = split_master(of_bits(bits));
    EXPECT_EQ(split.weight, bits >> 16);
    EXPECT_EQ(split.residual, 0);
  }
}

TEST(SplitMaster, MakesEveryNanCanonical) {
  for (const std::uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0xffc00000u}) {
    const SplitMaster split = split_master(of_bits(bits));
    EXPECT_EQ(split.weight, 0x7fc0);
    EXPECT_EQ(split.residual, 0);
  }
}

TEST(SplitMaster, ALargestMasterWhoseWeightIsInfiniteStillComesBack) {
  const float largest = std::numeric_limits<float>::max();
  const SplitMaster split = split_master(largest);
  EXPECT_EQ(split.weight, 0x7f80);
  EXPECT_EQ(bits_of(join_master(split.weight, split.residual)), bits_of(largest));
}

TEST(SplitMaster, DiffersFromTiesToEvenInExactTiesOnly) {
  for_many_patterns([](std::uint32_t bits) {
    if (is_nan(bits)) return;
    const bool tie_to_odd = (bits & 0x1ffffu) == 0x08000u;
    const bool differs = split_master(of_bits(bits)).weight != f32_to_bf16(of_bits(bits));
    ASSERT_EQ(differs, tie_to_odd) << std::hex << bits;
  });
}

// The nearest of the two bf16 around `value`, found by distance in double.
std::uint16_t nearest_bf16(float value) {
  const std::uint32_t bits = bits_of(value);
  const auto below = static_cast<std::uint16_t>(bits >> 16);  // towards zero
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double low = std::abs(static_cast<double>(bf16_to_f32(below)));
  double high = std::abs(static_cast<double>(bf16_to_f32(above)));
  if ((above & 0x7fff) == 0x7f80) high = std::ldexp(1.0, 128);  // where infinity would lie
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude - low < high - magnitude) return below;
  if (magnitude - low > high - magnitude) return above;
  return below % 2 == 0 ? below : above;
}

TEST(Bf16, IsTheNearestWithTiesToEven) {
  for_many_patterns([](std::uint32_t bits) {
    const float value = of_bits(bits);
    if (!std::isfinite(value)) return;
    ASSERT_EQ(f32_to_bf16(value), nearest_bf16(value)) << std::hex << bits;
  });
}

TEST(Bf16, EveryOneComesBackFromF32) {
  for (std::uint32_t bf16 = 0; bf16 < (1u << 16); ++bf16) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bf16));
    ASSERT_EQ(f32_to_bf16(value), std::isnan(value) ? 0x7fc0u : bf16);
  }
}

TEST(Bf16, KeepsInfinitiesAndMakesEveryNanCanonical) {
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds beyond the largest
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_EQ(f32_to_bf16(of_bits(bits)), 0x7fc0);
  }
}
}  // namespace
}  // namespace headrace::kernels
