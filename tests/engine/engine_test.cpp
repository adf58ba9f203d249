// SPDX-License-Identifier: Apache-2.0
// engine_test: what a host program can rely on: order of calls, errors that leave everything whole,
// values in and out, nothing left after close.
#include "headrace/engine.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "kernels/number_formats.hpp"
#include "optimizer_cpu/update.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/expect_code.hpp"
#include "support/mlp.hpp"
#include "support/saved_state.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
using testing::all_on_nvme;

std::size_t threads_now() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}
std::size_t files_now() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST(EngineOrder, IsCheckedAndNamed) {
  Engine engine{Settings{}};
  EXPECT_CODE(Code::kWrongState, engine.freeze(), "no group");
  const GroupId group = engine.add_group("g", {{"w", DType::kBf16, {8}, {}}});
  EXPECT_CODE(Code::kWrongState, engine.step({}), "freeze()");
  EXPECT_CODE(Code::kInvalidArgument, engine.add_group("g", {{"v", DType::kBf16, {8}, {}}}), "'g'");
  EXPECT_CODE(Code::kInvalidArgument, engine.add_group("h", {{"v", DType::kBf16, {8, 0}, {}}}),
              "h.v");
  EXPECT_CODE(Code::kInvalidArgument,
              engine.add_group("h", {{"v", DType::kF32, {1}, {}}, {"v", DType::kF32, {1}, {}}}),
              "h.v");
  EXPECT_CODE(Code::kNotFound, (void)engine.parameter("g.v"), "g.w");
  engine.freeze();
  EXPECT_CODE(Code::kWrongState, engine.freeze(), "a second time");
  EXPECT_CODE(Code::kWrongState, engine.add_group("i", {{"w", DType::kBf16, {8}, {}}}), "freeze()");
  EXPECT_CODE(Code::kWrongState, (void)engine.gather(group), "load()");
  EXPECT_CODE(Code::kWrongState, engine.step({}), "load()");
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  EXPECT_CODE(Code::kNotFound, (void)engine.gather({7}), "7");
  EXPECT_CODE(Code::kInvalidArgument, engine.step({.learning_rate = -1}), "learning_rate");
  engine.close();
  engine.close();
  EXPECT_CODE(Code::kWrongState, engine.step({}), "closed");
  EXPECT_CODE(Code::kWrongState, engine.freeze(), "closed");
}

// By whatever ended their values, groups are refused until all of them is loaded.
TEST(EngineValues, AreRefusedAfterALoadThatEndedAndAfterAWrite) {
  const testing::TemporaryDirectory directory;
  for (const bool nvme : {false, true}) {
    Engine engine(nvme ? testing::all_on_nvme(directory.string()) : Settings{});
    const GroupId group = engine.add_group("g", {{"v", DType::kF32, {8}}, {"w", DType::kF32, {8}}});
    engine.freeze();
    const ParameterId w = engine.parameter("g.w");
    const auto zeros = [](ParameterId, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0});
    };
    const auto expect_refused = [&](const char* part) {
      const auto ignore = [](std::uint64_t, std::span<const std::byte>) {};
      const auto keep = [](std::uint64_t, std::span<std::byte>) {};
      EXPECT_CODE(Code::kWrongState, (void)engine.gather(group), part);
      EXPECT_CODE(Code::kWrongState, engine.step({}), part);
      EXPECT_CODE(Code::kWrongState, engine.store(w, Content::kWeight, ignore), part);
      EXPECT_CODE(Code::kWrongState, engine.hash_parameters(), part);
      EXPECT_CODE(Code::kWrongState, engine.hash_optimizer_state(), part);
      EXPECT_CODE(Code::kWrongState, engine.load(w, Content::kWeight, keep), part);
      EXPECT_CODE(Code::kWrongState, engine.set_step_count(w, 3), part);
    };
    engine.mark_written(group, "never loaded, so there is nothing to write to");
    expect_refused("never loaded; call load()");
    engine.load(group, zeros);
    const std::string hash = engine.hash_parameters();
    EXPECT_THROW(engine.load(group,
                             [&](ParameterId id, std::span<std::byte> out) {
                               if (id == w) throw std::runtime_error("the file ends here");
                               std::ranges::fill(out, std::byte{1});
                             }),
                 std::runtime_error);
    expect_refused("the last load() of group 'g' ended on the way");
    engine.load(group, zeros);
    EXPECT_EQ(engine.hash_parameters(), hash);
    {
      const Gathered lease = engine.gather(group);
      *static_cast<float*>(lease.bytes(w).data) = 5;
    }
    engine.mark_written(group, "somebody wrote to 'g.w'");
    expect_refused("somebody wrote to 'g.w'");
    EXPECT_CODE(Code::kWrongState, engine.hash_parameters(), "hash_parameters: somebody");
    std::uint64_t moments = 0;  // which nobody wrote to, and load() resets
    engine.store(w, Content::kExpAvg, [&](std::uint64_t, std::span<const std::byte> values) {
      moments += values.size() / sizeof(float);
    });
    EXPECT_EQ(moments, 8u);
    engine.load(group, zeros);
    // Marked while one parameter is loaded: that does not mend it.
    engine.load(w, Content::kWeight,
                [&](std::uint64_t, std::span<std::byte>) { engine.mark_written(group, ""); });
    EXPECT_CODE(Code::kWrongState, engine.hash_parameters(), "of group 'g' were written");
    engine.load(group, zeros);
    engine.load(group, zeros);
    EXPECT_EQ(engine.hash_parameters(), hash);
  }
}

