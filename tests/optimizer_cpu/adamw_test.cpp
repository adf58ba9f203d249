// SPDX-License-Identifier: Apache-2.0
// adamw_test.cpp: every kernel this CPU can run gives the reference's bits.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "optimizer_cpu/adamw_fixture.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::uint64_t kSeed = 20240611;
constexpr std::uint64_t kLanesMax = 32;  // what one turn of the widest loop takes

// Numbers that go wrong first: zeros, denormals, the ends of the range, ties of the bf16 rounding,
// infinities, NaNs.
constexpr std::uint32_t kHard[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x00400000, 0x7f7fffff,
    0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffa00001, 0x7fffffff,
    0x3f808000, 0x3f818000, 0x3f807fff, 0x7f7f8000, 0x00008000, 0x3f800000, 0x1e3ce508, 0x9e3ce508};

float hard_or_ordinary(std::mt19937_64& random, std::uint64_t hard_in_eight) {
  const std::uint64_t draw = random();
  if (draw % 8 < hard_in_eight) return std::bit_cast<float>(kHard[(draw >> 8) % std::size(kHard)]);
  if (draw % 8 == 7)
    return std::bit_cast<float>(static_cast<std::uint32_t>(draw >> 32));  // any pattern
  return static_cast<float>(static_cast<double>(draw >> 11) * 0x1p-53 - 0.5);
}

void fill(UpdateBuffers& buffers, std::mt19937_64& random, std::uint64_t hard_in_eight) {
  const AdamWSpan span = buffers.span();
  for (std::uint64_t i = 0; i < buffers.elements; ++i) {
    buffers.set_master(i, hard_or_ordinary(random, hard_in_eight));
    buffers.set_gradient(i, hard_or_ordinary(random, hard_in_eight));
    span.exp_avg[i] = hard_or_ordinary(random, hard_in_eight);
    const float v = hard_or_ordinary(random, hard_in_eight);
    span.exp_avg_sq[i] = random() % 16 == 0 ? v : std::fabs(v);
  }
}

AdamWStep ordinary_step(std::uint64_t t = 7, double gradient_factor = 0.37) {
  return make_adamw_step({}, 1e-3, t, gradient_factor);
}

class AdamWKernel : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!runs_here(GetParam())) GTEST_SKIP() << "this CPU has no " << name_of(GetParam());
    RecordProperty("seed", std::to_string(kSeed));
  }
  // Runs both on equal input; true if all bytes are equal afterwards, those around the arrays too.
  bool equals_reference(const UpdateBuffers& input, const AdamWStep& step) {
    UpdateBuffers expected = input;
    UpdateBuffers actual = input;
    adamw_reference(expected.span(), step);
    adamw_function(GetParam())(actual.span(), step);
    return expected == actual;
  }
};

TEST_P(AdamWKernel, GivesTheReferencesBitsAtEveryShortLengthAndOffset) {
  std::mt19937_64 random(kSeed);
  for (const MasterKind kind : kAllKinds) {
    for (const DType dtype : kAllDTypes) {
      for (std::uint64_t elements = 0; elements <= 2 * kLanesMax + 1; ++elements) {
        for (const std::uint64_t offset : {0, 1, 3, 15}) {
          UpdateBuffers buffers(elements, kind, dtype, offset);
          fill(buffers, random, elements % 4);
          ASSERT_TRUE(equals_reference(buffers, ordinary_step()))
              << "kind " << int(kind) << " gradient " << name_of(dtype) << " elements " << elements
              << " offset " << offset << " seed " << kSeed;
        }
      }
    }
  }
}

TEST_P(AdamWKernel, GivesTheReferencesBitsAroundABlock) {
  std::mt19937_64 random(kSeed + 1);
  for (const MasterKind kind : kAllKinds) {
    for (const DType dtype : kAllDTypes) {
      for (const std::uint64_t elements : {65535, 65536, 65537}) {
        UpdateBuffers buffers(elements, kind, dtype, elements % 5);
        fill(buffers, random, 1);
        ASSERT_TRUE(equals_reference(buffers, ordinary_step()))
            << "kind " << int(kind) << " gradient " << name_of(dtype) << " elements " << elements;
      }
    }
  }
}

