// SPDX-License-Identifier: Apache-2.0
// gradient_pass_test.cpp: every build of the gradient pass gives the bits that gradient_pass.hpp
// defines.
#include "kernels/gradient_pass.hpp"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::kernels {
namespace {
constexpr std::uint64_t kSeed = 4711;

// The definition, as plainly as it can be said.
GradientPiece reference_piece(const std::vector<float>& values) {
  double sums[16] = {};
  GradientPiece piece;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    piece.non_finite += !std::isfinite(values[i]);
  }
  for (int half = 8; half != 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  piece.sum_squares = std::isnan(sums[0]) ? std::numeric_limits<double>::quiet_NaN() : sums[0];
  return piece;
}

// A tensor of any dtype, `offset` elements past an aligned start.
struct Tensor {
  Tensor(DType dtype, std::uint64_t elements, std::uint64_t offset)
      : dtype(dtype),
        elements(elements),
        words((elements + offset) * size_bytes(dtype) / 2 + 8),
        offset(offset) {}
  void* data() { return words.data() + offset * size_bytes(dtype) / 2; }
  float get(std::uint64_t i) {
    if (dtype == DType::kF32) return static_cast<float*>(data())[i];
    const std::uint16_t bits = static_cast<std::uint16_t*>(data())[i];
    return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  void set(std::uint64_t i, float value) {
    if (dtype != DType::kF32) {
      static_cast<std::uint16_t*>(data())[i] =
          dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    } else {
      static_cast<float*>(data())[i] =
          std::isnan(value) ? std::bit_cast<float>(kCanonicalNan) : value;
    }
  }
  DType dtype;
  std::uint64_t elements;
  std::vector<std::uint16_t> words;
  std::uint64_t offset;
};

float draw_value(std::mt19937_64& random, bool with_non_finite) {
  constexpr std::uint32_t kHard[] = {0x00000001, 0x80000001, 0x007fffff, 0x80000000,
                                     0x3f808000, 0x3f818000, 0x7f7fffff, 0x7f800000,
                                     0xff800000, 0x7fa00001, 0xffc00000};
  const std::uint64_t draw = random();
  if (draw % 8 == 0) {
    const std::size_t count = with_non_finite ? std::size(kHard) : 6;
    return std::bit_cast<float>(kHard[(draw >> 8) % count]);
  }
  return static_cast<float>(static_cast<double>(draw >> 11) * 0x1p-53 - 0.5);
}

struct Target {
  const char* name;
  void (*run)(const Accumulation&) noexcept;
  bool runs_here;
};
std::vector<Target> targets() {
  std::vector<Target> all = {{"chosen", accumulate_on_host, true}};
  for (const Simd set : {Simd::kScalar, Simd::kAvx2, Simd::kAvx512}) {
    all.push_back({name_of(set), kernels_of(set).accumulate, runs_here(set)});
  }
  return all;
}

struct Shape {
  DType source, sum;
  bool overwrite;
  std::uint64_t elements, first_piece, piece, offset;
};
std::string describe(const Shape& s) {
  return std::string(name_of(s.source)) + " to " + name_of(s.sum) +
         (s.overwrite ? " over" : " added") + ", " + std::to_string(s.elements) +
         " elements, pieces " + std::to_string(s.first_piece) + "/" + std::to_string(s.piece) +
         ", offset " + std::to_string(s.offset);
}

class GradientKernel : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().runs_here) GTEST_SKIP() << "this CPU has no " << GetParam().name;
  }

  // Runs the definition and the kernel on the same values and compares every byte.
  void compare(const Shape& shape, std::mt19937_64& random, bool with_non_finite) {
    Tensor source(shape.source, shape.elements, shape.offset);
    Tensor sum(shape.sum, shape.elements, shape.offset);
    for (std::uint64_t i = 0; i < shape.elements; ++i) {
      source.set(i, draw_value(random, with_non_finite));
      sum.set(i, draw_value(random, with_non_finite));
    }
    Tensor expected = sum;
    std::vector<GradientPiece> pieces, found;
    for (std::uint64_t begin = 0, size = shape.first_piece; begin < shape.elements;
         size = shape.piece) {
      const std::uint64_t end = std::min(shape.elements, begin + size);
      std::vector<float> values;
      for (; begin < end; ++begin) {
        const float value = source.get(begin);
        expected.set(begin, shape.overwrite ? value : expected.get(begin) + value);
        values.push_back(expected.get(begin));
      }
      pieces.push_back(reference_piece(values));
    }
    found.resize(pieces.size() + 1, GradientPiece{-1, 77});
    GetParam().run({source.data(), shape.source, sum.data(), shape.sum, shape.elements,
                    shape.overwrite, found.data(), shape.first_piece, shape.piece});
    ASSERT_EQ(sum.words, expected.words) << describe(shape);
    EXPECT_EQ(found.back().non_finite, 77u) << "wrote past its pieces: " << describe(shape);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found[i].sum_squares, &pieces[i].sum_squares, 8), 0)
          << describe(shape) << " piece " << i << ": " << found[i].sum_squares << " for "
          << pieces[i].sum_squares;
      ASSERT_EQ(found[i].non_finite, pieces[i].non_finite) << describe(shape) << " piece " << i;
    }
  }
};