TEST(EngineValues, ComeBackAsTheyWentIn) {
  const testing::TemporaryDirectory directory;
  Engine engine(all_on_nvme(directory.string()));
  const GroupId group =
      engine.add_group("g", {{"a", DType::kBf16, {200, 500}, {}}, {"b", DType::kF32, {70001}, {}}});
  engine.freeze();
  const auto value = [](ParameterId id, std::size_t i) {
    return static_cast<unsigned char>(i * 31 + id.index * 7 + 1);
  };
  engine.load(group, [&](ParameterId id, std::span<std::byte> out) {
    // Finite in both dtypes: the exponents' top bits stay clear.
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::byte(value(id, i) & 0x3f);
  });
  for (const ParameterId id : engine.parameters(group)) {
    std::uint64_t next = 0;
    engine.store(id, Content::kWeight, [&](std::uint64_t first, std::span<const std::byte> values) {
      const std::uint64_t size = size_bytes(engine.spec(id).dtype);
      EXPECT_EQ(first, next);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], std::byte(value(id, first * size + i) & 0x3f));
      }
      next += values.size() / size;
    });
    EXPECT_EQ(next, engine.spec(id).elements());
    engine.store(id, Content::kExpAvg, [&](std::uint64_t, std::span<const std::byte> values) {
      EXPECT_TRUE(std::ranges::all_of(values, [](std::byte b) { return b == std::byte{0}; }));
    });
    // The master of a fresh parameter is its weight.
    engine.store(id, Content::kMaster, [&](std::uint64_t first, std::span<const std::byte> values) {
      float master = 0;
      std::memcpy(&master, values.data(), 4);
      if (engine.spec(id).dtype == DType::kBf16) {
        std::uint16_t weight = 0;
        const std::byte bytes[2] = {std::byte(value(id, 2 * first) & 0x3f),
                                    std::byte(value(id, 2 * first + 1) & 0x3f)};
        std::memcpy(&weight, bytes, 2);
        EXPECT_EQ(master, kernels::bf16_to_f32(weight));
      }
    });
  }
  const Gathered lease = engine.gather(group);
  const DeviceSpan b = lease.bytes(engine.parameter("g.b"));
  EXPECT_EQ(b.size_bytes, 70001u * 4);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data) % 256, 0u);
  EXPECT_CODE(Code::kWrongState, engine.close(), "'g'");
  EXPECT_CODE(Code::kWrongState, engine.step({}), "'g'");
}

