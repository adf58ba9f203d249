// SPDX-License-Identifier: Apache-2.0
// What is read from text, file and overrides when nothing is wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "settings/drive_path.hpp"
#include "settings/values.hpp"

namespace headrace {
namespace {
TEST(Settings, HaveTheDefaultsOfTheStructWhenNothingIsGiven) {
  const Settings read = Settings::from_json("{}");
  Settings asked;
  asked.bf16 = false;  // a file without a dtype asks for f32
  EXPECT_EQ(read.to_json(), asked.to_json());
  EXPECT_TRUE(read.warnings.empty());
}

TEST(Settings, FollowDeepSpeedsSections) {
  const Settings read = Settings::from_json(R"({
    "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/a"},
      "offload_param": {"device": "cpu"}},
    "gradient_clipping": 0.5, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}})");
  EXPECT_EQ(read.offload_optimizer, OffloadDevice::kNvme);
  EXPECT_EQ(read.offload_parameters, OffloadDevice::kCpu);
  EXPECT_EQ(read.nvme_paths, std::vector<std::string>{"/mnt/a"});
  EXPECT_EQ(read.gradient_clipping, 0.5);
  EXPECT_EQ(read.gradient_accumulation_steps, 4u);
  EXPECT_TRUE(read.warnings.empty());
}

TEST(Settings, KeepWhereTheyWereTuned) {
  const Settings read = Settings::from_json(R"({"headrace": {"queue_depth": 8, "tuned": {
    "drive_model": "KIOXIA CM7", "file_system": "xfs", "kernel": "6.1.0-18-amd64",
    "date": "2026-11-21T10:00:00Z", "queue": "uring, registered buffers", "pattern": "step",
    "gb_per_second": 5.1, "gb_per_second_low": 4.9, "gb_per_second_high": 5,
    "headrace_version": "0.1.0"}}})");
  EXPECT_TRUE(read.warnings.empty());
  EXPECT_EQ(read.queue_depth, 8u);
  EXPECT_EQ(read.tuned.drive_model, "KIOXIA CM7");
  EXPECT_EQ(read.tuned.kernel, "6.1.0-18-amd64");
  for (const char* wrong : {R"({"headrace": {"tuned": 5}})", R"({"headrace": {"tuned": null}})",
                            R"({"headrace": {"tuned": {"kernel": 6}}})",
                            R"({"headrace": {"tuned": {"gb_per_second": -1}}})",
                            R"({"headrace": {"tuned": {"kernal": "6"}}})"})
    EXPECT_THROW(Settings::from_json(wrong), Error) << wrong;
}

TEST(Settings, FillEveryFieldOfOurOwnSection) {
  const Settings read = Settings::from_json(R"({"headrace": {
    "host_budget_bytes": "1.5GiB", "nvme_paths": ["/mnt/a", "/mnt/b"], "master": "f32",
    "drive_shares": [2, 0.5],
    "tile_elements": 131072, "update_slots": 3, "prefetch_groups": 0, "update_threads": 8,
    "io_block_bytes": "512KiB", "queue_depth": 32, "submit_batch": 1, "io_queue": "threads",
    "register_buffers": "off",
    "direct": "require", "allow_memory_backed": true, "checksums": "off", "io_warn_seconds": 0.5,
    "io_deadline_seconds": 5}})");
  EXPECT_EQ(read.host_budget_bytes, 3ull << 29);
  EXPECT_FALSE(read.host_budget_auto);
  EXPECT_EQ(read.nvme_paths, (std::vector<std::string>{"/mnt/a", "/mnt/b"}));
  EXPECT_EQ(read.drive_shares, (std::vector<double>{2, 0.5}));
  EXPECT_EQ(read.master, MasterLayout::kF32);
  EXPECT_EQ(read.tile_elements, 131072u);
  EXPECT_EQ(read.update_slots, 3u);
  EXPECT_EQ(read.prefetch_groups, 0u);
  EXPECT_EQ(read.update_threads, 8u);
  EXPECT_EQ(read.io_block_bytes, 512u << 10);
  EXPECT_EQ(read.queue_depth, 32u);
  EXPECT_EQ(read.submit_batch, 1u);
  EXPECT_EQ(read.io_queue, IoQueueKind::kThreads);
  EXPECT_EQ(read.register_buffers, RegisterBuffers::kOff);
  EXPECT_EQ(read.direct, DirectIo::kRequire);
  EXPECT_TRUE(read.allow_memory_backed);
  EXPECT_EQ(read.checksums, Checksums::kOff);
  EXPECT_EQ(read.io_warn_seconds, 0.5);
  EXPECT_EQ(read.io_deadline_seconds, 5);
}

