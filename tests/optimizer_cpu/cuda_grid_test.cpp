// SPDX-License-Identifier: Apache-2.0
// cuda_grid_test: the GPU's kernels as they are launched, a thread of the CPU for each of a block:
// indices, barriers and shared variables, which no compilation for the host alone would show.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/emulated_grid.hpp"
// After what it is compiled with.
#include "device/cuda_grid.hpp"
#include "kernels/gradient_pass.hpp"
#include "kernels/packing.hpp"
#include "optimizer_cpu/update_cases.hpp"

namespace headrace::optimizer_cpu {
namespace {
namespace cuda = device::cuda;

class CudaGrid : public testing::Test {
 protected:
  static void SetUpTestSuite() { grid_ = std::make_unique<cuda::EmulatedGrid>(cuda::kThreads); }
  static void TearDownTestSuite() { grid_.reset(); }
  static inline std::unique_ptr<cuda::EmulatedGrid> grid_;
};

TEST_F(CudaGrid, UpdatesToTheReferencesBits) {
  std::mt19937_64 random(kSeed);
  for (const OptimizerRule rule : kAllRules) {
    for (const MomentCodec codec : kAllCodecs) {
      if (moments(arithmetic_of(rule)) == 0 && codec != MomentCodec::kF32) continue;
      for (const std::uint64_t elements : {1u, 255u, 256u, 700u}) {
        UpdateCase of{.rule = rule,
                      .kind = kAllKinds[random() % 4],
                      .gradient_dtype = kAllDTypes[random() % 3],
                      .codec = codec,
                      .elements = elements,
                      .first_element = 256 * (random() % 1000)};
        UpdateBuffers expected(of);
        fill(expected, random, 1);
        UpdateBuffers actual = expected;
        const UpdateStep step = ordinary_step(rule);
        // Not the reference itself: that is the grid's own text.
        update_function(choose_instruction_set())(expected.span(), step);
        const auto blocks = static_cast<unsigned>((elements + cuda::kThreads - 1) / cuda::kThreads);
        const UpdateSpan span = actual.span();
        grid_->launch(blocks, [=] { cuda::update(span, step); });
        ASSERT_TRUE(expected == actual) << text_of(of) << " seed " << kSeed;
      }
    }
  }
}

TEST_F(CudaGrid, PacksAndUnpacksToTheBitsOfTheCpu) {
  std::mt19937_64 random(kSeed + 2);
  for (const kernels::Packing packing : {kernels::Packing::kInt8, kernels::Packing::kInt4}) {
    for (const std::uint64_t elements : {1u, 255u, 256u, 701u, 1024u}) {
      std::vector<float> values(elements);
      for (float& value : values) value = hard_or_ordinary(random, 1);
      const std::uint64_t blocks = (elements + 255) / 256;
      std::vector<std::uint8_t> codes[2], scales[2];
      std::vector<float> back[2];
      kernels::PackWork work{.packing = packing,
                             .values = values.data(),
                             .elements = elements,
                             .random_key = random(),
                             .first_element = 256 * (random() % 1000)};
      for (const int on_grid : {0, 1}) {
        codes[on_grid].resize(kernels::code_bytes(packing, elements));
        scales[on_grid].resize(blocks);
        back[on_grid].resize(elements);
        work.codes = codes[on_grid].data();
        work.scales = scales[on_grid].data();
        kernels::PackWork other = work;
        other.values = back[on_grid].data();
        if (on_grid == 0) {
          kernels::pack_on_host(work);
          kernels::unpack_on_host(other);
        } else {
          grid_->launch(static_cast<unsigned>(blocks), [=] { cuda::pack<float>(work); });
          grid_->launch(static_cast<unsigned>(blocks), [=] { cuda::unpack<float>(other); });
        }
      }
      EXPECT_EQ(codes[0], codes[1]) << elements;
      EXPECT_EQ(scales[0], scales[1]) << elements;
      EXPECT_EQ(std::memcmp(back[0].data(), back[1].data(), elements * sizeof(float)), 0);
    }
  }
}

// With fewer blocks than there is work for.
TEST_F(CudaGrid, CastsAndAddsEveryElementOnce) {
  constexpr std::uint64_t kElements = 1300;
  std::mt19937_64 random(kSeed + 1);
  std::vector<std::uint16_t> source(kElements);
  std::vector<float> expected(kElements), actual(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    source[i] = static_cast<std::uint16_t>(random());
    expected[i] = actual[i] = hard_or_ordinary(random, 1);
  }
  const auto* const values = reinterpret_cast<const cuda::Bfloat*>(source.data());
  for (const bool overwrite : {false, true}) {
    kernels::accumulate_on_host({.source = source.data(),
                                 .source_dtype = DType::kBf16,
                                 .sum = expected.data(),
                                 .sum_dtype = DType::kF32,
                                 .elements = kElements,
                                 .overwrite = overwrite});
    grid_->launch(2, [&] {
      if (overwrite) {
        cuda::cast<cuda::Bfloat, float, true>(values, actual.data(), kElements);
      } else {
        cuda::cast<cuda::Bfloat, float, false>(values, actual.data(), kElements);
      }
    });
    EXPECT_EQ(std::memcmp(expected.data(), actual.data(), kElements * sizeof(float)), 0);
  }
}

// Pieces of no strip, of one, of several and of a part of one.
TEST_F(CudaGrid, MeasuresPiecesInTheirOrder) {
  std::mt19937_64 random(kSeed + 2);
  std::vector<float> values(9000);
  for (float& value : values) value = hard_or_ordinary(random, 0);
  values[5000] = std::numeric_limits<float>::infinity();
  for (const auto& [elements, first, size] :
       {std::array<std::uint64_t, 3>{1, 1, 4096}, {9000, 17, 4096}, {9000, 2048, 6000}}) {
    cuda::MeasureWork work;
    work.values = values.data();
    work.dtype = DType::kF32;
    work.elements = elements;
    work.first_piece_elements = first;
    work.piece_elements = size;
    std::vector<GradientPiece> expected(cuda::pieces_of(work)), actual(expected.size());
    work.pieces = actual.data();
    std::vector<float> sum(elements);
    kernels::accumulate_on_host({.source = values.data(),
                                 .source_dtype = DType::kF32,
                                 .sum = sum.data(),
                                 .sum_dtype = DType::kF32,
                                 .elements = elements,
                                 .pieces = expected.data(),
                                 .first_piece_elements = first,
                                 .piece_elements = size});
    grid_->launch(static_cast<unsigned>(expected.size()), [=] { cuda::measure<float>(work); });
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(actual[p].sum_squares),
                std::bit_cast<std::uint64_t>(expected[p].sum_squares))
          << p;
      EXPECT_EQ(actual[p].non_finite, expected[p].non_finite) << p;
    }
  }
}
}  // namespace
}  // namespace headrace::optimizer_cpu
