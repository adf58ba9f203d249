// SPDX-License-Identifier: Apache-2.0
// parameter_checks_test: whatever is wrong with one of many parameters is named before any of them
// is written; and units of many sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "headrace/cpu_optimizer.hpp"
#include "optimizer_cpu/owned_parameter.hpp"
#include "optimizer_cpu/unit_list.hpp"
#include "support/expect_code.hpp"

namespace headrace {
namespace {
using testing::OwnedParameter;

// "good", and "bad" to which `change` is made.
struct Pair {
  explicit Pair(CpuOptimizer& optimizer) {
    for (OwnedParameter* parameter : {&good, &bad}) {
      parameter->allocate(optimizer);
      parameter->t = 1;
    }
    const ParameterState states[] = {good.state(), bad.state()};
    optimizer.initialize(states);
  }
  OwnedParameter good = {.name = "good", .number = 1, .elements = 600};
  OwnedParameter bad = {.name = "bad", .number = 2, .elements = 600};
};
using Change = std::function<void(Pair& pair, ParameterUpdate& bad)>;

void expect_refused(const CpuOptimizerOptions& options, const Change& change, const char* text) {
  CpuOptimizer optimizer(options);
  Pair pair(optimizer);
  const Pair before = pair;
  ParameterUpdate updates[] = {pair.good.update(), pair.bad.update()};
  change(pair, updates[1]);
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step(updates, {.learning_rate = 0.1f}), text);
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step(updates, {.learning_rate = 0.1f}),
              "nothing was updated; ");
  EXPECT_TRUE(pair.good.same_values(before.good)) << text;
  EXPECT_TRUE(pair.bad.same_values(before.bad)) << text;
}

TEST(ParameterChecks, NameTheArrayWhoseLengthIsWrong) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.moments = MomentCodec::kBlock8, .threads = 1}, change, text);
  };
  refused([](Pair&, ParameterUpdate& u) { u.state.weight = u.state.weight.first(1198); },
          "the weight of 'bad' is 1198 bytes, but must be 1200 for 600 elements");
  refused([](Pair&, ParameterUpdate& u) { u.gradient = u.gradient.first(0); },
          "the gradient of 'bad' is 0 bytes");
  refused([](Pair&, ParameterUpdate& u) { u.gradient_dtype = DType::kF32; },
          "the gradient of 'bad' is 1200 bytes, but must be 2400 for 600 elements of F32: nothing "
          "was updated; gradient_dtype says what the array holds");
  refused([](Pair&, ParameterUpdate& u) { u.state.layout = MasterLayout::kF32; },
          "the master of 'bad' is 1200 bytes, but must be 2400");
  refused([](Pair&, ParameterUpdate& u) { u.state.dtype = DType::kF32; }, "the weight of 'bad'");
  refused([](Pair&, ParameterUpdate& u) { u.state.moment[0] = u.state.moment[0].first(599); },
          "the first moment of 'bad' is 599 bytes, but must be 600");
  refused([](Pair&, ParameterUpdate& u) { u.state.moment[1] = {}; }, "the second moment of 'bad'");
  refused([](Pair&, ParameterUpdate& u) { u.state.moment_scale[1] = {}; },
          "the second moment's scale of 'bad' is 0 bytes, but must be 3");
  refused([](Pair&, ParameterUpdate& u) { u.state.elements = 601; }, "the weight of 'bad'");
  refused([](Pair&, ParameterUpdate& u) { u.state.elements = ~std::uint64_t{0}; }, "2^48");
  expect_refused(
      {.rule = OptimizerRule::kSgd, .threads = 1},
      [](Pair& pair, ParameterUpdate& u) { u.state.moment[0] = pair.good.master; },
      "leave it empty");
}

TEST(ParameterChecks, NameThePlaceOfAParameterThatHasNoName) {
  expect_refused(
      {.threads = 1},
      [](Pair&, ParameterUpdate& u) {
        u.state.name = {};
        u.t = 0;
      },
      "t = 0 for parameter 1 of the call (unnamed): nothing was updated");
  CpuOptimizer optimizer({.threads = 1});
  Pair pair(optimizer);
  pair.bad.name = "";
  std::ranges::fill(pair.bad.gradient, std::byte{0xff});
  const ParameterUpdate updates[] = {pair.good.update(), pair.bad.update()};
  EXPECT_CODE(Code::kNotFinite, optimizer.step(updates, {.learning_rate = 0.1f}),
              "the gradient of parameter 1 of the call (unnamed) holds NaN");
}

