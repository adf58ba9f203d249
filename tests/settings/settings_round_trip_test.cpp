// SPDX-License-Identifier: Apache-2.0
// from_json(to_json()) is the identity, on settings drawn at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "settings/key_table.hpp"

namespace headrace {
namespace {
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool coin() { return between(0, 1) == 1; }
  // One of the key's words.
  template <class Enum>
  Enum choice(std::string_view path) {
    const auto key = std::ranges::find(settings::keys(), path, &settings::Key::path);
    return static_cast<Enum>(between(0, settings::choices_of(*key).size() - 1));
  }
  std::string path(std::size_t number) {
    static constexpr std::string_view kLetters[] = {"a",  "$",  "{", "}",  "~",  " ",
                                                    "\"", "\\", "ö", "\n", "//", "."};
    std::string text = "/" + std::to_string(number) + "/";
    for (std::uint64_t i = between(0, 8); i > 0; --i)
      text += kLetters[between(0, std::size(kLetters) - 1)];
    return text + "x";
  }

  Settings settings() {
    Settings s;
    s.offload_optimizer = choice<OffloadDevice>("zero_optimization.offload_optimizer.device");
    s.offload_parameters = choice<OffloadDevice>("zero_optimization.offload_param.device");
    const bool nvme =
        s.offload_optimizer == OffloadDevice::kNvme || s.offload_parameters == OffloadDevice::kNvme;
    for (std::size_t i = between(nvme ? 1 : 0, 3); i > 0; --i) s.nvme_paths.push_back(path(i));
    if (coin())
      for (std::size_t i = s.nvme_paths.size(); i > 0; --i) s.drive_shares.push_back(real(0.1, 9));
    s.gradient_clipping = coin() ? 0 : real(0, 10);
    s.gradient_accumulation_steps = static_cast<std::uint32_t>(between(1, 2147483647));
    s.host_budget_auto = coin();
    s.host_budget_bytes = s.host_budget_auto ? 0 : between(0, (1ull << 63) - 1);
    s.master = choice<MasterLayout>("headrace.master");
    s.optimizer = choice<OptimizerRule>("headrace.optimizer");
    s.moments = choice<MomentCodec>("headrace.moments");
    s.non_finite = choice<NonFinite>("headrace.non_finite");
    s.rounding_seed = between(0, 9007199254740991);
    s.tile_elements = 65536 * between(1, 64);
    s.update_slots = static_cast<std::uint32_t>(between(1, 1024));
    s.prefetch_groups = static_cast<std::uint32_t>(between(0, 16));
    s.update_threads = static_cast<std::uint32_t>(between(0, 1024));
    s.io_block_bytes = 4096 * between(1, 16384);
    s.queue_depth = static_cast<std::uint32_t>(between(1, 4096));
    s.submit_batch = static_cast<std::uint32_t>(between(1, 256));
    s.io_queue = choice<IoQueueKind>("headrace.io_queue");
    s.direct = choice<DirectIo>("headrace.direct");
    s.allow_memory_backed = coin();
    s.register_buffers = choice<RegisterBuffers>("headrace.register_buffers");
    s.checksums = choice<Checksums>("headrace.checksums");
    s.trainer_state_bytes = between(0, 16777216);
    if (!s.nvme_paths.empty() && coin()) draw_store(s);
    s.update_mode = choice<UpdateMode>("headrace.update_mode");
    s.update_on = choice<UpdateOn>("headrace.update_on");
    s.io_warn_seconds = real(0.001, 100);
    s.io_deadline_seconds = real(0.001, 86400);
    if (coin()) s.tuned = {.drive_model = path(1), .kernel = path(1)};
    s.fp16 = coin();
    // Where nothing asks for a dtype, what is written asks for f32.
    if (s.fp16) s.bf16 = maybe(false);
    if (!s.fp16) s.bf16 = coin();
    s.train_micro_batch_size_per_gpu = maybe(static_cast<std::uint32_t>(between(1, 2147483647)));
    if (coin()) draw_whole_batch(s);
    s.loss_scaling = loss_scaling();
    if (s.fp16 && s.loss_scaling.loss_scale == 0) s.non_finite = NonFinite::kSkip;
    s.optimizer_section = optimizer_section(s.optimizer);
    s.scheduler = scheduler();
    return s;
  }

 private:
  template <class T>
  std::optional<T> maybe(T value) {
    return coin() ? std::optional(value) : std::nullopt;
  }

