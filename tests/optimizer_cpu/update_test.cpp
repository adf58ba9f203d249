// SPDX-License-Identifier: Apache-2.0
// update_test.cpp: every kernel this CPU can run gives the reference's bits.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "optimizer_cpu/update_cases.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::uint64_t kLanesMax = 32;  // what one turn of the widest loop takes

class UpdateKernel : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!runs_here(GetParam())) GTEST_SKIP() << "this CPU has no " << name_of(GetParam());
    RecordProperty("seed", std::to_string(kSeed));
  }
  // Runs both on equal input; true if all bytes are equal afterwards, those around the arrays too.
  bool equals_reference(const UpdateBuffers& input, const UpdateStep& step) {
    UpdateBuffers expected = input;
    UpdateBuffers actual = input;
    update_reference(expected.span(), step);
    update_function(GetParam())(actual.span(), step);
    return expected == actual;
  }
};

TEST_P(UpdateKernel, GivesTheReferencesBitsAtEveryShortLengthAndOffset) {
  std::mt19937_64 random(kSeed);
  for_every_case([&](UpdateCase of) {
    for (of.elements = 0; of.elements <= 4 * kLanesMax + 1; ++of.elements) {
      of.offset = random() % 4 * 5;
      of.first_element = random() % 1000 * kScaleElements;
      UpdateBuffers buffers(of);
      fill(buffers, random, of.elements % 4);
      ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule)))
          << text_of(of) << " seed " << kSeed;
    }
  });
}

TEST_P(UpdateKernel, GivesTheReferencesBitsAcrossScalesAndRandomBlocks) {
  std::mt19937_64 random(kSeed + 1);
  for (const MomentCodec codec : kAllCodecs) {
    for (const OptimizerRule rule : kAllRules) {
      for (const std::uint64_t elements : {255u, 256u, 257u, 66000u}) {
        UpdateCase of{.rule = rule,
                      .kind = kAllKinds[random() % 4],
                      .gradient_dtype = kAllDTypes[random() % 3],
                      .codec = codec,
                      .elements = elements,
                      .offset = elements % 5,
                      .first_element = (std::uint64_t{1} << 33) + 65536 - 1024};
        UpdateBuffers buffers(of);
        fill(buffers, random, 1);
        ASSERT_TRUE(equals_reference(buffers, ordinary_step(rule))) << text_of(of);
      }
    }
  }
}

// HEADRACE_TEST_TILES sets how many.
TEST_P(UpdateKernel, GivesTheReferencesBitsForRandomTiles) {
  const char* const given = std::getenv("HEADRACE_TEST_TILES");
  const std::uint64_t tiles = given != nullptr ? std::strtoull(given, nullptr, 10) : 20000;
  std::mt19937_64 random(kSeed + 6);
  std::vector<UpdateCase> cases;
  for_every_case([&](const UpdateCase& of) { cases.push_back(of); });
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    UpdateCase of = cases[random() % cases.size()];
    of.elements = random() % 8 == 0 ? random() % 700 : random() % 70;
    of.offset = random() % 16;
    of.first_element = random() % 4096 * kScaleElements;
    UpdateBuffers buffers(of);
    fill(buffers, random, random() % 4);
    const auto t = static_cast<std::uint64_t>(1) << random() % 20;
    ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule, t)))
        << text_of(of) << " tile " << tile << " seed " << kSeed + 6;
  }
}

TEST_P(UpdateKernel, GivesTheReferencesBitsForHardConstants) {
  std::mt19937_64 random(kSeed + 2);
  for_every_case([&](UpdateCase of) {
    of.elements = 300;
    of.offset = 1;
    const auto steps = hard_steps(of.rule);
    for (const UpdateStep& step : steps) {
      UpdateBuffers buffers(of);
      fill(buffers, random, 3);
      ASSERT_TRUE(equals_reference(buffers, step))
          << "step " << &step - steps.data() << " " << text_of(of);
    }
  });
}