TEST_P(AdamWKernel, GivesTheReferencesBitsForHardConstants) {
  std::mt19937_64 random(kSeed + 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  AdamWStep steps[] = {ordinary_step(1),      ordinary_step(1000000, 1.0),
                       ordinary_step(3, 0.0), ordinary_step(3, -1e30),
                       ordinary_step(2, nan), ordinary_step(2, infinity)};
  steps[0].eps = 0.0f;
  steps[1].eps = 1e-40f;
  steps[2].step_size = 1e-44f;
  for (const AdamWStep& step : steps) {
    for (const MasterKind kind : kAllKinds) {
      UpdateBuffers buffers(1000, kind, DType::kF32, 1);
      fill(buffers, random, 3);
      ASSERT_TRUE(equals_reference(buffers, step))
          << "step " << &step - steps << " kind " << int(kind);
    }
  }
}

TEST_P(AdamWKernel, StoresEveryNanInItsOneForm) {
  UpdateBuffers buffers(40, MasterKind::kF32, DType::kF32, 0);
  const AdamWSpan span = buffers.span();
  for (std::uint64_t i = 0; i < 40; ++i) {
    buffers.set_master(i, 1.0f);
    buffers.set_gradient(i, std::bit_cast<float>(0xffa12345u));
    span.exp_avg[i] = std::bit_cast<float>(0x7fb00001u);
    span.exp_avg_sq[i] = 0.0f;
  }
  adamw_function(GetParam())(span, ordinary_step());
  for (std::uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(span.exp_avg[i]), base::kCanonicalNan);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(span.exp_avg_sq[i]), base::kCanonicalNan);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float*>(span.master)[i]),
              base::kCanonicalNan);
    ASSERT_EQ(static_cast<std::uint16_t*>(span.weight)[i], base::kCanonicalNan >> 16);
  }
}

TEST_P(AdamWKernel, KeepsTheSameMasterInEitherLayout) {
  std::mt19937_64 random(kSeed + 3);
  UpdateBuffers split(1000, MasterKind::kSplitResidual, DType::kF32, 0);
  UpdateBuffers whole(1000, MasterKind::kF32, DType::kF32, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const float master = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    const float gradient = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    for (UpdateBuffers* buffers : {&split, &whole}) {
      buffers->set_master(i, master);
      buffers->set_gradient(i, gradient);
      buffers->span().exp_avg[i] = 0.0f;
      buffers->span().exp_avg_sq[i] = 0.0f;
    }
  }
  for (std::uint64_t t = 1; t <= 5; ++t) {
    adamw_function(GetParam())(split.span(), ordinary_step(t));
    adamw_function(GetParam())(whole.span(), ordinary_step(t));
  }
  std::vector<float> from_split(1000), from_whole(1000);
  read_master(MasterKind::kSplitResidual, split.weight.data(), split.master.data(), 1000,
              from_split.data());
  read_master(MasterKind::kF32, whole.weight.data(), whole.master.data(), 1000, from_whole.data());
  EXPECT_EQ(from_split, from_whole);
}

#if defined(__x86_64__)
TEST_P(AdamWKernel, KeepsDenormalsWhateverTheCallersModeAndPutsItBack) {
  std::mt19937_64 random(kSeed + 4);
  UpdateBuffers input(500, MasterKind::kF32, DType::kF32, 0);
  for (std::uint64_t i = 0; i < 500; ++i) {
    input.set_master(i, static_cast<float>(random() % 1000) * 1e-42f);
    input.set_gradient(i, static_cast<float>(random() % 1000) * 1e-42f);
    input.span().exp_avg[i] = static_cast<float>(random() % 1000) * 1e-42f;
    input.span().exp_avg_sq[i] = static_cast<float>(random() % 1000) * 1e-42f;
  }
  UpdateBuffers expected = input;
  adamw_reference(expected.span(), ordinary_step());
  ASSERT_GT(expected.span().exp_avg[1], 0.0f);
  ASSERT_LT(expected.span().exp_avg[1], std::numeric_limits<float>::min());
  const unsigned before = _mm_getcsr();
  const AdamWStep step = ordinary_step();
  const unsigned odd =
      before | 0x8040u | 0x6000u;  // flush to zero, denormals are zero, round toward zero
  UpdateBuffers actual = input;
  _mm_setcsr(odd);
  adamw_function(GetParam())(actual.span(), step);
  const AdamWStep step_in_odd_mode = ordinary_step();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, odd);
  EXPECT_EQ(std::memcmp(&step, &step_in_odd_mode, sizeof(step)), 0);
  EXPECT_TRUE(expected == actual);
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, AdamWKernel, testing::ValuesIn(kAllSets),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Master, IsTheWeightAfterAReset) {
  const std::uint16_t weight[] = {0x3f80, 0xc1a5, 0x0001, 0x7f80};
  std::uint16_t residual[] = {1, 2, 3, 4};
  float master[] = {1, 2, 3, 4};
  float split_values[4], f32_values[4];
  reset_master(MasterKind::kSplitResidual, weight, residual, 4);
  reset_master(MasterKind::kF32, weight, master, 4);
  read_master(MasterKind::kSplitResidual, weight, residual, 4, split_values);
  read_master(MasterKind::kF32, weight, master, 4, f32_values);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(split_values[i], base::bf16_to_f32(weight[i]));
    EXPECT_EQ(f32_values[i], base::bf16_to_f32(weight[i]));
  }
  const float itself[] = {0.1f, -2.5f};
  float out[2];
  reset_master(MasterKind::kWeightItself, itself, nullptr, 2);
  read_master(MasterKind::kWeightItself, itself, nullptr, 2, out);
  EXPECT_TRUE(std::equal(itself, itself + 2, out));
}