TEST(Settings, TakeTheSharesOfDrivesAsAListOrAuto) {
  const auto read = [](const std::string& shares) {
    return Settings::from_json(
        R"({"zero_optimization": {"offload_param": {"device": "nvme"}}, "headrace": {)"
        R"("nvme_paths": ["/mnt/a", "/mnt/b"], "drive_shares": )" +
        shares + "}}");
  };
  EXPECT_EQ(read("[1, 3]").drive_shares, (std::vector<double>{1, 3}));
  EXPECT_TRUE(read("\"auto\"").drive_shares.empty());
  for (const char* refused :
       {"[]", "[1, 0]", "[1, -2]", "[1, \"2\"]", "2", "\"fast\"", "[1]", "[1, 2, 3]"}) {
    try {
      read(refused);
      ADD_FAILURE() << refused << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("headrace.drive_shares: "), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("\"auto\""), std::string::npos) << error.what();
    }
  }
}

// What a store needs, and all of it in memory.
Settings durable(const std::string& value, const std::string& more = "") {
  return Settings::from_json(
      R"({"headrace": {"nvme_paths": ["/mnt/a"], "store": "s", "durable": )" + value + more + "}}");
}

TEST(Settings, TakeDurableAsAWordOrAsANumberOfSteps) {
  EXPECT_EQ(durable("\"step\"").durable_every, 1u);
  EXPECT_EQ(durable("1").durable_every, 1u);
  EXPECT_EQ(durable("25").durable_every, 25u);
  EXPECT_EQ(durable("5e2").durable_every, 500u);
  EXPECT_EQ(durable("2147483647").durable_every, 2147483647u);
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"durable": "none"}})").durable_every, 0u);
  EXPECT_EQ(durable("1", R"(, "resume": "require")").resume, Resume::kRequire);
  EXPECT_EQ(durable("1", R"(, "resume": "never")").resume, Resume::kNever);
  EXPECT_EQ(durable("1", R"(, "trainer_state_bytes": "16MiB")").trainer_state_bytes, 16u << 20);
  EXPECT_EQ(durable("1", R"(, "trainer_state_bytes": 0)").trainer_state_bytes, 0u);
  EXPECT_EQ(durable("1").background_save_bytes_per_second, 0u);
  EXPECT_EQ(durable("1", R"(, "background_save_bytes_per_second": "200MiB")")
                .background_save_bytes_per_second,
            200u << 20);
}

TEST(Settings, WriteDurableAsAWordWhereThereIsOne) {
  const auto written = [](const Settings& settings) { return settings.to_json(); };
  const auto holds = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string none = written(Settings::from_json("{}"));
  EXPECT_TRUE(holds(none, R"("durable": "none")")) << none;
  EXPECT_FALSE(holds(none, R"("store")")) << none;
  EXPECT_TRUE(holds(written(durable("1")), R"("durable": "step")"));
  EXPECT_TRUE(holds(written(durable("2")), R"("durable": 2)"));
  EXPECT_TRUE(holds(written(durable("2")), R"("store": "s")"));
}

TEST(Settings, KeepAPathForAStoreWhereNoDeviceIsNvme) {
  const Settings listed = durable("\"step\"", R"(, "drive_shares": [1])");
  EXPECT_EQ(listed.offload_optimizer, OffloadDevice::kNone);
  EXPECT_EQ(listed.nvme_paths, std::vector<std::string>{"/mnt/a"});
  EXPECT_TRUE(listed.warnings.empty()) << listed.warnings[0];
  EXPECT_THROW(durable("\"step\"", R"(, "drive_shares": [1, 2])"), Error);
  const auto sections = [](const std::string& optimizer, const std::string& parameters) {
    return Settings::from_json(R"({"headrace": {"durable": "step", "store": "s"},
      "zero_optimization": {"offload_optimizer": {)" +
                               optimizer + R"(}, "offload_param": {)" + parameters + "}}}");
  };
  const std::string a = R"("device": "cpu", "nvme_path": "/mnt/a")";
  for (const Settings& read :
       {sections(a, ""), sections("", a), sections(a, R"("nvme_path": "/mnt//a/")")}) {
    EXPECT_EQ(read.nvme_paths, std::vector<std::string>{"/mnt/a"});
    EXPECT_TRUE(read.warnings.empty()) << read.warnings[0];
  }
  EXPECT_THROW(sections(a, R"("nvme_path": "/mnt/b")"), Error);
  const Settings one_swaps = sections(a, R"("device": "nvme", "nvme_path": "/mnt/b")");
  EXPECT_EQ(one_swaps.nvme_paths, std::vector<std::string>{"/mnt/b"}) << "the swap file's drive";
  EXPECT_EQ(one_swaps.warnings.size(), 1u);
}

TEST(Settings, TakeTheBudgetAsNumberTextOrAuto) {
  const auto budget = [](const std::string& value) {
    return Settings::from_json("{\"headrace\": {\"host_budget_bytes\": " + value + "}}");
  };
  EXPECT_EQ(budget("1073741824").host_budget_bytes, 1ull << 30);
  EXPECT_EQ(budget("5e8").host_budget_bytes, 500000000u);
  EXPECT_EQ(budget("9223372036854775807").host_budget_bytes, (1ull << 63) - 1);
  EXPECT_TRUE(budget("\"auto\"").host_budget_auto);
  EXPECT_EQ(budget("\"auto\"").host_budget_bytes, 0u);
  for (const char* bad :
       {"-1", "1.5", "1e300", "\"-1GiB\"", "\"\"", "\"1\"", "\"1G\"", "true", "null",
        "9223372036854775808", "18446744073709551616", "\"Auto\"", "[]"}) {
    EXPECT_THROW(budget(bad), Error) << bad;
  }
}

TEST(Settings, TakeChecksumsAsSwitchOrBoolean) {
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"checksums": false}})").checksums,
            Checksums::kOff);
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"checksums": true}})").checksums, Checksums::kOn);
}