// Blocks from the least denormal to the largest number: where scales and codes end.
TEST_P(UpdateKernel, GivesTheReferencesBitsAtEveryMagnitude) {
  std::mt19937_64 random(kSeed + 9);
  for_every_case([&](UpdateCase of) {
    if (of.gradient_dtype == DType::kF16) return;  // holds few of them
    of.elements = kScaleElements;
    const bool scaled = has_scales(of.codec);
    for (int exponent = -150; exponent < 128; exponent += scaled && exponent < -120 ? 1 : 13) {
      UpdateBuffers buffers(of);
      fill_at_magnitude(buffers, random, exponent);
      const UpdateStep step = ordinary_step(of.rule, 1, exponent % 2 == 0 ? 1.0 : 0.37);
      ASSERT_TRUE(equals_reference(buffers, step)) << text_of(of) << " exponent " << exponent;
    }
  });
}

// No encoder leaves all of these codes and scales; a caller's memory may hold them.
TEST_P(UpdateKernel, GivesTheReferencesBitsForAnyBytes) {
  std::mt19937_64 random(kSeed + 10);
  for_every_case([&](UpdateCase of) {
    of.elements = 3 * kScaleElements + 7;
    for (int scale = 0; scale < 256; scale += has_scales(of.codec) ? 12 : 128) {
      UpdateBuffers buffers(of);
      fill(buffers, random, 1);
      for (std::uint32_t k = 0; k < moments(arithmetic_of(of.rule)); ++k) {
        auto* const data = static_cast<unsigned char*>(buffers.moment[k].data());
        for (std::uint64_t i = 0; i < of.elements * moment_bytes(of.codec); ++i)
          data[i] = static_cast<unsigned char>(random());
        auto* const scales = static_cast<unsigned char*>(buffers.scale[k].data());
        for (std::uint64_t i = 0; i < 4; ++i)
          scales[i] = static_cast<unsigned char>(std::uint64_t(scale) + i);
      }
      ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule)))
          << text_of(of) << " scale " << scale;
    }
  });
}

// Of a span in pieces, as threads and tiles take it.
TEST_P(UpdateKernel, GivesTheSameBitsInPieces) {
  std::mt19937_64 random(kSeed + 7);
  for_every_case([&](UpdateCase of) {
    of.elements = 1500;
    of.first_element = 65536 - 512;
    UpdateBuffers whole(of);
    fill(whole, random, 1);
    UpdateBuffers pieces = whole;
    update_function(GetParam())(whole.span(), ordinary_step(of.rule));
    for (std::uint64_t at = 0; at < of.elements;) {
      const std::uint64_t count = std::min(
          of.elements - at, (1 + random() % 3) * kScaleElements);  // scales are not divided
      UpdateSpan span = pieces.span();
      span.elements = count;
      span.first_element += at;
      const auto moved = [at](void* data, std::uint64_t bytes) -> void* {
        return data == nullptr ? nullptr : static_cast<std::byte*>(data) + at * bytes;
      };
      span.weight = moved(span.weight, weight_bytes(of.kind));
      span.master = moved(span.master, master_bytes(of.kind));
      for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
        span.moment[k] = moved(span.moment[k], moment_bytes(of.codec));
        if (span.moment_scale[k] != nullptr) span.moment_scale[k] += at / kScaleElements;
      }
      span.gradient =
          static_cast<const std::byte*>(span.gradient) + at * size_bytes(of.gradient_dtype);
      update_function(GetParam())(span, ordinary_step(of.rule));
      at += count;
    }
    ASSERT_TRUE(whole == pieces) << text_of(of);
  });
}

TEST_P(UpdateKernel, StoresEveryNanInItsOneForm) {
  UpdateBuffers buffers(40, MasterKind::kF32, DType::kF32, 0);
  const UpdateSpan span = buffers.span();
  float *const moment0 = buffers.f32_moment(0), *const moment1 = buffers.f32_moment(1);
  for (std::uint64_t i = 0; i < 40; ++i) {
    buffers.set_master(i, 1.0f);
    buffers.set_gradient(i, std::bit_cast<float>(0xffa12345u));
    moment0[i] = std::bit_cast<float>(0x7fb00001u);
    moment1[i] = 0.0f;
  }
  update_function(GetParam())(span, ordinary_step());
  for (std::uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(moment0[i]), kernels::kCanonicalNan);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(moment1[i]), kernels::kCanonicalNan);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float*>(span.master)[i]),
              kernels::kCanonicalNan);
    ASSERT_EQ(static_cast<std::uint16_t*>(span.weight)[i], kernels::kCanonicalNan >> 16);
  }
}