  void draw_store(Settings& s) {
    s.durable_every = coin() ? between(1, 3) : between(1, 2147483647);
    s.store = "_Run.-" + std::to_string(between(0, 1u << 30));
    s.resume = choice<Resume>("headrace.resume");
    if (coin()) s.background_save_bytes_per_second = between(0, std::uint64_t{1} << 40);
    s.checksums = Checksums::kOn;
    s.allow_memory_backed = false;
  }

  // One that some number of ranks makes.
  void draw_whole_batch(Settings& s) {
    s.train_micro_batch_size_per_gpu = maybe(static_cast<std::uint32_t>(between(1, 1000)));
    s.gradient_accumulation_steps = static_cast<std::uint32_t>(between(1, 1000));
    s.train_batch_size =
        static_cast<std::uint32_t>(s.train_micro_batch_size_per_gpu.value_or(1) *
                                   s.gradient_accumulation_steps * between(1, 1000));
    if (s.train_micro_batch_size_per_gpu && coin()) s.gradient_accumulation_steps = 0;
  }

  LossScaling loss_scaling() {
    LossScaling s;
    s.loss_scale = coin() ? 0 : real(1, 65536);
    s.initial_scale_power = static_cast<std::uint32_t>(between(4, 126));
    s.loss_scale_window = static_cast<std::uint32_t>(between(1, 2147483647));
    s.hysteresis = static_cast<std::uint32_t>(between(1, 100));
    s.consecutive_hysteresis = coin();
    s.min_loss_scale = real(0.001, 16);
    return s;
  }

  OptimizerSection optimizer_section(OptimizerRule rule) {
    OptimizerSection s;
    const bool adam = rule == OptimizerRule::kAdamW || rule == OptimizerRule::kAdam;
    if (coin()) {
      s.type = rule == OptimizerRule::kAdam      ? "Adam"
               : adam                            ? "AdamW"
               : rule == OptimizerRule::kAdagrad ? "Adagrad"
               : rule == OptimizerRule::kLion    ? "Lion"
                                                 : "SGD";
    }
    s.lr = maybe(real(0, 1));
    s.weight_decay = maybe(real(0, 1));
    s.maximize = maybe(coin());
    if (adam || rule == OptimizerRule::kLion) s.betas = maybe(std::array{real(0, 0.99), 0.999});
    if (adam || rule == OptimizerRule::kAdagrad) s.eps = maybe(real(0, 1));
    if (adam) {
      s.bias_correction = maybe(coin());
      if (s.weight_decay) s.torch_adam = maybe(coin());  // without one a default is told of
      if (rule == OptimizerRule::kAdam || coin()) s.adam_w_mode = rule != OptimizerRule::kAdam;
    } else if (rule == OptimizerRule::kAdagrad) {
      s.lr_decay = maybe(real(0, 1));
    } else if (rule == OptimizerRule::kSgdMomentum) {
      s.momentum = real(0.1, 0.99);
      s.nesterov = maybe(coin());
      if (!s.nesterov.value_or(false)) s.dampening = maybe(real(0, 1));
    }
    return s;
  }

  Scheduler scheduler() {
    Scheduler s;
    s.type = choice<SchedulerType>("scheduler.type");
    const bool cosine = s.type == SchedulerType::kWarmupCosineLR;
    const bool decays = s.type == SchedulerType::kWarmupDecayLR;
    if (cosine || decays || s.type == SchedulerType::kWarmupLR) {
      s.warmup_num_steps = between(1, 1000000);
      s.warmup_type = choice<WarmupType>("scheduler.params.warmup_type");
      if (cosine || decays) s.total_num_steps = between(1, 1000000);
      if (!cosine) {
        s.warmup_min_lr = real(0, 1);
        s.warmup_max_lr = maybe(real(0, 1));
      }
    }
    if (cosine) {
      s.warmup_min_ratio = real(0, 1);
      s.cos_min_ratio = real(0, 1);
    } else if (s.type == SchedulerType::kOneCycle) {
      s.cycle_min_lr = real(0, 1);
      s.cycle_max_lr = real(0, 1);
      s.decay_lr_rate = real(0, 1);
      s.cycle_first_step_size = between(1, 1000000);
      s.cycle_second_step_size = maybe(between(1, 1000000));
      s.cycle_first_stair_count = between(0, 100);
      s.cycle_second_stair_count = maybe(between(0, 100));
      s.decay_step_size = between(0, 1000000);
      s.cycle_momentum = coin();
      s.cycle_min_mom = real(0, 0.9);
      s.cycle_max_mom = real(0, 0.9);
      s.decay_mom_rate = real(0, 1);
    } else if (s.type == SchedulerType::kLRRangeTest) {
      s.lr_range_test_min_lr = real(0, 1);
      s.lr_range_test_step_rate = real(0, 100);
      s.lr_range_test_step_size = between(1, 1000000);
      s.lr_range_test_staircase = coin();
    }
    return s;
  }

