// SPDX-License-Identifier: Apache-2.0
// packing_test.cpp: values that were packed come back near, by the rules of packed_values.hpp, with
// the same bits from every build of the loops.
#include "kernels/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace headrace::kernels::packing_test {
namespace {
constexpr std::uint64_t kSeed = 20260;

struct Packed {
  std::vector<std::uint8_t> codes, scales;
  bool operator==(const Packed&) const = default;
};

Packed packed_with(PackFunction pack, PackWork work) {
  Packed out;
  out.codes.resize(code_bytes(work.packing, work.elements));
  out.scales.resize((work.elements + kScaleElements - 1) / kScaleElements);
  work.codes = out.codes.data();
  work.scales = out.scales.data();
  pack(work);
  return out;
}
Packed packed(const PackWork& work) { return packed_with(pack_on_host, work); }

template <class Value>
std::vector<Value> unpacked_values(Packed packed, Packing packing, DType dtype,
                                   std::uint64_t elements) {
  std::vector<Value> values(elements);
  PackWork work{.packing = packing, .dtype = dtype, .values = values.data(), .elements = elements};
  work.codes = packed.codes.data();
  work.scales = packed.scales.data();
  unpack_on_host(work);
  return values;
}

// Blocks of very different sizes.
std::vector<float> some_values(std::uint64_t elements, std::mt19937_64& random) {
  std::vector<float> values(elements);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (std::uint64_t i = 0; i < elements; ++i) {
    const int power = static_cast<int>(i / kScaleElements * 37 % 60) - 30;
    values[i] = std::ldexp(uniform(random), power);
  }
  return values;
}

TEST(Packing, Int8IsNearestToTheValue) {
  std::mt19937_64 random(kSeed);
  for (const std::uint64_t elements : {1u, 255u, 256u, 257u, 5000u}) {
    std::vector<float> values = some_values(elements, random);
    const Packed codes = packed({.values = values.data(), .elements = elements});
    const auto back = unpacked_values<float>(codes, Packing::kInt8, DType::kF32, elements);
    for (std::uint64_t block = 0; block * kScaleElements < elements; ++block) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(block * kScaleElements);
      const auto last = values.begin() + static_cast<std::ptrdiff_t>(
                                             std::min(elements, (block + 1) * kScaleElements));
      float largest = 0;
      for (auto value = first; value != last; ++value)
        largest = std::max(largest, std::abs(*value));
      const float step = std::ldexp(1.0f, codes.scales[block] - 127);
      EXPECT_LE(largest, 127 * step);
      EXPECT_GT(largest, 63.5f * step) << "a finer scale would do";
      for (std::uint64_t i = block * kScaleElements; i < elements && i < (block + 1) * 256; ++i)
        ASSERT_LE(std::abs(back[i] - values[i]), step / 2) << i;
    }
  }
}

// All bf16 and f16 values: what came back comes back again.
TEST(Packing, Int8OfUnpackedValuesChangesNothing) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<std::uint16_t> values(65536);
    for (std::uint32_t i = 0; i < values.size(); ++i)  // neighbours are of any size
      values[i] = static_cast<std::uint16_t>(i * 40503u);
    const auto is_finite = [&](std::uint16_t bits) {
      return std::isfinite(dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits));
    };
    for (std::uint16_t& bits : values) bits = is_finite(bits) ? bits : 0;
    std::ranges::sort(values);
    const Packed once = packed({.dtype = dtype, .values = values.data(), .elements = 65536});
    auto back = unpacked_values<std::uint16_t>(once, Packing::kInt8, dtype, 65536);
    EXPECT_TRUE(std::ranges::all_of(back, is_finite));
    const Packed twice = packed({.dtype = dtype, .values = back.data(), .elements = 65536});
    EXPECT_TRUE(unpacked_values<std::uint16_t>(twice, Packing::kInt8, dtype, 65536) == back);
  }
}

TEST(Packing, Int4IsOneOfTheTwoNeighboursAndRightOnAverage) {
  constexpr std::uint64_t kElements = 256, kRounds = 4000;
  std::mt19937_64 random(kSeed + 1);
  std::vector<float> values = some_values(kElements, random);
  std::vector<double> sums(kElements);
  float step = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const Packed codes = packed({.packing = Packing::kInt4,
                                 .values = values.data(),
                                 .elements = kElements,
                                 .random_key = packing_key(1, 2, 3, round)});
    step = std::ldexp(1.0f, codes.scales[0] - 127);
    const auto back = unpacked_values<float>(codes, Packing::kInt4, DType::kF32, kElements);
    for (std::uint64_t i = 0; i < kElements; ++i) {
      ASSERT_LT(std::abs(back[i] - values[i]), step);
      sums[i] += back[i];
    }
  }
  // The spread of one round is at most half a step.
  const double tolerance = 5 * 0.5 * step / std::sqrt(kRounds);
  for (std::uint64_t i = 0; i < kElements; ++i)
    EXPECT_NEAR(sums[i] / kRounds, values[i], tolerance) << i;
}