// A scale of the learning rate counts once: half of it is half the learning rate.
TEST(EngineHyperparameters, ScaleTheLearningRate) {
  const auto train = [](float scale, float learning_rate) {
    Engine engine{Settings{}};
    const HyperparameterSetId set = engine.add_hyperparameters({.learning_rate_scale = scale});
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {300}, set}});
    engine.freeze();
    engine.load(group, [](ParameterId, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3f});
    });
    const std::vector<float> gradient(300, 0.25f);
    engine.add_gradient(engine.parameter("g.w"), gradient.data(), DType::kF32);
    engine.step({.learning_rate = learning_rate});
    return engine.hash_parameters();
  };
  EXPECT_EQ(train(0.5f, 0.25f), train(1.0f, 0.125f));
  EXPECT_NE(train(0.5f, 0.25f), train(1.0f, 0.25f));
}

// One vector in a set of its own; a step's gradient is the same for all.
struct OneVector {
  static constexpr std::uint64_t kElements = 300;
  Engine engine;
  HyperparameterSetId set;
  ParameterId id{0};
  explicit OneVector(const Hyperparameters& values) : engine(Settings{}) {
    set = engine.add_hyperparameters(values);
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {kElements}, set}});
    engine.freeze();
    engine.load(group, [](ParameterId, std::span<std::byte> out) {
      const std::vector<float> first(kElements, 0.5f);
      std::memcpy(out.data(), first.data(), out.size());
    });
  }
  static float gradient(std::uint64_t e) { return testing::noise(3, e); }
  void step() {
    std::vector<float> values(kElements);
    for (std::uint64_t e = 0; e < kElements; ++e) values[e] = gradient(e);
    engine.add_gradient(id, values.data(), DType::kF32);
    engine.step({.learning_rate = 0.01f});
  }
};

TEST(EngineHyperparameters, TakeEffectAtTheNextStepWhenTheyAreChanged) {
  const Hyperparameters first{.weight_decay = 0.1f};
  const Hyperparameters second{
      .learning_rate_scale = 0.5f, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0};
  OneVector changed(first);
  changed.step();
  changed.step();
  const testing::SavedState state(changed.engine);
  changed.engine.set_hyperparameters(changed.set, second);
  EXPECT_TRUE(testing::SavedState(changed.engine) == state);
  changed.step();
  changed.step();
  // As if they had been so from the start, resumed at that point.
  OneVector resumed(second);
  state.into(resumed.engine);
  resumed.step();
  resumed.step();
  EXPECT_EQ(changed.engine.hash_optimizer_state(), resumed.engine.hash_optimizer_state());
  // And as the reference says.
  std::vector<float> weight(OneVector::kElements, 0.5f), m(OneVector::kElements),
      v(OneVector::kElements), gradient(OneVector::kElements);
  for (std::uint64_t e = 0; e < gradient.size(); ++e) gradient[e] = OneVector::gradient(e);
  for (std::uint64_t t = 1; t <= 4; ++t) {
    kernels::update_reference({.elements = OneVector::kElements,
                               .kind = optimizer_cpu::MasterKind::kWeightItself,
                               .gradient_dtype = DType::kF32,
                               .weight = weight.data(),
                               .moment = {m.data(), v.data()},
                               .gradient = gradient.data()},
                              optimizer_cpu::make_update_step(
                                  OptimizerRule::kAdamW, t <= 2 ? first : second, 0.01f, t, 1.0));
  }
  changed.engine.store(
      changed.id, Content::kWeight, [&](std::uint64_t at, std::span<const std::byte> values) {
        EXPECT_EQ(std::memcmp(values.data(), weight.data() + at, values.size()), 0);
      });
}

TEST(EngineHyperparameters, ThatAreWrongChangeNothing) {
  OneVector vector({});
  Engine& engine = vector.engine;
  EXPECT_CODE(Code::kNotFound, engine.set_hyperparameters({2}, {}), "hyperparameter set 2");
  EXPECT_CODE(Code::kInvalidArgument, engine.set_hyperparameters(vector.set, {.beta1 = 1}),
              "beta1");
  engine.set_hyperparameters({0}, {.weight_decay = 0.5f});  // the default set: nobody's
  vector.step();
  OneVector alike({});
  alike.step();
  EXPECT_EQ(engine.hash_parameters(), alike.engine.hash_parameters());
  engine.close();
  EXPECT_CODE(Code::kWrongState, engine.set_hyperparameters(vector.set, {}), "closed");
  Engine before{Settings{}};
  const HyperparameterSetId set = before.add_hyperparameters({});
  before.set_hyperparameters(set, {.weight_decay = 0});  // before freeze
  EXPECT_CODE(Code::kNotFound, before.set_hyperparameters({9}, {}), "9");
}