TEST(Settings, AcceptAByteOrderMarkAndCountColumnsBehindIt) {
  EXPECT_EQ(Settings::from_json("\xef\xbb\xbf{\"gradient_clipping\": 2}").gradient_clipping, 2);
  try {
    Settings::from_json("\xef\xbb\xbf{\"bf6\": {}}", "f");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("f:1:2: bf6: ", 0), 0u) << error.what();
  }
}

TEST(Settings, KeepOneLetterCommentsWindowsLinesAndTabsApart) {
  const Settings read = Settings::from_json("{\r\n\t\"gradient_clipping\" : 1 , // x\r\n}\r\n");
  EXPECT_EQ(read.gradient_clipping, 1);
}

using Lines = std::vector<std::string>;

TEST(Settings, WarnAboutAKeyThatIsNotServedWithItsValueAndWhatIsUsedInstead) {
  EXPECT_EQ(
      Settings::from_json("{\n  \"aio\": {\"queue_depth\": 8}\n}", "ds.json").warnings,
      Lines{
          "ds.json:2:11: no effect here: aio.queue_depth = 8 (headrace.queue_depth = 16 is used)"});
  EXPECT_EQ(
      Settings::from_json(R"({"aio": {"queue_depth": 8}, "headrace": {"queue_depth": 9}})", "f",
                          {"headrace.queue_depth=10"})
          .warnings,
      Lines{"f:1:10: no effect here: aio.queue_depth = 8 (headrace.queue_depth = 10 is used)"});
}

TEST(Settings, WarnInALinePerKeyInTheOrderOfTheText) {
  const Settings read = Settings::from_json(
      R"({"prescale_gradients": true,
"zero_optimization": {"sub_group_size": 1e8, "overlap_comm": true},
"steps_per_print": 10})",
      "f");
  EXPECT_EQ(read.warnings,
            (Lines{"f:1:2: no effect here: prescale_gradients = true (ranks talk through the "
                   "collective that the trainer passes in)",
                   "f:2:23: no effect here: zero_optimization.sub_group_size = 100000000 "
                   "(headrace.tile_elements = 1048576 is used)",
                   "f:2:46: no effect here: zero_optimization.overlap_comm = true (ranks talk "
                   "through the collective that the trainer passes in)",
                   "f:3:1: no effect here: steps_per_print = 10 (reporting is the trainer's)"}));
}

TEST(Settings, KeepQuietAboutValuesThatAreWhatIsDoneInAnyCase) {
  const auto warnings = [](const std::string& text) { return Settings::from_json(text).warnings; };
  EXPECT_EQ(warnings(R"({"bf16": {"enabled": true, "check_grad_overflow": true}, "aio":
      {"block_size": 1048576, "thread_count": 1, "use_gds": false}, "wall_clock_breakdown": false,
      "gradient_predivide_factor": 1.0, "optimizer": {"type": "Adam", "params": {"amsgrad": false}},
      "zero_optimization": {"stage": 3, "contiguous_gradients": true},
      "fp16": {"enabled": false, "loss_scale": 0}, "flops_profiler": {"enabled": false, "x": 1}})"),
            Lines{});
  for (const char* other :
       {R"({"zero_optimization": {"contiguous_gradients": false}})",
        R"({"aio": {"block_size": 1048576}, "headrace": {"io_block_bytes": "2MiB"}})",
        R"({"flops_profiler": {"enabled": true}})", R"({"aio": {"thread_count": "auto"}})"}) {
    EXPECT_EQ(warnings(other).size(), 1u) << other;
  }
}

