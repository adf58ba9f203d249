// SPDX-License-Identifier: Apache-2.0
// moment_codecs_test: what 8-bit and bf16 moments keep, that rounding is fair, and the number
// formats over all their patterns.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>

#include "kernels/update_element.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "optimizer_cpu/update_fixture.hpp"

namespace headrace::optimizer_cpu {
namespace {
using kernels::decode_code;
using kernels::encode_code;
using kernels::scale_of;
using kernels::stochastic_bf16;

constexpr std::uint64_t kCodecSeed = 77;

// ---- what a record's header says of them ----

std::string listed(Arithmetic arithmetic, MasterKind kind, MomentCodec codec) {
  std::string text;
  const StateStreams streams = state_streams(arithmetic, kind, codec);
  for (const StateStream& stream : streams.all())
    text += std::string(stream.name) + " " + stream.codec + "\n";
  return text;
}

// docs/swap_file.md has them all.
TEST(StateStreams, AreListedByNameAndCodec) {
  EXPECT_EQ(listed(Arithmetic::kAdam, MasterKind::kSplitResidual, MomentCodec::kF32),
            "residual u16\nexp_avg f32\nexp_avg_sq f32\n");
  EXPECT_EQ(listed(Arithmetic::kMomentum, MasterKind::kF32OfF16, MomentCodec::kBf16),
            "master f32\nmomentum_buffer bf16\n");
  EXPECT_EQ(listed(Arithmetic::kAdam, MasterKind::kWeightItself, MomentCodec::kBlock8),
            "exp_avg e4m3\nscale e8m0\nexp_avg_sq e5m3\nscale_sq e8m0\n");
  EXPECT_EQ(listed(Arithmetic::kAdagrad, MasterKind::kF32, MomentCodec::kBlock8),
            "master f32\nsum e5m3\nscale e8m0\n");
}

// ---- the codes ----

TEST(Block8, EveryCodeOfEveryScaleIsEncodedToItselfWhateverTheRandomBits) {
  for (const bool square : {false, true}) {
    for (std::uint32_t scale = 1; scale <= 253; ++scale) {
      for (std::uint32_t code = 0; code < 256; ++code) {
        const auto c = static_cast<std::uint8_t>(code);
        const auto s = static_cast<std::uint8_t>(scale);
        const float value = decode_code(c, square, s);
        // Below 2^-126 the codes of the smallest scales run out of f32.
        if (std::fabs(value) < 0x1p-126f && value != 0) continue;
        if (value == 0 && code != 0 && code != 0x80) continue;
        for (const std::uint32_t random : {0u, 0x8000u, 0xffffu})
          ASSERT_EQ(encode_code(value, square, s, random), c) << scale << " " << code;
      }
    }
  }
}

TEST(Block8, CodesRiseWithTheirValues) {
  for (const bool square : {false, true}) {
    const std::uint32_t codes = square ? 256 : 128;
    for (std::uint32_t code = 1; code < codes; ++code) {
      EXPECT_GT(decode_code(code, square, 127), decode_code(code - 1, square, 127));
    }
  }
  EXPECT_EQ(decode_code(0xff, true, 127), 1.875f);
  EXPECT_EQ(decode_code(1, true, 127), 0x1p-33f);
  EXPECT_EQ(decode_code(0x7f, false, 127), 1.875f);
  EXPECT_EQ(decode_code(0xff, false, 127), -1.875f);
  EXPECT_EQ(decode_code(1, false, 127), 0x1p-17f);
}

TEST(Block8, HoldsTheLargestOfItsBlockWithinASixteenth) {
  std::mt19937_64 random(kCodecSeed);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random() % 0x7e000000u);
    const float value = std::bit_cast<float>(bits);
    if (value < 0x1p-120f) continue;
    const std::uint32_t scale = scale_of(bits);
    for (const bool square : {false, true}) {
      const auto low = decode_code(encode_code(value, square, scale, 0), square, scale);
      const auto high = decode_code(encode_code(value, square, scale, 0xffff), square, scale);
      ASSERT_LE(low, value);
      ASSERT_GE(high, value * (1 - 0x1p-16f)) << value;
      ASSERT_LE(high - low, value / 8) << value;
    }
  }
  EXPECT_EQ(scale_of(0x7f800000u), 0xffu);
  EXPECT_TRUE(std::isnan(decode_code(0, true, 0xff)));
  EXPECT_EQ(scale_of(0), 1u);
}

// With a v of 0 an update would be divided by eps alone.
TEST(Block8, ASumOfSquaresAboveZeroStaysAboveZero) {
  for (const float value : {1e-38f, 1e-30f, 1e-12f, std::bit_cast<float>(1u)}) {
    EXPECT_EQ(encode_code(value, true, 127, 0),
              value < 0x1p-33f ? 1u : encode_code(value, true, 127, 0));
    EXPECT_GT(decode_code(encode_code(value, true, 127, 0), true, 127), 0);
  }
  EXPECT_EQ(encode_code(0, true, 127, 0xffff), 0u);
}