class EngineStep : public ::testing::Test {
 protected:
  testing::TemporaryDirectory directory_;
  std::shared_ptr<device::ComputingDevice> device_ = device::make_computing_host();
  Engine engine_{all_on_nvme(directory_.string()), {.device = device_}};
  testing::Mlp network_{engine_, *device_, {}};
};

TEST_F(EngineStep, RefusesNotFiniteGradientsNamesOneAndChangesNothing) {
  network_.train_step();
  const std::string before = engine_.hash_parameters() + engine_.hash_optimizer_state();
  network_.compute_gradients();
  engine_.discard_gradients();
  const ParameterId bias = engine_.parameter("layer.1.bias");
  std::vector<float> gradient(engine_.spec(bias).elements(), 1.0f);
  gradient[17] = std::numeric_limits<float>::quiet_NaN();
  engine_.add_gradient(bias, gradient.data(), DType::kF32);
  EXPECT_CODE(Code::kNotFinite, engine_.step({}), "layer.1.bias");
  EXPECT_CODE(Code::kNotFinite, engine_.step({}), "layer.1.bias");  // kept until they are discarded
  EXPECT_EQ(engine_.hash_parameters() + engine_.hash_optimizer_state(), before);
  engine_.discard_gradients();
  network_.train_step();
}

TEST_F(EngineStep, RefusesASecondGradientThatWasNotDeclared) {
  const ParameterId bias = engine_.parameter("layer.0.bias");
  const std::vector<float> gradient(engine_.spec(bias).elements(), 1.0f);
  engine_.add_gradient(bias, gradient.data(), DType::kF32);
  EXPECT_CODE(Code::kWrongState, engine_.add_gradient(bias, gradient.data(), DType::kF32),
              "layer.0.bias");
}

// Autograd may hand over from several threads; the sum of whole numbers is exact in any order.
TEST(EngineGradients, OfOneParameterFromTwoThreadsAreAllSummed) {
  Engine engine{Settings{}};
  const GroupId group = engine.add_group("g", {{"w", DType::kF32, {200000}, {}}});
  engine.expect_repeated_gradients(group);
  engine.freeze();
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  const ParameterId id = engine.parameter("g.w");
  const std::vector<float> one(200000, 1.0f), two(200000, 2.0f);
  for (int round = 0; round < 50; ++round) {
    std::thread other([&] { engine.add_gradient(id, one.data(), DType::kF32); });
    engine.add_gradient(id, two.data(), DType::kF32);
    other.join();
    EXPECT_EQ(engine.step({}).gradient_norm, std::sqrt(9.0 * 200000)) << "round " << round;
  }
}

TEST(EngineGradients, ARefusedStreamLeavesNoTrace) {
  const auto device = device::make_computing_host();
  Engine engine{Settings{}, {.device = device}};
  const GroupId group = engine.add_group("g", {{"w", DType::kF32, {300}, {}}});
  engine.freeze();
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  const std::vector<float> gradient(300, 1.0f);
  const ParameterId id = engine.parameter("g.w");
  EXPECT_THROW(engine.add_gradient(id, gradient.data(), DType::kF32, {999}), Error);
  EXPECT_EQ(engine.step({}).parameters_updated, 0u);
  engine.add_gradient(id, gradient.data(), DType::kF32);
  EXPECT_EQ(engine.step({}).parameters_updated, 1u);
}

#if !defined(__SANITIZE_ADDRESS__)  // the engine is kept on purpose, which LeakSanitizer reports
TEST(EngineClose, ALeaseMayOutliveItsEngine) {
  const testing::TemporaryDirectory directory;
  std::vector<std::string> log;
  Gathered lease;
  {
    Engine engine(all_on_nvme(directory.string()),
                  {.log = [&](LogLevel, std::string_view text) { log.emplace_back(text); }});
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {300}, {}}});
    engine.freeze();
    engine.load(group, [](ParameterId, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3f});
    });
    lease = engine.gather(group);
  }
  EXPECT_EQ(*static_cast<const unsigned char*>(lease.section(DType::kF32).data), 0x3f);
  lease.release();
  ASSERT_FALSE(log.empty());
  EXPECT_NE(log.back().find("still gathered"), std::string::npos);
}
#endif