TEST(Settings, TakeTheRuleAndTheConstantsOfDeepSpeedsOptimizer) {
  const Settings sgd = Settings::from_json(
      R"({"optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9, "nesterov": true,
      "maximize": false}}})");
  EXPECT_EQ(sgd.optimizer, OptimizerRule::kSgdMomentum);
  EXPECT_EQ(sgd.warnings, Lines{});
  const Hyperparameters ours{.beta1 = 0.5f, .weight_decay = 0.1f};
  const Hyperparameters given = sgd.optimizer_section.hyperparameters(sgd.optimizer, ours);
  EXPECT_EQ(given.momentum, 0.9f);
  EXPECT_TRUE(given.nesterov);
  EXPECT_EQ(given.weight_decay, 0) << "DeepSpeed's default, as there is a type";
  EXPECT_EQ(sgd.optimizer_section.learning_rate(sgd.optimizer, 7), 0.5);

  EXPECT_EQ(
      Settings::from_json(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0}}})").optimizer,
      OptimizerRule::kSgd);
  const Settings lion = Settings::from_json(R"({"optimizer": {"type": "Lion"}})");
  EXPECT_EQ(lion.optimizer_section.hyperparameters(lion.optimizer, ours).beta2, 0.999f)
      << "DeepSpeed's, where Lion's paper has 0.99";
  EXPECT_EQ(lion.optimizer_section.learning_rate(lion.optimizer, 7), 1e-3);
  const Settings without = Settings::from_json(R"({"optimizer": {"params": {"eps": 0.25}}})");
  EXPECT_EQ(without.optimizer_section.hyperparameters(without.optimizer, ours).beta1, 0.5f);
  EXPECT_EQ(without.optimizer_section.hyperparameters(without.optimizer, ours).eps, 0.25f);
  EXPECT_EQ(without.optimizer_section.learning_rate(without.optimizer, 7), 7);
  EXPECT_EQ(Settings::from_json(R"({"optimizer": {"params": {"adam_w_mode": true}}})").optimizer,
            OptimizerRule::kAdamW);
  EXPECT_EQ(Settings::from_json(R"({"optimizer": {"params": {"adam_w_mode": false}}})").optimizer,
            OptimizerRule::kAdam);
  const Settings adam =
      Settings::from_json(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})");
  EXPECT_EQ(adam.optimizer, OptimizerRule::kAdam);
  // As in DeepSpeed, where only the type Adam looks at it.
  const Settings adamw =
      Settings::from_json(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})");
  EXPECT_EQ(adamw.optimizer, OptimizerRule::kAdamW);
  ASSERT_EQ(adamw.warnings.size(), 1u);
  EXPECT_NE(adamw.warnings[0].find("adam_w_mode: no effect"), std::string::npos);
}

TEST(Settings, DecayWeightsAsTorchDoesWhereTorchsAdamIsAskedFor) {
  const auto read = [](const std::string& type, const std::string& params) {
    return Settings::from_json(
        R"({"bf16": {"enabled": true}, "gradient_clipping": 1, "optimizer": )"
        R"({"type": ")" +
        type + R"(", "params": {)" + params + "}}}");
  };
  const auto decay = [](const Settings& s) {
    return s.optimizer_section.hyperparameters(s.optimizer, {}).weight_decay;
  };
  for (const char* type : {"AdamW", "Adam"}) {  // Adam is adamw too
    const Settings torch = read(type, R"("torch_adam": true)");
    EXPECT_EQ(decay(torch), 0.01f) << type;
    ASSERT_EQ(torch.defaults_taken.size(), 1u);
    EXPECT_NE(torch.defaults_taken[0].find("weight_decay is not given: 0.01 holds"),
              std::string::npos)
        << torch.defaults_taken[0];
    EXPECT_EQ(torch.warnings, Lines{});
  }
  EXPECT_EQ(decay(read("Adam", R"("torch_adam": true, "adam_w_mode": false)")), 0)
      << "torch.optim.Adam's";
  const Settings given = read("AdamW", R"("torch_adam": true, "weight_decay": 0.1)");
  EXPECT_EQ(decay(given), 0.1f);
  EXPECT_EQ(given.defaults_taken, Lines{});
  const Settings own = read("AdamW", R"("torch_adam": false)");
  EXPECT_EQ(decay(own), 0);
  EXPECT_EQ(own.defaults_taken, Lines{});
}

TEST(Settings, LeaveWholeSectionsToTheTrainerToo) {
  const std::string amp = R"({"amp": {"enabled": "auto", "opt_level": "auto"}})";
  EXPECT_EQ(Settings::from_json(amp, "f", ReadOptions{.leave_auto_open = true}).open,
            std::vector<std::string>{"amp.enabled"});
  EXPECT_THROW(Settings::from_json(amp), Error);
  EXPECT_NO_THROW(Settings::from_json(amp, "f", ReadOptions{.for_auto = {"amp.enabled=false"}}));
}