TEST(Packing, WholeMultiplesAreExact) {
  std::vector<float> values(256);
  for (int i = 0; i < 256; ++i)
    values[static_cast<std::size_t>(i)] = 0.25f * static_cast<float>(i % 15 - 7);
  for (std::uint64_t key = 0; key < 20; ++key) {
    const Packed codes = packed(
        {.packing = Packing::kInt4, .values = values.data(), .elements = 256, .random_key = key});
    EXPECT_EQ(unpacked_values<float>(codes, Packing::kInt4, DType::kF32, 256), values);
  }
}

// A part that is packed alone has the bits that it has within the whole.
TEST(Packing, DoesNotDependOnHowItIsCut) {
  constexpr std::uint64_t kElements = 70'000, kFirst = 65'536 + 512;
  std::mt19937_64 random(kSeed + 2);
  std::vector<float> values = some_values(kElements, random);
  for (const Packing packing : {Packing::kInt8, Packing::kInt4}) {
    const Packed whole = packed(
        {.packing = packing, .values = values.data(), .elements = kElements, .random_key = 77});
    const Packed part = packed({.packing = packing,
                                .values = values.data() + kFirst,
                                .elements = kElements - kFirst,
                                .random_key = 77,
                                .first_element = kFirst});
    EXPECT_TRUE(
        std::equal(part.codes.begin(), part.codes.end(),
                   whole.codes.begin() + static_cast<std::ptrdiff_t>(code_bytes(packing, kFirst))));
    EXPECT_TRUE(std::equal(part.scales.begin(), part.scales.end(),
                           whole.scales.begin() + kFirst / kScaleElements));
  }
}

TEST(Packing, ABlockWithNanOrInfinityIsNan) {
  for (const Packing packing : {Packing::kInt8, Packing::kInt4}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(600, 1.0f);
      values[300] = -bad;
      const Packed codes = packed({.packing = packing, .values = values.data(), .elements = 600});
      const auto back = unpacked_values<float>(codes, packing, DType::kF32, 600);
      for (std::size_t i = 0; i < back.size(); ++i)
        EXPECT_EQ(std::isnan(back[i]), i >= 256 && i < 512) << i;
    }
  }
}

TEST(Packing, TheLargestAndTheSmallestStayFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  for (const Packing packing : {Packing::kInt8, Packing::kInt4}) {
    for (const float value : {kMost, -kMost, kLeast, 0.0f}) {
      std::vector<float> values(256, value);
      for (std::uint64_t key = 0; key < 10; ++key) {
        const Packed codes = packed(
            {.packing = packing, .values = values.data(), .elements = 256, .random_key = key});
        for (const float back : unpacked_values<float>(codes, packing, DType::kF32, 256)) {
          ASSERT_TRUE(std::isfinite(back));
          ASSERT_LE(std::abs(back - value), std::max(std::abs(value) / 2, 1e-37f));
        }
      }
    }
  }
}

TEST(Packing, HasTheSameBitsWithEveryInstructionSet) {
  std::mt19937_64 random(kSeed + 3);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const Packing packing : {Packing::kInt8, Packing::kInt4}) {
      for (const std::uint64_t elements : {1u, 31u, 256u, 1023u, 4096u}) {
        std::vector<std::uint32_t> bits(elements);  // NaNs and infinities in some of the blocks
        const std::uint32_t kept = random() % 2 == 0 ? 0xffffffffu : 0xbfffbfffu;
        for (std::uint32_t& word : bits) word = static_cast<std::uint32_t>(random()) & kept;
        const PackWork work{.packing = packing,
                            .dtype = dtype,
                            .values = bits.data(),
                            .elements = elements,
                            .random_key = random(),
                            .first_element = 256 * (random() % 1000)};
        const Packed expected = packed_with(scalar_kernels().pack, work);
        for (const Simd set : {Simd::kAvx2, Simd::kAvx512}) {
          if (!runs_here(set)) continue;
          const Kernels& kernels = kernels_of(set);
          ASSERT_TRUE(packed_with(kernels.pack, work) == expected) << name_of(set);
          std::vector<std::uint32_t> one(elements), other(elements);
          Packed codes = expected;
          PackWork back = work;
          back.codes = codes.codes.data();
          back.scales = codes.scales.data();
          back.values = one.data();
          scalar_kernels().unpack(back);
          back.values = other.data();
          kernels.unpack(back);
          ASSERT_EQ(one, other) << name_of(set);
        }
      }
    }
  }
}
}  // namespace
}  // namespace headrace::kernels::packing_test