TEST_F(EngineStep, WithoutGradientsLeavesEverythingAlone) {
  network_.train_step();
  const std::string before = engine_.hash_parameters() + engine_.hash_optimizer_state();
  const Stats bytes = engine_.stats();
  const StepResult result = engine_.step({});
  EXPECT_EQ(result.parameters_updated, 0u);
  EXPECT_EQ(result.gradient_norm, 0);
  EXPECT_EQ(engine_.stats().nvme_written_bytes, bytes.nvme_written_bytes);
  EXPECT_EQ(engine_.hash_parameters() + engine_.hash_optimizer_state(), before);
}

class EngineBytes : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(EngineBytes, AreWhatThePlanSays) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_host();
  Settings settings = all_on_nvme(directory.string());
  settings.gradient_accumulation_steps = GetParam();
  settings.prefetch_groups = 1;
  Engine engine(settings, {.device = device});
  testing::Mlp network(engine, *device, {.layers = 5, .accumulation = GetParam()});
  // What is read ahead after a step counts to it: wait until nothing moves. On a busy machine, a
  // tile can pause for longer than any sleep here, so wait for the planned bytes too.
  const auto settled = [&](double planned_read, double planned_written) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (Stats last = engine.stats();;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const Stats now = engine.stats();
      const bool all_moved = static_cast<double>(now.nvme_read_bytes) >= planned_read &&
                             static_cast<double>(now.nvme_written_bytes) >= planned_written;
      if (now.nvme_read_bytes == last.nvme_read_bytes &&
          (all_moved || std::chrono::steady_clock::now() > give_up))
        return now;
      last = now;
    }
  };
  const PlanReport& plan = engine.plan();
  network.train_step();
  network.train_step();
  const Stats before = settled(0, 0);
  network.train_step();
  const Stats after =
      settled(static_cast<double>(before.nvme_read_bytes) + plan.nvme_read_bytes_per_step,
              static_cast<double>(before.nvme_written_bytes) + plan.nvme_written_bytes_per_step);
  EXPECT_EQ(static_cast<double>(after.nvme_written_bytes - before.nvme_written_bytes),
            plan.nvme_written_bytes_per_step);
  EXPECT_EQ(static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes),
            plan.nvme_read_bytes_per_step);
  EXPECT_GT(after.gathers_prefetched, before.gathers_prefetched);
}
INSTANTIATE_TEST_SUITE_P(Accumulation, EngineBytes, ::testing::Values(1u, 2u, 4u));