  std::mt19937_64 random_;
};

TEST(SettingsRoundTrip, KeepsEveryFieldOfRandomSettings) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Draw draw(seed);
  for (int i = 0; i < 300; ++i) {
    const Settings settings = draw.settings();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + settings.to_json());
    ASSERT_NO_THROW(settings.check());
    Settings read = Settings::from_json(settings.to_json());
    EXPECT_TRUE(read.defaults_taken.empty());
    read.warnings.clear();  // of drives that are listed and not used
    ASSERT_TRUE(read == settings) << read.to_json();
  }
}
// The faults of `settings`, or "" where there are none.
std::string faults_of(const Settings& settings) {
  try {
    settings.check();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kSettings);
    return error.what();
  }
}

TEST(SettingsCheck, NamesEveryFaultByItsKeyWithoutAPlaceInATextThatNobodySaw) {
  Settings settings;
  settings.queue_depth = 0;
  settings.tile_elements = 65537;
  settings.offload_parameters = OffloadDevice::kNvme;
  settings.fp16 = true;
  settings.bf16 = true;
  const std::string faults = faults_of(settings);
  EXPECT_EQ(
      faults,
      "zero_optimization.offload_param.device: \"nvme\" needs a directory, and neither nvme_path "
      "nor headrace.nvme_paths names one; add \"nvme_path\" beside it\n"
      "fp16.enabled: true, and so is bf16.enabled, but parameters have one dtype; set one to "
      "false\n"
      "headrace.non_finite: \"stop\" ends the run at the first gradient that overflows, and a "
      "dynamic loss scale (fp16.loss_scale 0) finds its way by such steps; remove it, or set "
      "fp16.loss_scale\n"
      "headrace.tile_elements: found 65537; allowed: a whole number, a multiple of 65536 from "
      "65536 to 4194304\n"
      "headrace.queue_depth: found 0; allowed: a whole number from 1 to 4096");
}

TEST(SettingsCheck, RefusesAStoreOfSettingsThatAreSetInCode) {
  Settings settings;
  settings.durable_every = 2147483648;
  settings.store = "a/b";
  settings.trainer_state_bytes = 16777217;
  EXPECT_EQ(faults_of(settings),
            "headrace.durable: found 2147483648; allowed: \"none\" or \"step\", or a whole number "
            "from 1 to 2147483647\n"
            "headrace.store: found \"a/b\", but directories get this name; allowed: 1 to 64 "
            "letters (A-Z, a-z), digits, '.', '_' and '-', the first no '.' or '-'\n"
            "headrace.trainer_state_bytes: found 16777217; allowed: bytes as a number or text like "
            "\"1MiB\" from 0 B to 16 MiB");
  settings = {};
  settings.durable_every = 1;
  EXPECT_EQ(faults_of(settings),
            "headrace.durable: a store is on a drive even if all state fits in memory, and neither "
            "headrace.nvme_paths nor nvme_path names a directory; add headrace.nvme_paths\n"
            "headrace.durable: a later run finds the state by the name of its store, and "
            "headrace.store gives none; add it");
  settings.nvme_paths = {"/mnt/a"};
  settings.store = "run-1";
  EXPECT_EQ(faults_of(settings), "");
}

TEST(SettingsCheck, RefusesWhatJsonHasNoWordFor) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto faults_with = [](auto field, auto value) {
    Settings settings;
    settings.*field = value;
    return faults_of(settings);
  };
  EXPECT_EQ(faults_with(&Settings::gradient_clipping, 1.0), "");
  EXPECT_NE(faults_with(&Settings::gradient_clipping, nan), "");
  EXPECT_NE(faults_with(&Settings::io_warn_seconds, HUGE_VAL), "");
  EXPECT_NE(faults_with(&Settings::optimizer_section, OptimizerSection{.lr = nan}), "");
  EXPECT_NE(faults_with(&Settings::drive_shares, std::vector<double>{1, nan}), "");
  EXPECT_NE(faults_with(&Settings::checksums, static_cast<Checksums>(7)), "");
  EXPECT_NE(faults_with(&Settings::resume, static_cast<Resume>(3)), "");
}
}  // namespace
}  // namespace headrace