TEST(Settings, NoRanksShareABatch) {
  Settings settings;
  settings.train_batch_size = 8;
  EXPECT_THROW(settings.resolve_batch(0), Error);
}

TEST(Settings, ScaleLossesAndSkipOverflowsWithFp16) {
  const Settings read = Settings::from_json(R"({"fp16": {"enabled": true, "hysteresis": 4}})");
  EXPECT_EQ(read.parameter_dtype(), DType::kF16);
  EXPECT_EQ(read.loss_scaling.hysteresis, 4u);
  EXPECT_EQ(read.non_finite, NonFinite::kSkip);
}

TEST(Settings, TakeConstantsOfADynamicScaleThatNothingUses) {
  for (const char* text :
       {R"({"fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 0}})",
        R"({"fp16": {"enabled": false, "loss_scale": 0, "min_loss_scale": 0}})",
        R"({"fp16": {"enabled": true, "loss_scale": 1, "loss_scale_window": 0}})"})
    EXPECT_NO_THROW(Settings::from_json(text)) << text;
  for (const char* text : {R"({"fp16": {"enabled": true, "min_loss_scale": 0}})",
                           R"({"fp16": {"enabled": true, "loss_scale_window": 0}})",
                           R"({"fp16": {"enabled": true, "loss_scale": 1, "min_loss_scale": -1}})"})
    EXPECT_THROW(Settings::from_json(text), Error) << text;
}

// sys.maxsize, as DeepSpeed prints its default.
TEST(Settings, TakeTheLargestNumberOfPythonsForACountOfElements) {
  const Settings read = Settings::from_json(R"({"zero_optimization": {
    "stage3_model_persistence_threshold": 9223372036854775807,
    "stage3_max_live_parameters": 9.223372036854775807e18}})");
  EXPECT_GE(read.warnings.size(), 1u);
  EXPECT_THROW(Settings::from_json(R"({"zero_optimization": {"sub_group_size": 1e19}})"), Error);
  EXPECT_THROW(Settings::from_json(R"({"headrace": {"host_budget_bytes": 9223372036854775808}})"),
               Error);
  EXPECT_THROW(Settings::from_json(R"({"headrace": {"host_budget_bytes": 9.3e18}})"), Error);
}

TEST(Settings, SayWhichDtypeAFileAsksForAndWhereItLeavesThatToTheTrainer) {
  const auto dtype = [](const std::string& text, const std::vector<std::string>& for_auto = {}) {
    return Settings::from_json(text, "f",
                               ReadOptions{.for_auto = for_auto, .leave_auto_open = true})
        .parameter_dtype();
  };
  EXPECT_EQ(dtype(R"({"bf16": {"enabled": true}})"), DType::kBf16);
  EXPECT_EQ(dtype(R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})"), DType::kF16);
  // As in DeepSpeed.
  for (const char* f32 :
       {"{}", R"({"fp16": {"enabled": false}})", R"({"bf16": {"enabled": false}})",
        R"({"bfloat16": {"enabled": false}, "fp16": {"enabled": false}})",
        R"({"bf16": {}, "fp16": {"loss_scale": 0}})", R"({"bf16": null, "fp16": null})",
        R"({"zero_optimization": {"stage": 3}, "gradient_clipping": 1})"})
    EXPECT_EQ(dtype(f32), DType::kF32) << f32;
  for (const char* open : {R"({"bf16": {"enabled": "auto"}})", R"({"fp16": {"enabled": "auto"}})",
                           R"({"fp16": {"enabled": false}, "bfloat16": {"enabled": "auto"}})",
                           R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": false}})",
                           R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})"})
    EXPECT_EQ(dtype(open), std::nullopt) << open;
  EXPECT_EQ(
      dtype(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": false}})", {"fp16.enabled=false"}),
      DType::kF32);
  EXPECT_EQ(dtype(R"({"fp16": {"enabled": "auto"}})", {"fp16.enabled=false"}), std::nullopt)
      << "what the trainer filled in is the trainer's choice";
  EXPECT_EQ(dtype(R"({"bf16": {"enabled": "auto"}})", {"bf16.enabled=true"}), DType::kBf16);
  EXPECT_EQ(Settings{}.parameter_dtype(), std::nullopt) << "there was no file";
  EXPECT_EQ(Settings::from_json(Settings::from_json("{}").to_json()).parameter_dtype(),
            DType::kF32);
}