TEST(ParameterChecks, NameTheArrayThatIsNullOrMisaligned) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.threads = 1}, change, text);
  };
  refused(
      [](Pair&, ParameterUpdate& u) {
        u.gradient = {static_cast<std::byte*>(nullptr), 1200};
      },
      "the gradient of 'bad' is a null pointer");
  std::vector<std::byte> room(2403);
  refused([&](Pair&, ParameterUpdate& u) { u.state.moment[1] = std::span(room).subspan(2, 2400); },
          "the second moment of 'bad' begins 2 bytes past a multiple of 4");
  refused([&](Pair&, ParameterUpdate& u) { u.state.weight = std::span(room).subspan(3, 1200); },
          "the weight of 'bad' begins 1 bytes past a multiple of 2");
}

TEST(ParameterChecks, NameArraysThatOverlap) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.threads = 1}, change, text);
  };
  refused([](Pair& pair, ParameterUpdate& u) { u.state.weight = pair.good.weight; },
          "of 'good' and the weight of 'bad' share 1200 bytes");
  refused([](Pair&, ParameterUpdate& u) { u.state.moment[1] = u.state.moment[0]; },
          "moment of 'bad' share 2400 bytes");
  // The last two bytes of a weight are another's first; a gradient is a weight.
  refused(
      [](Pair& pair, ParameterUpdate& u) {
        u.state.master = std::span(pair.good.moment[0]).subspan(1198 + 2, 1200);
      },
      "the first moment of 'good' and the master of 'bad' share 1200 bytes");
  refused([](Pair& pair, ParameterUpdate& u) { u.gradient = pair.good.weight; },
          "share 1200 bytes");
  refused([](Pair&, ParameterUpdate& u) { u.gradient = u.state.weight; }, "share 1200 bytes");
}

TEST(ParameterChecks, LetGradientsShareMemoryAndArraysTouch) {
  CpuOptimizer optimizer({.rule = OptimizerRule::kSgd, .threads = 1});
  std::vector<std::byte> weights(2 * 1200), masters(2 * 1200);
  const std::vector<std::byte> gradient(1200, std::byte{0x3c});
  std::vector<ParameterUpdate> updates(2);
  for (std::size_t i = 0; i < 2; ++i) {
    updates[i].state.name = "w";
    updates[i].state.elements = 600;
    updates[i].state.weight = std::span(weights).subspan(1200 * i, 1200);
    updates[i].state.master = std::span(masters).subspan(1200 * i, 1200);
    updates[i].gradient = gradient;
    updates[i].t = 1;
  }
  EXPECT_FALSE(optimizer.step(updates, {.learning_rate = 0.1f}).skipped);
  EXPECT_NE(weights[0], std::byte{0});
  EXPECT_TRUE(std::equal(weights.begin(), weights.begin() + 1200, weights.begin() + 1200));
}

TEST(ParameterChecks, RefuseNumbersOutOfTheirRange) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.moments = MomentCodec::kBlock8, .threads = 1}, change, text);
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  refused([](Pair&, ParameterUpdate& u) { u.t = 0; }, "t = 0 for 'bad'");
  refused([](Pair&, ParameterUpdate& u) { u.state.number = 1; }, "both have the number 1");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.beta1 = 1; },
          "'bad': hyperparameters: beta1");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.beta2 = kNan; }, "beta2");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.eps = 0; }, "8-bit");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.weight_decay = -1; }, "weight_decay");
  refused([](Pair&, ParameterUpdate& u) { u.state.dtype = static_cast<DType>(7); }, "'bad'");
  refused([](Pair&, ParameterUpdate& u) { u.gradient_dtype = static_cast<DType>(7); }, "'bad'");
}

TEST(ParameterChecks, WriteNumbersAsTheyWereGiven) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.threads = 1}, change, text);
  };
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.eps = -1e-9f; },
          "'bad': hyperparameters: eps = -1e-09: nothing was updated; it must be finite");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.beta2 = 1.0000001f; },
          "beta2 = 1.0000001: nothing was updated; it must be at least 0 and below 1");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.weight_decay = -3e38f; },
          "weight_decay = -3e+38: ");
  refused([](Pair&, ParameterUpdate& u) { u.hyperparameters.learning_rate_scale = -0.5f; },
          "learning_rate_scale = -0.5: nothing was updated; it must be finite and not negative");
}