TEST_F(EngineStep, InterruptEndsItAndOnlyCloseIsLeft) {
  network_.compute_gradients();
  engine_.interrupt();
  EXPECT_CODE(Code::kInterrupted, engine_.step({}), "interrupted");
  engine_.close();
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(EngineStep, GathersInAnyOrderAreRight) {
  for (int step = 0; step < 3; ++step) network_.train_step();
  const std::string hash = engine_.hash_parameters();
  for (const std::uint32_t g : {2u, 0u, 0u, 1u, 2u, 2u, 1u, 0u}) {
    const Gathered lease = engine_.gather({g});
    const ParameterId weight = engine_.parameters({g})[0];
    const auto* gathered = static_cast<const std::byte*>(lease.bytes(weight).data);
    engine_.store(weight, Content::kWeight,
                  [&](std::uint64_t first, std::span<const std::byte> values) {
                    EXPECT_EQ(std::memcmp(gathered + 2 * first, values.data(), values.size()), 0);
                  });
  }
  EXPECT_EQ(engine_.hash_parameters(), hash);
}

TEST_F(EngineStep, NamesTheHoldersWhenAllBuffersAreLeased) {
  Settings settings = all_on_nvme(directory_.string());
  settings.prefetch_groups = 0;
  Engine engine(settings, {.device = device_});
  testing::Mlp network(engine, *device_, {});
  const Gathered first = engine.gather({0});
  EXPECT_CODE(Code::kOutOfBudget, (void)engine.gather({1}), "layer.0");
  const Gathered again = engine.gather({0});
  EXPECT_EQ(first.bytes(engine.parameters({0})[0]).data,
            again.bytes(engine.parameters({0})[0]).data);
}

TEST(EngineRefusal, LeavesNothingBehind) {
  const testing::TemporaryDirectory directory;
  const std::size_t threads = threads_now(), files = files_now();
  const auto refused = [&](Settings settings, Code code, const std::string& part) {
    Engine engine(std::move(settings));
    engine.add_group("g", {{"w", DType::kBf16, {1 << 20}, {}}});
    EXPECT_CODE(code, engine.freeze(), part);
    EXPECT_EQ(directory.entries(), 0u);
  };
  Settings small = all_on_nvme(directory.string());
  small.host_budget_bytes = 1000;
  refused(small, Code::kOutOfBudget, "smallest budget");
  Settings missing = all_on_nvme(directory.string() + "/none");
  refused(missing, Code::kNotFound, "/none");
  Settings pathless;
  pathless.offload_optimizer = OffloadDevice::kNvme;
  EXPECT_CODE(Code::kSettings, Engine{pathless}, "nvme_path");
  pathless.nvme_paths = {""};
  EXPECT_CODE(Code::kSettings, Engine{pathless}, "headrace.nvme_paths[0]: the path is empty");
  Settings negative;
  negative.gradient_clipping = -1;
  EXPECT_CODE(Code::kSettings, Engine{negative}, "gradient_clipping: found -1.0");
  EXPECT_EQ(threads_now(), threads);
  EXPECT_EQ(files_now(), files);
}

TEST(EngineClose, SeesALeaseOfAGroupWithoutAName) {
  const testing::TemporaryDirectory directory;
  Engine engine(all_on_nvme(directory.string()));
  const GroupId group = engine.add_group("", {{"w", DType::kF32, {300}, {}}});
  engine.freeze();
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  const Gathered lease = engine.gather(group);
  EXPECT_CODE(Code::kWrongState, engine.step({}), "still gathered");
  EXPECT_CODE(Code::kWrongState, engine.close(), "still gathered");
}

TEST(EngineProcess, TwoEnginesOnOnePathDoNotMeet) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_host();
  Engine a(all_on_nvme(directory.string()), {.device = device});
  Engine b(all_on_nvme(directory.string()), {.device = device});
  testing::Mlp first(a, *device, {}), second(b, *device, {});
  for (int step = 0; step < 3; ++step) {
    first.train_step();
    second.train_step();
  }
  EXPECT_EQ(a.hash_optimizer_state(), b.hash_optimizer_state());
  a.close();
  second.train_step();
}

#if !defined(__SANITIZE_THREAD__)
TEST(EngineProcess, AForkedChildIsRefusedAndLeavesTheParentAlone) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_host();
  auto engine =
      std::make_unique<Engine>(all_on_nvme(directory.string()), EngineOptions{.device = device});
  testing::Mlp network(*engine, *device, {});
  network.train_step();
  const pid_t child = fork();
  if (child == 0) {
    try {
      engine->step({});
    } catch (const Error& error) {
      const bool named = std::string(error.what()).find("forked child") != std::string::npos;
      engine.reset();
      _exit(named ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GT(directory.entries(), 0u);
  network.train_step();
  EXPECT_FALSE(engine->hash_parameters().empty());
}
#endif

// Planning it would fill the memory of any machine.
TEST(EngineFreeze, RefusesAShapeWhoseTablesAloneDoNotFit) {
  const testing::TemporaryDirectory directory;
  Settings settings = all_on_nvme(directory.string());
  settings.tile_elements = 65536;
  Engine engine(settings);
  engine.add_group("g", {{"w", DType::kF32, {std::int64_t{1} << 48}}});
  try {
    engine.freeze();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfBudget);
    EXPECT_NE(std::string(error.what()).find("make 4294967296 tiles"), std::string::npos)
        << error.what();
  }
}
}  // namespace
}  // namespace headrace