TEST(Settings, SayThatParametersAreF32WhereNoKeyDoes) {
  const auto lines = [](const char* text) {
    std::vector<std::string> said;
    for (const std::string& line : Settings::from_json(text).defaults_taken)
      if (line.find("parameters are to be f32") != std::string::npos) said.push_back(line);
    return said.size();
  };
  EXPECT_EQ(lines("{}"), 1u);
  EXPECT_EQ(lines(R"({"fp16": {"enabled": false}})"), 1u);
  EXPECT_EQ(lines(R"({"bf16": {"enabled": false}})"), 0u) << "the file says it itself";
  EXPECT_EQ(lines(R"({"bf16": {"enabled": true}})"), 0u);
  EXPECT_EQ(lines(R"({"fp16": {"enabled": true}})"), 0u);
}

TEST(Settings, FillInTheBatchAsDeepSpeedDoes) {
  struct Case {
    const char* text;
    std::uint32_t ranks, whole, micro, accumulation;
  };
  for (const Case& c : {
           Case{R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4})", 2, 24, 4, 3},
           Case{R"({"train_batch_size": 24, "gradient_accumulation_steps": 3})", 2, 24, 4, 3},
           Case{R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3})", 2, 24,
                4, 3},
           Case{R"({"train_batch_size": 24})", 2, 24, 12, 1},
           Case{R"({"train_micro_batch_size_per_gpu": 4})", 3, 12, 4, 1},
           Case{R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
                    "gradient_accumulation_steps": "auto"})",
                1, 4, 4, 1},
       }) {
    Settings read = Settings::from_json(c.text);
    read.resolve_batch(c.ranks);
    EXPECT_EQ(read.train_batch_size, c.whole) << c.text;
    EXPECT_EQ(read.train_micro_batch_size_per_gpu, c.micro) << c.text;
    EXPECT_EQ(read.gradient_accumulation_steps, c.accumulation) << c.text;
  }
  Settings none = Settings::from_json("{}");
  none.resolve_batch(4);
  EXPECT_FALSE(none.train_batch_size);
  for (const char* text : {R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4})",
                           R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4,
                               "gradient_accumulation_steps": 1})"}) {
    Settings read = Settings::from_json(text);
    EXPECT_THROW(read.resolve_batch(2), Error) << text;
  }
}

TEST(Settings, TakeFromTheTrainerWhatIsLeftToIt) {
  const char* text = R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 0.5}}})";
  const Settings filled = Settings::from_json(
      text, "f", ReadOptions{.for_auto = {"optimizer.params.lr=0.25", "optimizer.params.eps=1"}});
  EXPECT_EQ(filled.optimizer_section.lr, 0.25);
  EXPECT_EQ(filled.optimizer_section.eps, 0.5) << "what is given stays";
  const Settings open = Settings::from_json(text, "f", ReadOptions{.leave_auto_open = true});
  EXPECT_EQ(open.open, Lines{"optimizer.params.lr"});
  EXPECT_THROW(Settings::from_json(text), Error);
}

TEST(Settings, WarnWhereDeepSpeedsStageWouldOffloadLess) {
  const auto warnings = [](const std::string& stage, const std::string& section) {
    const std::string text = "{\"zero_optimization\": {" + stage + section +
                             "{\"device\": \"nvme\", \"nvme_path\": \"/x\"}}}";
    return Settings::from_json(text).warnings.size();
  };
  EXPECT_EQ(warnings("\"stage\": 2, ", "\"offload_param\": "), 1u);
  EXPECT_EQ(warnings("\"stage\": 2, ", "\"offload_optimizer\": "), 1u);
  EXPECT_EQ(warnings("\"stage\": 0, ", "\"offload_optimizer\": "), 1u);
  EXPECT_EQ(warnings("\"stage\": 3, ", "\"offload_param\": "), 0u);
  EXPECT_EQ(warnings("", "\"offload_param\": "), 0u);
}

TEST(Settings, WarnWhenTheDeadlineComesBeforeTheWarning) {
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"io_deadline_seconds": 5}})").warnings.size(), 1u);
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"io_warn_seconds": 90}})").warnings.size(), 1u);
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"io_warn_seconds": 20}})").warnings.size(), 0u);
}

TEST(Settings, TakeDeprecatedCpuOffloadAsTheSection) {
  const Settings read = Settings::from_json(
      R"({"zero_optimization": {"cpu_offload": true, "cpu_offload_param": true}})");
  EXPECT_EQ(read.offload_optimizer, OffloadDevice::kCpu);
  EXPECT_EQ(read.offload_parameters, OffloadDevice::kCpu);
  EXPECT_EQ(read.warnings.size(), 2u);
  const Settings off = Settings::from_json(R"({"zero_optimization": {"cpu_offload": false}})");
  EXPECT_EQ(off.offload_optimizer, OffloadDevice::kNone);
}

