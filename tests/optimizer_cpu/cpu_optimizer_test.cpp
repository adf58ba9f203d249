// SPDX-License-Identifier: Apache-2.0
// cpu_optimizer_test: a program's own arrays: the same bits on any threads, pool and instruction
// set; the gradients' statistics; what happens to those that are not finite.
#include "headrace/cpu_optimizer.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/instruction_set.hpp"
#include "optimizer_cpu/masters.hpp"
#include "optimizer_cpu/owned_parameter.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "support/expect_code.hpp"

namespace headrace {
namespace {
using testing::OwnedParameter;

constexpr OptimizerRule kRules[] = {OptimizerRule::kAdamW,   OptimizerRule::kAdam,
                                    OptimizerRule::kAdagrad, OptimizerRule::kLion,
                                    OptimizerRule::kSgd,     OptimizerRule::kSgdMomentum};
constexpr MomentCodec kCodecs[] = {MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8};
constexpr StepOptions kStep = {.learning_rate = 1e-2f, .gradient_scale = 0.5f, .max_norm = 0.3f};

// A large one, one of each format, and many that are smaller than a unit.
std::vector<OwnedParameter> model() {
  std::vector<OwnedParameter> model = {
      {.name = "large", .elements = 270'003},
      {.name = "plain", .elements = 131'072, .layout = MasterLayout::kF32},
      {.name = "half", .elements = 70'001, .dtype = DType::kF16, .gradient_dtype = DType::kF16},
      {.name = "f32", .elements = 65'537, .dtype = DType::kF32, .gradient_dtype = DType::kF32},
      {.name = "none", .elements = 0},
      {.name = "mixed", .elements = 1'000, .gradient_dtype = DType::kF32},
  };
  for (std::uint64_t i = 0; i < 40; ++i)
    model.push_back({.name = "small" + std::to_string(i), .elements = 1 + 37 * i});
  for (std::uint64_t i = 0; i < model.size(); ++i) {
    model[i].number = i;
    if (i % 3 == 0) model[i].hyperparameters.weight_decay = 0;
  }
  return model;
}

std::vector<ParameterUpdate> updates_of(std::vector<OwnedParameter>& model) {
  std::vector<ParameterUpdate> updates;
  for (OwnedParameter& parameter : model) updates.push_back(parameter.update());
  return updates;
}

void initialize(CpuOptimizer& optimizer, std::vector<OwnedParameter>& model) {
  std::vector<ParameterState> states;
  for (OwnedParameter& parameter : model) {
    parameter.allocate(optimizer);
    states.push_back(parameter.state());
  }
  optimizer.initialize(states);
}

CpuStepResult step(CpuOptimizer& optimizer, std::vector<OwnedParameter>& model,
                   const StepOptions& options = kStep) {
  for (OwnedParameter& parameter : model) parameter.new_gradient(++parameter.t);
  return optimizer.step(updates_of(model), options);
}

std::vector<OwnedParameter> trained(const CpuOptimizerOptions& options, int steps = 2) {
  CpuOptimizer optimizer(options);
  std::vector<OwnedParameter> trained = model();
  initialize(optimizer, trained);
  for (int i = 0; i < steps; ++i) step(optimizer, trained);
  return trained;
}

void expect_same(const std::vector<OwnedParameter>& a, const std::vector<OwnedParameter>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].same_values(b[i])) << a[i].name << ", " << what;
}

// ---- pools ----

using RunUnit = void (*)(void*, std::uint64_t);

void backwards(std::uint64_t units, RunUnit run, void* context) {
  for (std::uint64_t unit = units; unit-- > 0;) run(context, unit);
}
void every_unit_twice_and_more(std::uint64_t units, RunUnit run, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([=] {
      for (std::uint64_t unit = 0; unit < units + 5; ++unit) run(context, unit);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
void only_the_first(std::uint64_t, RunUnit run, void* context) { run(context, 0); }
void flushing_to_zero(std::uint64_t units, RunUnit run, void* context) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  backwards(units, run, context);
  EXPECT_EQ(_mm_getcsr() & 0xffc0u, (before | 0x8040) & 0xffc0u);
  _mm_setcsr(before);
#else
  backwards(units, run, context);
#endif
}

// Slow, and what they look for is in every rule.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif

TEST(CpuOptimizer, GivesTheSameBitsOnAnyThreadsPoolAndInstructionSet) {
  for (const OptimizerRule rule : kRules) {
    for (const MomentCodec codec : kCodecs) {
      if (kSanitizer && (rule != OptimizerRule::kAdamW || codec == MomentCodec::kF32)) continue;
      const CpuOptimizerOptions base = {.rule = rule, .moments = codec, .rounding_seed = 7};
      const auto with = [&](auto change) {
        CpuOptimizerOptions options = base;
        change(options);
        return trained(options);
      };
      const auto expected = with([](auto& o) { o.threads = 1; });
      const std::string name = name_of(rule);
      for (const std::uint32_t threads : {2u, 3u, 7u})
        expect_same(with([&](auto& o) { o.threads = threads; }), expected, name + " threads");
      for (const Simd simd : {Simd::kScalar, Simd::kAvx2, Simd::kAvx512}) {
        if (!kernels::runs_here(simd)) continue;
        expect_same(with([&](auto& o) { o.simd = simd; }), expected, name + " instruction set");
      }
      for (const RunUnits& pool : {RunUnits(backwards), RunUnits(every_unit_twice_and_more),
                                   RunUnits(only_the_first), RunUnits(flushing_to_zero)})
        expect_same(with([&](auto& o) { o.run_units = pool; }), expected, name + " pool");
    }
  }
}

TEST(CpuOptimizer, GivesTheSameBitsHoweverParametersAreDividedAmongCalls) {
  const CpuOptimizerOptions options = {.moments = MomentCodec::kBf16, .threads = 2};
  CpuOptimizer optimizer(options);
  std::vector<OwnedParameter> together = model(), apart = model();
  initialize(optimizer, together);
  initialize(optimizer, apart);
  step(optimizer, together, {.learning_rate = 1e-2f});
  for (OwnedParameter& parameter : apart) {
    parameter.new_gradient(++parameter.t);
    const ParameterUpdate update = parameter.update();
    optimizer.step({&update, 1}, {.learning_rate = 1e-2f});
  }
  expect_same(apart, together, "apart");
}

TEST(CpuOptimizer, RoundsByItsSeedTheParametersNumberAndTheStep) {
  const auto of = [](std::uint64_t seed, std::uint64_t number, MomentCodec moments,
                     std::uint64_t t = 1) {
    CpuOptimizer optimizer({.moments = moments, .rounding_seed = seed, .threads = 1});
    OwnedParameter parameter = {.name = "w", .elements = 1000};
    parameter.allocate(optimizer);
    parameter.number = number;
    parameter.t = t;
    const ParameterState state = parameter.state();
    optimizer.initialize({&state, 1});
    const ParameterUpdate update = parameter.update();
    optimizer.step({&update, 1}, kStep);
    return parameter.moment[0];
  };
  EXPECT_EQ(of(1, 2, MomentCodec::kBf16), of(1, 2, MomentCodec::kBf16));
  EXPECT_NE(of(1, 2, MomentCodec::kBf16), of(2, 2, MomentCodec::kBf16));
  EXPECT_NE(of(1, 2, MomentCodec::kBf16), of(1, 3, MomentCodec::kBf16));
  EXPECT_NE(of(1, 2, MomentCodec::kBf16), of(1, 2, MomentCodec::kBf16, 2));
  EXPECT_EQ(of(1, 2, MomentCodec::kF32), of(2, 3, MomentCodec::kF32, 2));
}

TEST(CpuOptimizer, SaysWhatAPoolLeftToTheCaller) {
  const auto left = [](const RunUnits& pool) {
    CpuOptimizer optimizer({.run_units = pool});
    EXPECT_EQ(optimizer.threads(), 0u);
    std::vector<OwnedParameter> parameters = model();
    initialize(optimizer, parameters);
    return step(optimizer, parameters).units_left_by_pool;
  };
  EXPECT_EQ(left(backwards), 0u);
  EXPECT_EQ(left(every_unit_twice_and_more), 0u);
  EXPECT_GE(left(only_the_first), 6u);  // all but one in either pass
}

// Throws in call `n`, after its first unit.
struct Throwing {
  int calls_left;
  void operator()(std::uint64_t units, RunUnit run, void* context) {
    run(context, 0);
    if (--calls_left == 0) throw std::runtime_error("the pool is closed");
    backwards(units, run, context);
  }
};

TEST(CpuOptimizer, LeavesAStepWholeOrNotBegunWhenAPoolThrows) {
  const std::vector<OwnedParameter> before = trained({.threads = 1}, 0);
  const std::vector<OwnedParameter> after = trained({.threads = 1}, 1);
  for (const int call : {2, 3}) {  // after initialize: the first pass, the second
    CpuOptimizer optimizer({.run_units = Throwing{call}});
    std::vector<OwnedParameter> parameters = model();
    initialize(optimizer, parameters);
    EXPECT_THROW(step(optimizer, parameters), std::runtime_error);
    expect_same(parameters, call == 2 ? before : after, "call " + std::to_string(call));
  }
}

// A pool that gives up while a thread of it is still at work.
TEST(CpuOptimizer, WaitsForWhatAPoolLeftRunning) {
  const std::vector<OwnedParameter> expected = trained({.threads = 1}, 0);
  std::thread thread;
  std::atomic<bool> began = false;
  const auto gives_up = [&](std::uint64_t units, RunUnit run, void* context) {
    began = false;
    thread = std::thread([&began, units, run, context] {
      for (std::uint64_t unit = 0; unit < units; ++unit) {
        run(context, unit);
        began = true;
      }
    });
    while (!began) std::this_thread::yield();
    throw std::runtime_error("the pool is closed");
  };
  CpuOptimizer optimizer({.run_units = gives_up});
  std::vector<OwnedParameter> parameters = model();
  EXPECT_THROW(initialize(optimizer, parameters), std::runtime_error);
  expect_same(parameters, expected, "all of it was initialized");
  thread.join();
  EXPECT_THROW(step(optimizer, parameters), std::runtime_error);
  expect_same(parameters, expected, "its first pass only");
  thread.join();
}

#if defined(__x86_64__)
// A host may flush denormals and round as it likes: step() is called in its mode.
TEST(CpuOptimizer, GivesTheSameBitsInAnyFloatModeOfItsCaller) {
  CpuOptimizer optimizer({.threads = 2});
  std::vector<OwnedParameter> usual = model(), odd = model();
  initialize(optimizer, usual);
  initialize(optimizer, odd);
  for (const unsigned rounding : {0x2000u, 0x4000u, 0x6000u}) {  // down, up, toward zero
    const CpuStepResult wanted = step(optimizer, usual);
    for (OwnedParameter& parameter : odd) parameter.new_gradient(++parameter.t);
    const std::vector<ParameterUpdate> updates = updates_of(odd);
    const unsigned before = _mm_getcsr();
    const unsigned mode = (before & ~0x6000u) | 0x8040u | rounding;  // denormals flushed, and zero
    _mm_setcsr(mode);
    const CpuStepResult result = optimizer.step(updates, kStep);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0xffc0u, mode & 0xffc0u);
    EXPECT_EQ(result.gradients.sum_squares, wanted.gradients.sum_squares) << rounding;
    EXPECT_EQ(result.gradient_norm, wanted.gradient_norm) << rounding;
    EXPECT_EQ(result.clip_factor, wanted.clip_factor) << rounding;
  }
  expect_same(odd, usual, "float mode");
}
#endif

TEST(CpuOptimizer, RefusesASecondCallMeanwhile) {
  CpuOptimizer* self = nullptr;
  const auto again = [&](std::uint64_t units, RunUnit run, void* context) {
    EXPECT_CODE(Code::kWrongState, self->initialize({}), "another call is under way");
    backwards(units, run, context);
  };
  CpuOptimizer optimizer({.run_units = again});
  self = &optimizer;
  std::vector<OwnedParameter> parameters = model();
  initialize(optimizer, parameters);
  EXPECT_FALSE(step(optimizer, parameters).skipped);
}

TEST(CpuOptimizer, RefusesToWorkInAForkedChild) {
  CpuOptimizer optimizer({.threads = 2});
  std::vector<OwnedParameter> parameters = model();
  initialize(optimizer, parameters);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      optimizer.initialize({});
    } catch (const Error& error) {
      { const CpuOptimizer gone = std::move(optimizer); }
      ::_exit(error.code() == Code::kWrongState ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(step(optimizer, parameters).skipped);
}

TEST(CpuOptimizer, BeginsWithMastersOfTheWeightsAndMomentsOfZero) {
  for (const MomentCodec codec : kCodecs) {
    for (const OwnedParameter& p : trained({.moments = codec, .threads = 2}, 0)) {
      std::vector<std::byte> zero(p.moment[0].size());
      EXPECT_EQ(p.moment[0], zero);
      EXPECT_EQ(p.moment[1], zero);
      zero.resize(p.scale[0].size());
      EXPECT_EQ(p.scale[0], zero);
      const auto kind = optimizer_cpu::master_kind(p.dtype, p.layout);
      std::vector<float> masters(p.elements);
      optimizer_cpu::read_master(kind, p.weight.data(), p.master.data(), p.elements,
                                 masters.data());
      EXPECT_EQ(testing::as_dtype(p.dtype, masters), p.weight) << p.name;
    }
  }
}

TEST(CpuOptimizer, SaysHowManyBytesAParameterNeeds) {
  const CpuOptimizer adamw({.threads = 1});
  EXPECT_EQ(adamw.state_bytes(DType::kBf16, MasterLayout::kSplit, 1000).total(), 10'000u);
  EXPECT_EQ(adamw.state_bytes(DType::kBf16, MasterLayout::kF32, 1000).total(), 12'000u);
  EXPECT_EQ(adamw.state_bytes(DType::kF16, MasterLayout::kSplit, 1000).master, 4'000u);
  EXPECT_EQ(adamw.state_bytes(DType::kF32, MasterLayout::kSplit, 1000).master, 0u);
  const CpuOptimizer lion({.rule = OptimizerRule::kLion, .moments = MomentCodec::kBlock8});
  const StateBytes bytes = lion.state_bytes(DType::kBf16, MasterLayout::kSplit, 257);
  EXPECT_EQ(bytes.master, 514u);
  EXPECT_EQ(bytes.moment[0], 257u);
  EXPECT_EQ(bytes.moment_scale[0], 2u);
  EXPECT_EQ(bytes.moment[1] + bytes.moment_scale[1], 0u);
  const CpuOptimizer sgd({.rule = OptimizerRule::kSgd, .threads = 1});
  EXPECT_EQ(sgd.state_bytes(DType::kF32, MasterLayout::kSplit, 1000).total(), 0u);
}

// ---- statistics ----

TEST(GradientStatistics, AreTheSameOnAnyThreadsAndPool) {
  std::vector<OwnedParameter> parameters = model();
  CpuOptimizer one({.threads = 1});
  initialize(one, parameters);
  for (OwnedParameter& parameter : parameters) parameter.t = 1;
  const GradientStatistics expected = one.gradient_statistics(updates_of(parameters));
  for (const std::uint32_t threads : {2u, 3u, 7u}) {
    CpuOptimizer several({.threads = threads});
    EXPECT_EQ(several.gradient_statistics(updates_of(parameters)).sum_squares,
              expected.sum_squares);
  }
  CpuOptimizer pooled({.run_units = backwards});
  EXPECT_EQ(pooled.gradient_statistics(updates_of(parameters)).sum_squares, expected.sum_squares);

  double plain = 0;
  for (const OwnedParameter& p : parameters) {
    for (std::uint64_t i = 0; i < p.elements; ++i) {
      float value = 0;
      std::uint16_t half = 0;
      if (p.gradient_dtype == DType::kF32) {
        std::memcpy(&value, &p.gradient[4 * i], 4);
      } else {
        std::memcpy(&half, &p.gradient[2 * i], 2);
        value = p.gradient_dtype == DType::kF16 ? kernels::f16_to_f32(half)
                                                : kernels::bf16_to_f32(half);
      }
      plain += static_cast<double>(value) * value;
    }
  }
  EXPECT_NEAR(expected.sum_squares, plain, plain * 1e-12);
  EXPECT_EQ(expected.non_finite, 0u);
  EXPECT_EQ(expected.first_non_finite, GradientStatistics::kNone);
}

TEST(GradientStatistics, OfSeveralCallsAddUpToTheNormThatClips) {
  CpuOptimizer optimizer({.threads = 2});
  std::vector<OwnedParameter> parameters = model();
  initialize(optimizer, parameters);
  for (OwnedParameter& parameter : parameters) parameter.t = 1;
  const std::vector<ParameterUpdate> updates = updates_of(parameters);
  const std::span all(updates);
  GradientStatistics sum = optimizer.gradient_statistics(all.first(2));
  sum.sum_squares += optimizer.gradient_statistics(all.subspan(2)).sum_squares;
  const CpuStepResult result = optimizer.step(all.first(2), kStep, sum);
  EXPECT_EQ(result.gradient_norm, std::sqrt(sum.sum_squares) * 0.5);
  EXPECT_EQ(result.clip_factor, double{kStep.max_norm} / (result.gradient_norm + 1e-6));
  EXPECT_LT(result.clip_factor, 1);
  EXPECT_CODE(Code::kInvalidArgument, optimizer.step(all, kStep, {.sum_squares = -1}),
              "sum_squares");
}

TEST(CpuOptimizer, UpdatesWithTheClippedGradient) {
  CpuOptimizer optimizer({.rule = OptimizerRule::kSgd, .threads = 2});
  std::vector<OwnedParameter> clipped = model(), scaled = model();
  initialize(optimizer, clipped);
  initialize(optimizer, scaled);
  const double factor = step(optimizer, clipped).clip_factor;
  ASSERT_LT(factor, 0.9);
  const auto scale = static_cast<float>(double{kStep.gradient_scale} * factor);
  step(optimizer, scaled, {.learning_rate = kStep.learning_rate, .gradient_scale = scale});
  expect_same(clipped, scaled, "clipped");
}

void put(OwnedParameter& parameter, std::uint64_t element, float value) {
  const std::vector<std::byte> bytes = testing::as_dtype(parameter.gradient_dtype, {value});
  std::memcpy(&parameter.gradient[element * bytes.size()], bytes.data(), bytes.size());
}

// Gradients of the first step, of which four values are not finite.
std::vector<OwnedParameter> with_non_finite(CpuOptimizer& optimizer) {
  std::vector<OwnedParameter> parameters = model();
  initialize(optimizer, parameters);
  for (OwnedParameter& parameter : parameters) parameter.new_gradient(++parameter.t);
  put(parameters[2], 70'000, std::numeric_limits<float>::infinity());
  put(parameters[2], 3, -std::numeric_limits<float>::infinity());
  put(parameters[3], 65'536, std::numeric_limits<float>::quiet_NaN());
  put(parameters[5], 0, std::numeric_limits<float>::quiet_NaN());
  return parameters;
}

TEST(NonFiniteGradients, StopAStepBeforeItBeginsAndAreNamed) {
  const std::vector<OwnedParameter> before = trained({.threads = 1}, 0);
  CpuOptimizer optimizer({.threads = 2});
  std::vector<OwnedParameter> parameters = with_non_finite(optimizer);
  EXPECT_CODE(Code::kNotFinite, optimizer.step(updates_of(parameters), kStep),
              "the gradient of 'half' holds NaN or infinity (4 values in all)");
  expect_same(parameters, before, "stopped");
}

TEST(NonFiniteGradients, AreSkippedWhereTheOptionSaysSo) {
  const std::vector<OwnedParameter> before = trained({.threads = 1}, 0);
  CpuOptimizer optimizer({.non_finite = NonFinite::kSkip, .threads = 2});
  std::vector<OwnedParameter> parameters = with_non_finite(optimizer);
  const CpuStepResult result = optimizer.step(updates_of(parameters), {.learning_rate = 1e-2f});
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.gradients.non_finite, 4u);
  EXPECT_EQ(result.gradients.first_non_finite, 2u);
  expect_same(parameters, before, "skipped");
}

TEST(NonFiniteGradients, GoIntoTheStateUncheckedAndNowhereElse) {
  CpuOptimizer optimizer({.check_gradients = false, .threads = 2});
  std::vector<OwnedParameter> parameters = with_non_finite(optimizer);
  const CpuStepResult result = optimizer.step(updates_of(parameters), {.learning_rate = 1e-2f});
  EXPECT_FALSE(result.skipped);
  EXPECT_FALSE(result.measured);
  std::vector<float> masters(65'537);
  std::memcpy(masters.data(), parameters[3].weight.data(), parameters[3].weight.size());
  EXPECT_TRUE(std::isnan(masters[65'536]));
  EXPECT_TRUE(std::isfinite(masters[65'535]));
}

// Statistics of several calls name a parameter of one of them.
TEST(NonFiniteGradients, AreNamedOnlyWhereThisCallHasThem) {
  CpuOptimizer optimizer({.threads = 2});
  std::vector<OwnedParameter> parameters = with_non_finite(optimizer);
  const std::vector<ParameterUpdate> updates = updates_of(parameters);
  const std::span all(updates);
  const GradientStatistics of_last = optimizer.gradient_statistics(all.subspan(2));
  EXPECT_EQ(of_last.first_non_finite, 0u);
  EXPECT_CODE(Code::kNotFinite, optimizer.step(all.first(2), kStep, of_last),
              "a gradient that was not given to this call holds NaN or infinity (4 values");
  EXPECT_CODE(Code::kNotFinite, optimizer.step(all, kStep, of_last), "the gradient of 'half'");
  EXPECT_CODE(Code::kInvalidArgument,
              optimizer.step(all, kStep, {.sum_squares = -1, .non_finite = 1}),
              "sum_squares = -1: nothing was updated");
}

// As torch.nn.utils.clip_grad_norm_ does.
TEST(NonFiniteGradients, ClipUncheckedAsTorchDoes) {
  const auto clipped = [](float value) {
    CpuOptimizer optimizer({.check_gradients = false, .threads = 1});
    std::vector<OwnedParameter> parameters = model();
    initialize(optimizer, parameters);
    for (OwnedParameter& parameter : parameters) parameter.t = 1;
    put(parameters[3], 7, value);
    return optimizer.step(updates_of(parameters), kStep).clip_factor;
  };
  EXPECT_EQ(clipped(std::numeric_limits<float>::infinity()), 0);
  EXPECT_TRUE(std::isnan(clipped(std::numeric_limits<float>::quiet_NaN())));
}

// ---- options ----

TEST(CpuOptimizerOptions, ThatContradictEachOtherAreRefused) {
  EXPECT_CODE(Code::kInvalidArgument, CpuOptimizer({.threads = 2, .run_units = backwards}),
              "beside a pool");
  EXPECT_CODE(Code::kInvalidArgument,
              CpuOptimizer({.non_finite = NonFinite::kSkip, .check_gradients = false}),
              "kSkip beside check_gradients = false");
  EXPECT_CODE(Code::kInvalidArgument, CpuOptimizer({.threads = 1025}), "at most 1024");
  EXPECT_CODE(Code::kInvalidArgument, CpuOptimizer({.rule = static_cast<OptimizerRule>(9)}),
              "rule");
  EXPECT_CODE(Code::kInvalidArgument, CpuOptimizer({.moments = static_cast<MomentCodec>(9)}),
              "moments");
  EXPECT_CODE(Code::kInvalidArgument, CpuOptimizer({.simd = static_cast<Simd>(9)}), "simd");
}

TEST(CpuOptimizerOptions, AreBeatenByTheEnvironment) {
  ::setenv("HEADRACE_NUM_THREADS", "3", 1);
  EXPECT_EQ(CpuOptimizer({.threads = 1}).threads(), 3u);
  ::unsetenv("HEADRACE_NUM_THREADS");
  EXPECT_EQ(CpuOptimizer({.threads = 2}).threads(), 2u);
  EXPECT_GE(CpuOptimizer().threads(), 1u);
  const char* const given = std::getenv("HEADRACE_SIMD");
  const std::string before = given == nullptr ? "" : given;
  ::setenv("HEADRACE_SIMD", "scalar", 1);
  EXPECT_EQ(CpuOptimizer({.threads = 1}).simd(), Simd::kScalar);
  ::setenv("HEADRACE_SIMD", "avx3", 1);
  EXPECT_CODE(Code::kSettings, CpuOptimizer({.threads = 1}), "HEADRACE_SIMD");
  before.empty() ? ::unsetenv("HEADRACE_SIMD") : ::setenv("HEADRACE_SIMD", before.c_str(), 1);
}
}  // namespace
}  // namespace headrace