TEST(ParameterChecks, KeepTheirMessageToOneShortLine) {
  CpuOptimizer optimizer({.threads = 1});
  Pair pair(optimizer);
  ParameterUpdate update = pair.bad.update();
  const std::string name = "w\n\x1b[2J" + std::string(100'000, 'w');
  update.state.name = name;
  const auto text_of = [&](float learning_rate) -> std::string {
    return testing::error_of([&] {
             optimizer.step({&update, 1}, {.learning_rate = learning_rate});
           })
        .what();
  };
  const auto expect_short = [](const std::string& text) {
    EXPECT_LT(text.size(), 400u);
    EXPECT_EQ(text.find_first_of("\n\x1b"), std::string::npos) << text;
  };
  expect_short(text_of(3e38f));
  pair.bad.gradient[1] = std::byte{0xff};  // a NaN
  pair.bad.gradient[0] = std::byte{0xff};
  expect_short(text_of(0.1f));
  update.t = 0;
  expect_short(text_of(0.1f));
}

// Each is a number; their product is none.
TEST(ParameterChecks, RefuseAStepThatOverflows) {
  const auto refused = [](const Change& change, const char* text) {
    expect_refused({.threads = 1}, change, text);
  };
  refused(
      [](Pair&, ParameterUpdate& u) {
        u.hyperparameters.beta1 = 0.99f;
        u.hyperparameters.learning_rate_scale = 3e38f;
      },
      "'bad': learning_rate = 0.1 with learning_rate_scale = 3e+38 and weight_decay = 0.01 "
      "makes a step that no f32 holds: nothing was updated; lower them");
  refused(
      [](Pair&, ParameterUpdate& u) {
        u.hyperparameters.weight_decay = 3e38f;
        u.hyperparameters.learning_rate_scale = 100;
      },
      "and weight_decay = 3e+38 makes");
}

TEST(ParameterChecks, RefuseStepOptionsThatAreNoNumbers) {
  CpuOptimizer optimizer({.threads = 1});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step({}, {.learning_rate = kNan}), "learning_rate");
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step({}, {.learning_rate = kInfinity}),
              "learning_rate = inf");
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step({}, {.gradient_scale = -1e-7f}),
              "step: gradient_scale = -1e-07: nothing was updated; it must be finite");
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step({}, {.max_norm = kNan}), "max_norm = nan");
}

TEST(ParameterChecks, CountNoBytesOfWhatCannotBe) {
  const CpuOptimizer optimizer({.threads = 1});
  const auto count = [&](DType dtype, MasterLayout layout, std::uint64_t elements) {
    static_cast<void>(optimizer.state_bytes(dtype, layout, elements));
  };
  EXPECT_CODE(Code::kInvalidArgument,
              count(DType::kBf16, MasterLayout::kSplit, std::uint64_t{1} << 62),
              "a parameter has 4611686018427387904 elements: its bytes were not counted; at most");
  EXPECT_CODE(Code::kInvalidArgument, count(static_cast<DType>(9), MasterLayout::kSplit, 1),
              "the dtype or the master layout of a parameter");
  EXPECT_CODE(Code::kInvalidArgument, count(DType::kBf16, static_cast<MasterLayout>(9), 1),
              "the dtype or the master layout of a parameter");
}

TEST(ParameterChecks, OfFirstValuesSayThatNothingWasWritten) {
  CpuOptimizer optimizer({.threads = 1});
  Pair pair(optimizer);
  const Pair before = pair;
  ParameterState states[] = {pair.good.state(), pair.bad.state()};
  states[1].master = states[0].master;
  EXPECT_CODE(Code::kInvalidArgument, optimizer.initialize(states), "nothing was written; ");
  EXPECT_TRUE(pair.good.same_values(before.good));
}

// ---- units ----

TEST(UnitList, CoversEachElementOnceInUnitsOfBoundedWork) {
  optimizer_cpu::UnitList list;
  const std::vector<std::uint64_t> sizes = {400'003, 0, 5, 100'000, 131'072, 31'000, 1, 65'536};
  for (const std::uint64_t size : sizes) list.add(size);
  std::vector<std::uint64_t> covered(sizes.size());
  std::uint64_t blocks = 0;
  for (std::uint64_t u = 0; u < list.units(); ++u) {
    std::uint64_t work = 0;
    for (const optimizer_cpu::UnitPiece& piece : list.unit(u)) {
      EXPECT_EQ(piece.first_element, covered[piece.parameter]);
      EXPECT_EQ(piece.first_element % base::kChunkElements, 0u);
      EXPECT_EQ(piece.first_block, blocks);
      covered[piece.parameter] += piece.elements;
      blocks += (piece.elements + 65'535) / 65'536;
      work += piece.elements;
    }
    EXPECT_GT(work, 0u);
    EXPECT_LE(work, base::kChunkElements);
  }
  EXPECT_EQ(covered, sizes);
  EXPECT_EQ(list.blocks(), blocks);
}

TEST(UnitList, JoinsManySmallParameters) {
  optimizer_cpu::UnitList list;
  for (int i = 0; i < 1024; ++i) list.add(256);
  EXPECT_EQ(list.units(), 2u);
  list.clear();
  EXPECT_EQ(list.units(), 0u);
}
}  // namespace
}  // namespace headrace