TEST(Settings, TakeShardGroupsOfMicsAsNodes) {
  const auto read = [](const std::string& section) {
    return Settings::from_json(R"({"zero_optimization": {)" + section + "}}");
  };
  const Settings groups = read(R"("mics_shard_size": 4)");
  EXPECT_EQ(groups.zero_hpz_partition_size, 4u);
  ASSERT_EQ(groups.warnings.size(), 1u);
  EXPECT_NE(groups.warnings[0].find(
                "taken as zero_optimization.zero_hpz_partition_size 4: each group of 4 ranks holds "
                "the parameters, and all ranks share optimizer state"),
            std::string::npos)
      << groups.warnings[0];
  EXPECT_EQ(Settings::from_json(groups.to_json()).zero_hpz_partition_size, 4u);
  EXPECT_EQ(read(R"("mics_shard_size": 4, "zero_hpz_partition_size": 4)").warnings.size(), 1u);
  const Settings beside = read(R"("mics_shard_size": 4, "zero_hpz_partition_size": 1)");
  EXPECT_EQ(beside.zero_hpz_partition_size, 4u);  // 1 is DeepSpeed's default
  for (const char* const off : {"-1", "0", "null"}) {
    const Settings none = read(std::string(R"("mics_shard_size": )") + off);
    EXPECT_EQ(none.zero_hpz_partition_size, 1u) << off;
    EXPECT_TRUE(none.warnings.empty()) << off;
  }
  const Settings alone = read(R"("mics_shard_size": 1)");
  EXPECT_EQ(alone.zero_hpz_partition_size, 1u);
  ASSERT_EQ(alone.warnings.size(), 1u);
  EXPECT_NE(alone.warnings[0].find("with zero_optimization.stage 2"), std::string::npos);
  const Settings below = read(R"("mics_shard_size": 4, "stage": 2)");
  ASSERT_EQ(below.warnings.size(), 2u);
  EXPECT_EQ(
      read(R"("mics_shard_size": -1, "zero_hpz_partition_size": 4, "stage": 2)").warnings.size(),
      1u);
  EXPECT_NE(below.warnings[1].find("no effect at stage 2"), std::string::npos) << below.warnings[1];
}

TEST(Settings, ExpandHomeAndVariablesInPaths) {
  ::setenv("HOME", "/home/someone", 1);
  ::setenv("HEADRACE_TEST_DRIVE", "/mnt/drive 1", 1);
  const Settings read = Settings::from_json(R"({"headrace": {"nvme_paths":
      ["~/swap", "${HEADRACE_TEST_DRIVE}/x", "/a$$b", "~", "/x~y", "./~z"]}})");
  EXPECT_EQ(read.nvme_paths, (std::vector<std::string>{"/home/someone/swap", "/mnt/drive 1/x",
                                                       "/a$b", "/home/someone", "/x~y", "./~z"}));
  ::unsetenv("HEADRACE_TEST_DRIVE");
}

TEST(SettingsOverrides, WinOverTheFileAndReadJsonOrElseText) {
  const Settings read = Settings::from_json(
      R"({"gradient_clipping": 1.0, "headrace": {"update_slots": 2}})", "f",
      {"gradient_clipping=0.25", "headrace.host_budget_bytes=1GiB", "headrace.master=f32",
       "headrace.checksums=false", "zero_optimization.offload_param.device=nvme",
       "headrace.nvme_paths=[\"/mnt/a\", \"/mnt/b=c\"]", "headrace.update_slots=3",
       "headrace.update_slots=5", "headrace.io_queue=\"uring\""});
  EXPECT_EQ(read.gradient_clipping, 0.25);
  EXPECT_EQ(read.host_budget_bytes, 1ull << 30);
  EXPECT_EQ(read.master, MasterLayout::kF32);
  EXPECT_EQ(read.checksums, Checksums::kOff);
  EXPECT_EQ(read.offload_parameters, OffloadDevice::kNvme);
  EXPECT_EQ(read.nvme_paths, (std::vector<std::string>{"/mnt/a", "/mnt/b=c"}));
  EXPECT_EQ(read.update_slots, 5u);
  EXPECT_EQ(read.io_queue, IoQueueKind::kUring);
}

TEST(SettingsOverrides, MendWhatTheFileHoldsAndTakeItsSpelling) {
  EXPECT_EQ(Settings::from_json(R"({"gradient_clipping": "auto"})", "f", {"gradient_clipping=1"})
                .gradient_clipping,
            1);
  EXPECT_TRUE(Settings::from_json(R"({"bfloat16": {"enabled": false}})", "f", {"bf16.enabled=true"})
                  .warnings.empty());
  EXPECT_EQ(Settings::from_json(R"({"zero_optimization": {"offload_param": null}})", "f",
                                {"zero_optimization.offload_param.device=cpu"})
                .offload_parameters,
            OffloadDevice::kCpu);
  const auto whole =
      Settings::from_json(R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})", "f",
                          {R"(zero_optimization.offload_param={"device": "cpu"})"});
  EXPECT_EQ(whole.offload_parameters, OffloadDevice::kCpu);
}

