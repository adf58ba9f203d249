// SPDX-License-Identifier: Apache-2.0
// settings_file_test: an engine and a trainer go by one DeepSpeed file; docs/embedding.md shows
// how.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "kernels/number_formats.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
// [settings]
headrace::Settings read_settings(const std::string& path, std::uint32_t world_size) {
  // For what the file leaves "auto" to the trainer.
  const headrace::ReadOptions options{.for_auto = {"optimizer.params.lr=0.05"}};
  headrace::Settings settings = headrace::Settings::from_file(path, options);
  // What two of the three batch sizes leave open; 8 where the file names none.
  settings.resolve_batch(world_size, 8);
  return settings;  // parameter_dtype(): bf16, fp16, f32, or nothing: the trainer's own
}

// `pass` runs forward, and backward of the loss times its argument. The engine's default constants
// are settings.optimizer_section.hyperparameters(settings.optimizer, {}).
void train(headrace::Engine& engine, const headrace::Settings& settings, std::uint32_t world_size,
           int steps, const std::function<void(double loss_scale)>& pass) {
  const double rate = settings.optimizer_section.learning_rate(settings.optimizer, 1e-3);
  headrace::LossScale loss_scale(settings.loss_scaling);
  std::uint64_t updates = 0;
  for (int step = 0; step < steps; ++step) {
    const double scale = settings.fp16 ? loss_scale.value() : 1;
    for (std::uint32_t m = 0; m < settings.gradient_accumulation_steps; ++m) pass(scale);
    const double passes = settings.gradient_accumulation_steps * world_size;
    const auto result = engine.step(
        {.learning_rate = static_cast<float>(settings.scheduler.rates(updates, rate).learning_rate),
         .gradient_scale = static_cast<float>(1 / (scale * passes)),
         .max_norm = static_cast<float>(settings.gradient_clipping)});
    if (settings.fp16) loss_scale.update(result.skipped);
    if (!result.skipped) ++updates;  // a step whose gradients overflowed moves no schedule
  }
}
// [/settings]

// [settings_in_code]
headrace::Settings settings_in_code(const std::string& folder) {
  headrace::Settings settings;
  settings.offload_optimizer = headrace::OffloadDevice::kNvme;
  settings.nvme_paths = {folder};
  settings.host_budget_bytes = std::uint64_t{8} << 30;
  settings.check();  // throws kSettings with every fault, by key
  return settings;
}
// [/settings_in_code]

TEST(SettingsFile, AndSettingsInCodeGoForAnEngine) {
  const testing::TemporaryDirectory folder;
  Engine engine(settings_in_code(folder.string()));
  engine.add_group("all", {{"w", DType::kBf16, {4}, {}}});
  engine.freeze();
  EXPECT_EQ(engine.plan().host_budget_bytes, std::uint64_t{8} << 30);
}

// A trainer that does not look at parameter_dtype() is told at freeze().
TEST(SettingsFile, IsNamedWhereItsDtypeIsNotFollowed) {
  const auto warnings = [](const char* text, DType dtype) {
    std::vector<std::string> lines;
    EngineOptions options;
    options.log = [&](LogLevel level, std::string_view line) {
      if (level == LogLevel::kWarning) lines.emplace_back(line);
    };
    Engine engine(text == nullptr ? Settings{} : Settings::from_json(text), options);
    engine.add_group("all", {{"w", dtype, {4}, {}}});
    engine.freeze();
    return lines;
  };
  const auto other = warnings(R"({"fp16": {"enabled": false}})", DType::kBf16);
  ASSERT_EQ(other.size(), 1u);
  EXPECT_NE(other[0].find("ask for F32 parameters (neither bf16.enabled nor fp16.enabled is true)"),
            std::string::npos)
      << other[0];
  EXPECT_EQ(warnings(R"({"bf16": {"enabled": true}})", DType::kF32).size(), 1u);
  EXPECT_TRUE(warnings("{}", DType::kF32).empty());
  EXPECT_TRUE(warnings(R"({"bf16": {"enabled": true}})", DType::kBf16).empty());
  EXPECT_TRUE(warnings(nullptr, DType::kBf16).empty());
}

TEST(SettingsFile, GoesForAnEngineAndItsTrainer) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/ds.json";
  std::ofstream(path) << R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8,
    "fp16": {"enabled": true, "initial_scale_power": 20, "hysteresis": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
    "gradient_clipping": 1.0})";
  const Settings settings = read_settings(path, 1);
  EXPECT_EQ(settings.gradient_accumulation_steps, 2u);

  Engine engine(settings);
  engine.set_default_hyperparameters(
      settings.optimizer_section.hyperparameters(settings.optimizer, {}));
  const GroupId group = engine.add_group("all", {{"w", *settings.parameter_dtype(), {4}, {}}});
  const ParameterId w = engine.parameters(group)[0];
  engine.freeze();
  engine.load(group, [](ParameterId, std::span<std::byte> out) {
    const std::array<std::uint16_t, 4> ones{0x3c00, 0x3c00, 0x3c00, 0x3c00};
    std::memcpy(out.data(), ones.data(), sizeof ones);
  });
  // The loss is half the sum of squares.
  std::vector<double> scales;
  std::array<std::uint16_t, 4> gradient{};
  const auto pass = [&](double scale) {
    scales.push_back(scale);
    const Gathered lease = engine.gather(group);
    const auto* values = static_cast<const std::uint16_t*>(lease.bytes(w).data);
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = kernels::f32_to_f16(kernels::f16_to_f32(values[i]) * static_cast<float>(scale));
    engine.add_gradient(w, gradient.data(), DType::kF16);
  };
  train(engine, settings, 1, 25, pass);
  // 2^20 to 2^16 overflow fp16; each such step is skipped and halves the scale.
  ASSERT_EQ(scales.size(), 50u);
  for (std::size_t step = 0; step < 25; ++step)
    EXPECT_EQ(scales[2 * step], step < 5 ? 0x1p20 / (1 << step) : 0x1p15) << step;
  EXPECT_EQ(engine.step_count(w), 20u);
  const Gathered lease = engine.gather(group);
  // The first update is at a rate of 0, the second as well, then AdamW takes about 0.05 a step.
  const float last = kernels::f16_to_f32(*static_cast<const std::uint16_t*>(lease.bytes(w).data));
  EXPECT_NEAR(last, 1 - 17 * 0.05, 0.1);
}
}  // namespace
}  // namespace headrace