TEST_P(UpdateKernel, KeepsTheSameMasterInEitherLayout) {
  std::mt19937_64 random(kSeed + 3);
  UpdateBuffers split(1000, MasterKind::kSplitResidual, DType::kF32, 0);
  UpdateBuffers whole(1000, MasterKind::kF32, DType::kF32, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const float master = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    const float gradient = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    for (UpdateBuffers* buffers : {&split, &whole}) {
      buffers->set_master(i, master);
      buffers->set_gradient(i, gradient);
      buffers->f32_moment(0)[i] = 0.0f;
      buffers->f32_moment(1)[i] = 0.0f;
    }
  }
  for (std::uint64_t t = 1; t <= 5; ++t) {
    update_function(GetParam())(split.span(), ordinary_step(OptimizerRule::kAdamW, t));
    update_function(GetParam())(whole.span(), ordinary_step(OptimizerRule::kAdamW, t));
  }
  std::vector<float> from_split(1000), from_whole(1000);
  read_master(MasterKind::kSplitResidual, split.weight.data(), split.master.data(), 1000,
              from_split.data());
  read_master(MasterKind::kF32, whole.weight.data(), whole.master.data(), 1000, from_whole.data());
  EXPECT_EQ(from_split, from_whole);
}

#if defined(__x86_64__)
TEST_P(UpdateKernel, KeepsDenormalsWhateverTheCallersModeAndPutsItBack) {
  std::mt19937_64 random(kSeed + 4);
  UpdateBuffers input(500, MasterKind::kF32, DType::kF32, 0);
  for (std::uint64_t i = 0; i < 500; ++i) {
    input.set_master(i, static_cast<float>(random() % 1000) * 1e-42f);
    input.set_gradient(i, static_cast<float>(random() % 1000) * 1e-42f);
    input.f32_moment(0)[i] = static_cast<float>(random() % 1000) * 1e-42f;
    input.f32_moment(1)[i] = static_cast<float>(random() % 1000) * 1e-42f;
  }
  UpdateBuffers expected = input;
  update_reference(expected.span(), ordinary_step());
  ASSERT_GT(expected.f32_moment(0)[1], 0.0f);
  ASSERT_LT(expected.f32_moment(0)[1], std::numeric_limits<float>::min());
  const unsigned before = _mm_getcsr();
  const UpdateStep step = ordinary_step();
  const unsigned odd =
      before | 0x8040u | 0x6000u;  // flush to zero, denormals are zero, round toward zero
  UpdateBuffers actual = input;
  _mm_setcsr(odd);
  update_function(GetParam())(actual.span(), step);
  const UpdateStep step_in_odd_mode = ordinary_step();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, odd);
  EXPECT_TRUE(step == step_in_odd_mode);
  EXPECT_TRUE(expected == actual);
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, UpdateKernel, testing::ValuesIn(kAllSets),
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
    EXPECT_EQ(split_values[i], kernels::bf16_to_f32(weight[i]));
    EXPECT_EQ(f32_values[i], kernels::bf16_to_f32(weight[i]));
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
  for (const MasterKind kind :
       {MasterKind::kSplitResidual, MasterKind::kF32, MasterKind::kF32OfF16}) {
    SCOPED_TRACE(int(kind));
    UpdateBuffers replaced(kElements, kind, DType::kF32, 1);
    UpdateBuffers updated(kElements, kind, DType::kF32, 1);
    for (std::uint64_t i = 0; i < kElements; ++i) {
      for (UpdateBuffers* buffers : {&replaced, &updated}) {
        buffers->set_gradient(i, 0);
        buffers->f32_moment(0)[i] = 0;
        buffers->f32_moment(1)[i] = 0;
      }
      updated.set_master(i, given[i]);
      replaced.set_master(i, 0.25f);
    }
    update_reference(updated.span(), make_update_step(OptimizerRule::kAdamW, {}, 0, 1, 1));
    const UpdateSpan span = replaced.span();
    EXPECT_TRUE(replace_masters(kind, given.data(), span.weight, span.master, kElements));
    EXPECT_TRUE(replaced == updated);
    EXPECT_FALSE(replace_masters(kind, given.data(), span.weight, span.master, kElements));
    std::vector<float> out(kElements);
    read_master(kind, span.weight, span.master, kElements, out.data());
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const std::uint32_t wanted =
          std::isnan(given[i]) ? kernels::kCanonicalNan : std::bit_cast<std::uint32_t>(given[i]);
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
    EXPECT_EQ(out[1], kernels::bf16_to_f32(0x4049));
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