TEST(SettingsOverrides, MakeARunDurable) {
  const Settings read = Settings::from_json(
      R"({"headrace": {"nvme_paths": ["/mnt/a"]}})", "f",
      {"headrace.durable=step", "headrace.store=run-1", "headrace.resume=require"});
  EXPECT_EQ(read.durable_every, 1u);
  EXPECT_EQ(read.store, "run-1");
  EXPECT_EQ(read.resume, Resume::kRequire);
  EXPECT_TRUE(read.warnings.empty());
  EXPECT_EQ(Settings::from_json(read.to_json(), "f", {"headrace.durable=20"}).durable_every, 20u);
}

// What is a text in the table is never a number, a list or "true", whatever it looks like.
TEST(SettingsOverrides, TakeNamesAndPathsAsTheyStand) {
  for (const char* const name : {"123", "1e5", "007", "true", "null", "run.1"}) {
    const Settings read =
        Settings::from_json(R"({"headrace": {"nvme_paths": ["/mnt/a"]}})", "f",
                            {"headrace.durable=step", std::string("headrace.store=") + name});
    EXPECT_EQ(read.store, name);
  }
  EXPECT_EQ(Settings::from_json(R"({"headrace": {"nvme_paths": ["/mnt/a"]}})", "f",
                                {"headrace.durable=step", R"(headrace.store="a")"})
                .store,
            "a");
  EXPECT_EQ(Settings::from_json("{}", "f",
                                {"zero_optimization.offload_optimizer.device=nvme",
                                 "zero_optimization.offload_optimizer.nvme_path=42"})
                .nvme_paths,
            std::vector<std::string>{"42"});
}

TEST(SettingsOverrides, NameThemselvesInWarnings) {
  const Settings read =
      Settings::from_json(R"({"aio": {"queue_depth": 1}})", "f", {"aio.queue_depth=2"});
  EXPECT_EQ(read.warnings, Lines{"--set aio.queue_depth: no effect here: aio.queue_depth = 2 "
                                 "(headrace.queue_depth = 16 is used)"});
}

TEST(SettingsFile, IsReadAndNamedInWarnings) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("headrace_settings_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << "{\"steps_per_print\": 1, \"gradient_clipping\": 3}";
  const Settings read = Settings::from_file(path, {"headrace.update_slots=7"});
  std::filesystem::remove(path);
  EXPECT_EQ(read.gradient_clipping, 3);
  EXPECT_EQ(read.update_slots, 7u);
  ASSERT_EQ(read.warnings.size(), 1u);
  EXPECT_EQ(read.warnings[0].rfind(path + ":1:2: no effect here: steps_per_print = 1 ", 0), 0u)
      << read.warnings[0];
}

TEST(ParseSize, KnowsPowersOf1024And1000AndNeedsAUnit) {
  using settings::parse_size;
  EXPECT_EQ(parse_size("0B"), 0u);
  EXPECT_EQ(parse_size("4096 B"), 4096u);
  EXPECT_EQ(parse_size("1KiB"), 1024u);
  EXPECT_EQ(parse_size("1.5MiB"), 1572864u);
  EXPECT_EQ(parse_size("1GB"), 1000000000u);
  EXPECT_EQ(parse_size("2 TiB"), 2ull << 40);
  EXPECT_EQ(parse_size("0.125KiB"), 128u);
  EXPECT_EQ(parse_size("8388607TiB"), 8388607ull << 40);
  for (const char* bad :
       {"",      "1",     "GiB",    "1G",        "1gib",       "1.5B",
        "0.1B",  "-1GiB", "+1GiB",  " 1GiB",     "1GiB ",      "1  GiB",
        "1.GiB", ".5GiB", "1e3MiB", "1.2345GiB", "8388608TiB", "99999999999999999999B",
        "0x10B", "1GiBs"}) {
    EXPECT_EQ(parse_size(bad), std::nullopt) << bad;
  }
}

TEST(EscapePath, IsUndoneByExpandPath) {
  for (const char* path : {"/a", "relative/b", "/with $ and ${NAME}", "$$", "/x~"}) {
    EXPECT_EQ(settings::expand_path(settings::escape_path(path)).path, path);
  }
  EXPECT_EQ(settings::expand_path(settings::escape_path("~x")).path, "./~x");
}
}  // namespace
}  // namespace headrace