// Over all 65,536 random values: the mean of what is stored is the value.
TEST(StochasticRounding, IsFair) {
  std::mt19937_64 random(kCodecSeed + 1);
  for (int i = 0; i < 40; ++i) {
    const auto value =
        static_cast<float>(std::exp(static_cast<double>(random() % 2000) / 100 - 20));
    double bf16 = 0, signed8 = 0, square8 = 0;
    for (std::uint32_t r = 0; r < 65536; ++r) {
      bf16 += double{kernels::bf16_to_f32(stochastic_bf16(value, r))};
      signed8 += double{decode_code(encode_code(-value, false, 127, r), false, 127)};
      square8 += double{decode_code(encode_code(value, true, 127, r), true, 127)};
    }
    EXPECT_NEAR(bf16 / 65536, value, value * 0x1p-23);
    EXPECT_NEAR(signed8 / 65536, -value, std::max(value * 0x1p-18f, 0x1p-32f));
    EXPECT_NEAR(square8 / 65536, value, value * 0x1p-18);
  }
}

TEST(StochasticRounding, NeverMakesAnInfinityOfAFiniteValue) {
  const float largest = std::bit_cast<float>(0x7f7fffffu);
  EXPECT_EQ(stochastic_bf16(largest, 0xffff), 0x7f7f);
  EXPECT_EQ(stochastic_bf16(-largest, 0xffff), 0xff7f);
  EXPECT_EQ(stochastic_bf16(std::bit_cast<float>(0x7f800000u), 0xffff), 0x7f80);
  EXPECT_EQ(stochastic_bf16(std::bit_cast<float>(kernels::kCanonicalNan), 0xffff), 0x7fc0);
  EXPECT_TRUE(std::isfinite(decode_code(encode_code(largest, true, 253, 0xffff), true, 253)));
}

// ---- random bits ----

// Sum over 256 buckets of (seen - expected)^2 / expected: 255 +- 22.6 for fair bits.
double chi_square(const std::array<std::uint64_t, 256>& seen, double draws) {
  double sum = 0;
  for (const std::uint64_t count : seen) {
    const double off = static_cast<double>(count) - draws / 256;
    sum += off * off / (draws / 256);
  }
  return sum;
}

TEST(RandomBits, AreEvenInEveryByteAndBetweenNeighbours) {
  constexpr std::uint64_t kBlocks = 4;
  for (std::uint32_t shift = 0; shift < 32; shift += 8) {
    std::array<std::uint64_t, 256> bytes{}, differences{}, steps{}, parameters{};
    for (std::uint64_t e = 0; e < kBlocks * kBlockElements; ++e) {
      const auto bits = [&](std::uint64_t parameter, std::uint64_t t, std::uint64_t element) {
        return random_bits(random_keys(random_key(kCodecSeed, parameter, t), element),
                           static_cast<std::uint32_t>(element % kBlockElements)) >>
               shift;
      };
      const std::uint32_t own = bits(0, 1, e);
      ++bytes[own & 0xff];
      ++differences[(bits(0, 1, e + 1) - own) & 0xff];
      ++steps[(bits(0, 2, e) - own) & 0xff];
      ++parameters[(bits(1, 1, e) - own) & 0xff];
    }
    const double draws = kBlocks * kBlockElements;
    // Six standard deviations.
    for (const auto* seen : {&bytes, &differences, &steps, &parameters})
      EXPECT_NEAR(chi_square(*seen, draws), 255, 136) << "bits from " << shift;
  }
}

TEST(RandomBits, HangOnSeedParameterStepAndElement) {
  const auto bits = [](std::uint64_t seed, std::uint64_t parameter, std::uint64_t t,
                       std::uint64_t element) {
    return random_bits(random_keys(random_key(seed, parameter, t), element),
                       static_cast<std::uint32_t>(element % kBlockElements));
  };
  const std::uint32_t one = bits(1, 2, 3, 4);
  EXPECT_EQ(bits(1, 2, 3, 4), one);
  for (const std::uint32_t other : {bits(2, 2, 3, 4), bits(1, 3, 3, 4), bits(1, 2, 4, 4),
                                    bits(1, 2, 3, 5), bits(1, 2, 3, 4 + kBlockElements)})
    EXPECT_NE(other, one);
}

// ---- number formats ----

TEST(Fp16, EveryPatternGoesToF32AndBack) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const float value = kernels::f16_to_f32(static_cast<std::uint16_t>(h));
    const bool nan = (h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0;
    ASSERT_EQ(std::isnan(value), nan);
    ASSERT_EQ(kernels::f32_to_f16(value), nan ? 0x7e00u : h) << h;
  }
}

TEST(Fp16, IsRoundedToNearestTiesToEven) {
  std::mt19937_64 random(kCodecSeed + 2);
  for (int i = 0; i < 300000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(value) < 65520)) continue;
    const std::uint16_t h = kernels::f32_to_f16(value);
    const float got = kernels::f16_to_f32(h);
    const double off = std::fabs(double{value} - double{got});
    for (const int step : {-1, 1}) {
      const float neighbour = kernels::f16_to_f32(static_cast<std::uint16_t>(h + step));
      if (std::isnan(neighbour) || std::signbit(neighbour) != std::signbit(got)) continue;
      const double other = std::fabs(double{value} - double{neighbour});
      ASSERT_TRUE(off < other || (off == other && h % 2 == 0)) << value;
    }
  }
  EXPECT_EQ(kernels::f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(kernels::f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(kernels::f32_to_f16(-1e30f), 0xfc00);
}
}  // namespace
}  // namespace headrace::optimizer_cpu