TEST_P(GradientKernel, GivesTheDefinedBitsAtEveryShortLength) {
  std::mt19937_64 random(kSeed);
  for (const DType source : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType sum : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const bool overwrite : {true, false}) {
        for (std::uint64_t elements = 0; elements <= 65; ++elements) {
          SCOPED_TRACE("seed " + std::to_string(kSeed));
          compare({source, sum, overwrite, elements, 40, 40, elements % 3}, random,
                  elements % 2 == 1);
        }
      }
    }
  }
}

TEST_P(GradientKernel, GivesTheDefinedBitsAroundBlocksAndPieces) {
  std::mt19937_64 random(kSeed + 1);
  for (const DType source : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType sum : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const std::uint64_t elements : {255, 256, 257, 65537}) {
        compare({source, sum, true, elements, 65536, 65536, 1}, random, false);
      }
      compare({source, sum, false, 5000, 300, 4097, 0}, random, true);
      compare({source, sum, false, 5000, 1000000, 1, 0}, random, false);
      compare({source, sum, true, 300, 16, 1, 0}, random, false);
    }
  }
}

// All patterns of 16 bits, each added to every partial sum; f32 as drawn.
TEST_P(GradientKernel, MeasuresWithoutASumAndStoresNothing) {
  std::mt19937_64 random(kSeed + 2);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const std::uint64_t piece : {65536u, 4097u, 17u}) {
      std::vector<std::uint16_t> halves(65536 + 5);
      std::vector<float> values(halves.size());
      for (std::size_t i = 0; i < halves.size(); ++i) {
        halves[i] = static_cast<std::uint16_t>(i * 40503);  // odd: every pattern once
        values[i] = dtype == DType::kF16    ? f16_to_f32(halves[i])
                    : dtype == DType::kBf16 ? bf16_to_f32(halves[i])
                                            : draw_value(random, true);
      }
      const auto halves_before = halves;
      const std::uint64_t pieces = (values.size() + piece - 1) / piece;
      std::vector<GradientPiece> found(pieces);
      Accumulation work;
      work.source = dtype == DType::kF32 ? static_cast<const void*>(values.data()) : halves.data();
      work.source_dtype = dtype;
      work.elements = values.size();
      work.pieces = found.data();
      work.piece_elements = piece;
      GetParam().run(work);
      EXPECT_EQ(halves, halves_before);
      for (std::uint64_t i = 0; i < pieces; ++i) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i * piece);
        const auto end = std::min(begin + static_cast<std::ptrdiff_t>(piece), values.end());
        const GradientPiece wanted = reference_piece({begin, end});
        ASSERT_EQ(std::memcmp(&found[i].sum_squares, &wanted.sum_squares, 8), 0)
            << name_of(dtype) << " piece " << i << " of " << piece << ", seed " << kSeed + 2;
        ASSERT_EQ(found[i].non_finite, wanted.non_finite);
      }
    }
  }
}

TEST_P(GradientKernel, CountsWhatIsNotFinite) {
  std::vector<std::uint16_t> source(1000, 0x3f80), sum(1000);
  source[3] = 0x7f80;
  source[500] = 0xff80;
  source[999] = 0xffc1;
  GradientPiece pieces[2];
  GetParam().run(
      {source.data(), DType::kBf16, sum.data(), DType::kBf16, 1000, true, pieces, 500, 500});
  EXPECT_EQ(pieces[0].non_finite, 1u);
  EXPECT_EQ(pieces[0].sum_squares, std::numeric_limits<double>::infinity());
  EXPECT_EQ(pieces[1].non_finite, 2u);
  EXPECT_TRUE(std::isnan(pieces[1].sum_squares));
  EXPECT_EQ(sum[999], kCanonicalNan >> 16);
}

TEST_P(GradientKernel, CountsAFiniteSumThatOverflowsItsDtype) {
  const std::vector<float> source(20, std::numeric_limits<float>::max());
  std::vector<std::uint16_t> sum(20);
  GradientPiece piece;
  GetParam().run({source.data(), DType::kF32, sum.data(), DType::kBf16, 20, true, &piece, 20, 20});
  EXPECT_EQ(piece.non_finite, 20u);  // rounds up to infinity in bf16
  EXPECT_EQ(sum[0], 0x7f80);
}

#if defined(__x86_64__)
TEST_P(GradientKernel, KeepsDenormalsWhateverTheCallersModeAndPutsItBack) {
  const std::vector<float> source(100, 1e-42f);
  std::vector<float> sum(100, 3e-42f);
  GradientPiece piece;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);
  GetParam().run(
      {source.data(), DType::kF32, sum.data(), DType::kF32, 100, false, &piece, 100, 100});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, before | 0x8040u);
  EXPECT_EQ(sum[99], 1e-42f + 3e-42f);
  EXPECT_GT(piece.sum_squares, 0.0);
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, GradientKernel, testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(info.param.name); });
}  // namespace
}  // namespace headrace::kernels