// An update whose learning rate is 0 stores the master it read.
TEST(Master, GoesInAsAnUpdateStoresIt) {
  constexpr std::uint64_t kElements = 4000;
  std::mt19937_64 random(kSeed + 5);
  std::vector<float> given(kElements);
  for (float& value : given) value = hard_or_ordinary(random, 3);
  for (const MasterKind kind : {MasterKind::kSplitResidual, MasterKind::kF32}) {
    SCOPED_TRACE(kind == MasterKind::kF32 ? "f32 master" : "split master");
    UpdateBuffers replaced(kElements, kind, DType::kF32, 1);
    UpdateBuffers updated(kElements, kind, DType::kF32, 1);
    for (std::uint64_t i = 0; i < kElements; ++i) {
      for (UpdateBuffers* buffers : {&replaced, &updated}) {
        buffers->set_gradient(i, 0);
        buffers->span().exp_avg[i] = 0;
        buffers->span().exp_avg_sq[i] = 0;
      }
      updated.set_master(i, given[i]);
      replaced.set_master(i, 0.25f);
    }
    adamw_reference(updated.span(), make_adamw_step({}, 0, 1, 1));
    const AdamWSpan span = replaced.span();
    EXPECT_TRUE(replace_masters(kind, given.data(), span.weight, span.master, kElements));
    EXPECT_TRUE(replaced == updated);
    EXPECT_FALSE(replace_masters(kind, given.data(), span.weight, span.master, kElements));
    std::vector<float> out(kElements);
    read_master(kind, span.weight, span.master, kElements, out.data());
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const std::uint32_t wanted =
          std::isnan(given[i]) ? base::kCanonicalNan : std::bit_cast<std::uint32_t>(given[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), wanted) << i;
    }
  }
}

TEST(Master, StaysWhereItsWeightStays) {
  for (const MasterKind kind : {MasterKind::kSplitResidual, MasterKind::kF32}) {
    const float masters[] = {0.1f, -3.7f, 1e-40f};
    std::uint16_t weight[3] = {};
    std::uint32_t master[3] = {};  // room for either layout
    replace_masters(kind, masters, weight, master, 3);
    std::uint16_t given[] = {weight[0], 0x4049, weight[2]};
    EXPECT_TRUE(replace_weights(kind, given, weight, master, 3));
    EXPECT_FALSE(replace_weights(kind, given, weight, master, 3));
    float out[3];
    read_master(kind, weight, master, 3, out);
    EXPECT_EQ(out[0], masters[0]);
    EXPECT_EQ(out[1], base::bf16_to_f32(0x4049));
    EXPECT_EQ(out[2], masters[2]);
    EXPECT_EQ(weight[1], 0x4049);
  }
  float itself[] = {1, 2};
  const float given[] = {1, 3};
  EXPECT_TRUE(replace_weights(MasterKind::kWeightItself, given, itself, nullptr, 2));
  EXPECT_FALSE(replace_masters(MasterKind::kWeightItself, given, itself, nullptr, 2));
  EXPECT_EQ(itself[1], 3);
}
}  // namespace
}  // namespace headrace::optimizer_cpu
