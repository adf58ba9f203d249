// SPDX-License-Identifier: Apache-2.0
// The whole program with a model of this test's own: what is refused, what is reported, what is
// left behind.
#include "run.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "program/signals.hpp"
#include "progress.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;

// What the fake does, and what was asked of it.
struct Script {
  std::uint64_t nan_at_forward = 0;  // 1 for the first; 0: never
  std::uint64_t fail_at_update = 0;
  std::uint64_t skip_at_update = 0;
  std::set<std::uint64_t> overflow_at;  // steps, 0 for the first
  int raise_at_forward = 0;
  bool refuse = false;
  std::uint64_t forwards = 0, backwards = 0, updates = 0, evaluations = 0, closes = 0, made = 0,
                interrupts = 0;
  std::vector<headrace::StepOptions> asked;
  std::vector<double> loss_scales;
  std::vector<float> betas1;
  std::function<void()> at_last_evaluation = [] {};
  std::optional<std::vector<std::byte>> loaded;
  std::vector<std::string> saved;  // checkpoints
  std::vector<std::byte> state;    // of the last one
  std::uint64_t fail_at_save = 0;  // after this update
  std::uint64_t save_takes = 0;    // updates, in the background
  std::uint64_t waits = 0;         // for one that had not ended
};
Script script;

class Fake : public Training {
 public:
  double forward(const Batch&) override {
    ++script.forwards;
    if (script.raise_at_forward > 0 && script.forwards == 2) ::raise(script.raise_at_forward);
    headrace::tools::check_signal();
    if (script.forwards == script.nan_at_forward) return NAN;
    return 4.0 / static_cast<double>(script.forwards);
  }
  void backward(double loss_scale) override {
    ++script.backwards;
    script.loss_scales.push_back(loss_scale);
  }
  void set_betas(float beta1, float) override { script.betas1.push_back(beta1); }
  double evaluate(const Batch&) override {
    script.at_last_evaluation();
    return static_cast<double>(++script.evaluations);
  }
  headrace::StepResult update(const headrace::StepOptions& options) override {
    script.asked.push_back(options);
    if (++script.updates == script.fail_at_update) {
      throw headrace::Error(headrace::Code::kIo, "swap_in 'h.0' got EIO", EIO);
    }
    if (script.updates == script.skip_at_update || script.overflow_at.contains(script.updates - 1))
      return {.step = script.updates - 1, .gradient_norm = INFINITY, .skipped = true};
    return {.step = script.updates, .gradient_norm = 0.5};
  }
  std::optional<std::vector<std::byte>> loaded() const override { return script.loaded; }
  void save_checkpoint(const std::string& to, std::span<const std::byte> state) override {
    if (script.updates == script.fail_at_save)
      throw headrace::Error(headrace::Code::kNoSpace, "save_checkpoint: the disk is full", ENOSPC);
    std::filesystem::create_directories(to);
    script.saved.push_back(to.substr(to.rfind('/') + 1));
    script.state.assign(state.begin(), state.end());
  }
  SaveUnderWay save_in_background(const std::string& to,
                                  std::span<const std::byte> state) override {
    const std::uint64_t ends = script.updates + script.save_takes;
    const bool fails = script.updates == script.fail_at_save;
    if (!fails) save_checkpoint(to, state);
    return {[ends] { return script.updates >= ends; },
            [ends, fails, to] {
              if (script.updates < ends) ++script.waits;
              if (fails) {
                throw headrace::Error(headrace::Code::kIo,
                                      "cannot write " + to + ".tmp/model.safetensors: EIO", EIO);
              }
            }};
  }
  std::string hash_parameters() override { return "p"; }
  std::string hash_optimizer_state() override { return "o"; }
  void store(const std::string& name,
             const std::function<void(std::uint64_t, std::span<const std::byte>)>& sink) override {
    for (const NamedShape& p : gpt_parameters(shape)) {
      if (p.name == name) sink(0, std::vector<std::byte>(2 * p.elements(), std::byte{7}));
    }
  }
  void interrupt() noexcept override { ++script.interrupts; }
  void close() override { ++script.closes; }
  GptShape shape;
};

std::unique_ptr<Training> make_fake(const TrainingSetup& setup) {
  ++script.made;
  if (script.refuse) throw headrace::Error(headrace::Code::kOutOfBudget, "the plan does not fit");
  auto fake = std::make_unique<Fake>();
  fake->shape = setup.options.shape;
  return fake;
}

class RunProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    script = {};
    text_ = folder_.write("text.txt", std::string(2000, 'x') + std::string(2000, 'y'));
  }

  // Runs with a small model; gives the exit code.
  int run(std::vector<std::string> more) {
    std::vector<std::string> words{"train_gpt", "--no-progress",
                                   "--layers",  "1",
                                   "--hidden",  "8",
                                   "--heads",   "2",
                                   "--seq",     "16",
                                   "--batch",   "2",
                                   "--steps",   "4",
                                   "--json",    folder_ / "report.json"};
    if (std::find(more.begin(), more.end(), "--text") == more.end()) {
      more.insert(more.begin(), {"--text", text_});
    }
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code =
        run_program(static_cast<int>(arguments.size()), arguments.data(),
                    {[](const Options&) { return TorchFacts{}; },
                     [](const Options&) { return std::uint64_t{0}; }, make_fake, make_fake});
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  json report() const { return json::parse(ScratchFolder::read(folder_ / "report.json")); }
  void expect_refused(std::vector<std::string> more, std::string_view why) {
    EXPECT_EQ(run(std::move(more)), 2);
    EXPECT_NE(err_.find(why), std::string::npos) << err_;
    EXPECT_EQ(script.made, 0u) << "refused before anything is allocated";
    EXPECT_EQ(out_, "");
  }

  void expect_no_run(std::vector<std::string> more, std::string_view why) {
    script.made = 0;
    expect_refused(std::move(more), why);
  }

  ScratchFolder folder_;
  std::string text_, out_, err_;
};

TEST_F(RunProgram, TrainsEvaluatesAndReports) {
  ASSERT_EQ(run({"--set", "gradient_accumulation_steps=3", "--set", "gradient_clipping=0.5",
                 "--eval-batches", "2"}),
            0)
      << err_;
  EXPECT_EQ(script.forwards, 12u);
  EXPECT_EQ(script.backwards, 12u);
  EXPECT_EQ(script.closes, 1u);
  ASSERT_EQ(script.asked.size(), 4u);
  EXPECT_FLOAT_EQ(script.asked[0].gradient_scale, 1.0f / 3);
  EXPECT_FLOAT_EQ(script.asked[0].max_norm, 0.5f);
  EXPECT_FLOAT_EQ(script.asked[0].learning_rate, 1e-3f);
  EXPECT_FLOAT_EQ(script.asked[3].learning_rate, 1e-4f);
  const json d = report();
  EXPECT_EQ(d["steps"].size(), 4u);
  EXPECT_NEAR(d["steps"][0]["loss"].get<double>(), (4.0 + 2.0 + 4.0 / 3) / 3, 1e-9);
  EXPECT_EQ(d["eval_loss"], 1.5);
  EXPECT_EQ(d["config"]["gradient_accumulation_steps"], 3);
  EXPECT_EQ(d["text"]["bytes"], 4000);
  EXPECT_NEAR(d["text"]["unigram_entropy_nats"].get<double>(), std::log(2.0), 1e-9);
  EXPECT_NE(out_.find("held-out loss"), std::string::npos);
}

// DeepSpeed's own scaler over 200 steps: how many have which scale, in order.
TEST_F(RunProgram, ScalesLossesAsDeepSpeedDoesWhereGradientsOverflow) {
  script.overflow_at = {3, 4, 5, 20, 26, 40, 41, 55, 56, 57, 90, 95, 130, 150, 155, 160, 165, 199};
  ASSERT_EQ(run({"--steps", "200", "--set", "fp16.enabled=true", "--set",
                 "fp16.loss_scale_window=10", "--set", "scheduler.type=LRRangeTest", "--set",
                 "scheduler.params.lr_range_test_step_size=1"}),
            0)
      << err_;
  const std::vector<std::pair<int, double>> runs{
      {5, 65536},  {1, 32768},  {11, 16384}, {10, 32768},  {11, 16384},  {4, 32768},
      {11, 16384}, {4, 32768},  {1, 16384},  {11, 8192},   {10, 16384},  {10, 32768},
      {7, 65536},  {11, 32768}, {10, 65536}, {10, 131072}, {15, 262144}, {14, 524288},
      {5, 262144}, {5, 131072}, {11, 65536}, {10, 131072}, {10, 262144}, {3, 524288}};
  std::vector<double> expected;
  for (const auto& [count, scale] : runs) expected.insert(expected.end(), count, scale);
  EXPECT_EQ(script.loss_scales, expected);
  std::uint64_t updates = 0;
  for (std::size_t step = 0; step < 200; ++step) {
    EXPECT_FLOAT_EQ(script.asked[step].gradient_scale, static_cast<float>(1 / expected[step]));
    EXPECT_FLOAT_EQ(script.asked[step].learning_rate, 0.001f * static_cast<float>(1 + updates))
        << "a skipped step does not move the schedule: " << step;
    if (!script.overflow_at.contains(step)) ++updates;
  }
  const json d = report();
  EXPECT_EQ(d["steps"][199]["loss_scale"], expected[199]);
  EXPECT_EQ(d["options"]["dtype"], "F16");
}

TEST_F(RunProgram, EndsWhereALossScaleCannotBeLowered) {
  script.overflow_at = {0, 1, 2, 3};
  EXPECT_EQ(run({"--set", "fp16.enabled=true", "--set", "fp16.initial_scale_power=1", "--set",
                 "fp16.hysteresis=1"}),
            1);
  EXPECT_NE(err_.find("step 2: gradients overflow fp16 at the smallest loss scale"),
            std::string::npos)
      << err_;
}

TEST_F(RunProgram, TrainsAsASettingsFileSays) {
  const std::string file = folder_.write("ds.json", R"({
    "train_batch_size": 6, "gradient_accumulation_steps": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.25, "betas": [0.8, 0.99]}},
    "scheduler": {"type": "OneCycle", "params": {
      "cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 2}}})");
  ASSERT_EQ(run({"--config", file, "--batch", "2"}), 0) << err_;
  EXPECT_EQ(script.forwards, 12u);
  EXPECT_FLOAT_EQ(script.asked[0].learning_rate, 0.1f);
  EXPECT_FLOAT_EQ(script.asked[2].learning_rate, 0.5f);
  EXPECT_EQ(script.betas1, (std::vector<float>{0.8f, 0.85f, 0.8f, 0.85f}));
  const json d = report();
  EXPECT_EQ(d["options"]["batch"], 2);
  EXPECT_EQ(d["options"]["accumulation"], 3);
  EXPECT_EQ(d["options"]["weight_decay"], 0) << "DeepSpeed's, since the file has an optimizer";
  EXPECT_EQ(d["options"]["min_lr"], nullptr);

  expect_no_run({"--config", file, "--batch", "4"},
                "train_batch_size: 6 is no multiple of train_micro_batch_size_per_gpu 4");
  expect_no_run({"--config", file, "--batch", "2", "--warmup", "2"}, "OneCycle");
}

TEST_F(RunProgram, FillsInWhatAFileLeavesToTheTrainer) {
  const std::string file = folder_.write("hf.json", R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {
      "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
      "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}})");
  ASSERT_EQ(run({"--config", file, "--lr", "0.5"}), 0) << err_;
  EXPECT_FLOAT_EQ(script.asked[0].max_norm, 1.0f);
  EXPECT_FLOAT_EQ(script.asked[2].learning_rate, 0.5f);
  EXPECT_EQ(report()["options"]["dtype"], "BF16");
  EXPECT_EQ(err_.find("auto"), std::string::npos) << err_;
}

TEST_F(RunProgram, TakesTheDtypeOfTheFileAndBf16WhereNothingAsksForOne) {
  const auto dtype = [&](const std::string& text, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = more;
    if (!text.empty()) words.insert(words.end(), {"--config", folder_.write("dtype.json", text)});
    EXPECT_EQ(run(words), 0) << err_;
    return report()["options"]["dtype"];
  };
  EXPECT_EQ(dtype(R"({"gradient_clipping": 1})"), "F32");
  EXPECT_NE(err_.find("parameters are to be f32"), std::string::npos) << err_;
  EXPECT_EQ(dtype(R"({"fp16": {"enabled": false}})"), "F32");
  EXPECT_NE(out_.find("F32 weights"), std::string::npos) << out_;
  EXPECT_EQ(dtype(R"({"fp16": {"enabled": "auto"}})"), "BF16");
  EXPECT_EQ(dtype(R"({"bf16": {"enabled": "auto"}})"), "BF16");
  EXPECT_EQ(dtype(""), "BF16") << "no file";
  EXPECT_EQ(dtype("", {"--set", "bf16.enabled=false"}), "F32");
  EXPECT_EQ(dtype("", {"--set", "fp16.enabled=true"}), "F16");
}

TEST_F(RunProgram, FillsInTheRateAsItWasGivenAndNoSecondDtype) {
  const std::string scheduler =
      R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto",
         "warmup_num_steps": 2}})";
  const std::string file =
      folder_.write("auto.json", R"({"fp16": {"enabled": true}, "bf16": {"enabled": "auto"}, )" +
                                     scheduler + "}");
  ASSERT_EQ(run({"--config", file, "--lr", "0.123456789012"}), 0) << err_;
  EXPECT_EQ(report()["steps"][3]["learning_rate"], 0.123456789012);
  EXPECT_EQ(report()["options"]["dtype"], "F16");
}

TEST_F(RunProgram, ReadsSettingsThatComeThroughAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  constexpr std::string_view kText = R"({"gradient_clipping": 0.5})";
  ASSERT_EQ(::write(ends[1], kText.data(), kText.size()), static_cast<ssize_t>(kText.size()));
  ::close(ends[1]);
  EXPECT_EQ(run({"--config", "/proc/self/fd/" + std::to_string(ends[0])}), 0) << err_;
  EXPECT_FLOAT_EQ(script.asked[0].max_norm, 0.5f);
  ::close(ends[0]);
}

TEST_F(RunProgram, RefusesARateThatTheSchedulerWouldIgnoreAndABetaThatGrowsTooLarge) {
  const std::vector<std::string> warmup{"--set", "scheduler.type=WarmupLR", "--set",
                                        "scheduler.params.warmup_max_lr=0.01"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_no_run(with(warmup, {"--lr", "0.5"}), "--lr beside scheduler.type \"WarmupLR\"");
  EXPECT_EQ(run(with(warmup, {"--lr", "0.01"})), 0) << err_;
  const std::vector<std::string> cycle{"--set", "scheduler.type=OneCycle",
                                       "--set", "scheduler.params.cycle_min_lr=0.1",
                                       "--set", "scheduler.params.cycle_max_lr=0.2",
                                       "--set", "scheduler.params.cycle_first_step_size=1",
                                       "--set", "scheduler.params.decay_step_size=1",
                                       "--set", "scheduler.params.decay_mom_rate=0.2"};
  expect_no_run(cycle, "scheduler.params.decay_mom_rate raises beta1 to ");
}

TEST_F(RunProgram, AccumulatesToTheBatchOfTheSettings) {
  EXPECT_EQ(run({"--batch", "2", "--set", "train_batch_size=8"}), 0) << err_;
  EXPECT_EQ(report()["options"]["accumulation"], 4);
}

TEST_F(RunProgram, SaysWhichDefaultAFileTakes) {
  EXPECT_EQ(run({"--config", folder_.write("empty.json", "{}")}), 0) << err_;
  EXPECT_NE(err_.find("gradient_clipping is not given: 0.0 holds"), std::string::npos) << err_;
  EXPECT_EQ(run({}), 0) << err_;
  EXPECT_EQ(err_, "");
}

TEST_F(RunProgram, GivesOneDocumentOnStdoutWhateverHappens) {
  ASSERT_EQ(run({"--json", "-"}), 0) << err_;
  EXPECT_EQ(json::parse(out_)["steps"].size(), 4u);
  EXPECT_EQ(run({"--json", "-", "--text", folder_ / "none"}), 2);
  EXPECT_EQ(json::parse(out_)["error"]["code"], "kNotFound");
  EXPECT_EQ(run({"--json", "-", "--nonsense"}), 2);
  EXPECT_EQ(json::parse(out_)["error"]["exit_code"], 2);
  script.fail_at_update = script.updates + 1;
  EXPECT_EQ(run({"--json", "-"}), 1);
  EXPECT_EQ(json::parse(out_)["error"]["exit_code"], 1);
}

TEST_F(RunProgram, RefusesBeforeAnythingIsAllocated) {
  expect_refused({"--text", folder_ / "none"}, "none");
  expect_refused({"--text", folder_.write("empty", "")}, "is empty");
  expect_refused({"--text", folder_.write("short", "abc")}, "3 bytes");
  expect_refused({"--hidden", "9"}, "not divisible");
  expect_refused({"--config", folder_ / "none.json"}, "none.json");
  expect_refused({"--config", folder_.write("bad.json", "{\n  \"a\" 1}")}, "bad.json:2:");
  expect_refused({"--set", "gradient_accumulation_step=2"}, "gradient_accumulation_steps");
  expect_refused({"--set", "gradient_accumulation_steps=\"two\""}, "gradient_accumulation_steps");
  expect_refused({"--init", folder_.path()}, "model.safetensors");
  expect_refused({"--save", folder_ / "none/deeper"}, "--save");
  expect_refused({"--save", text_}, "ENOTDIR");
}

TEST_F(RunProgram, RefusesWeightsThatTheLimitOnFilesWouldCut) {
  ASSERT_EQ(run({"--save", folder_ / "saved"}), 0) << err_;
  const auto size = std::filesystem::file_size(folder_ / "saved/model.safetensors");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto limit = [&](rlim_t bytes) {
    const rlimit now{bytes, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  };
  script.made = 0;
  limit(size - 1);
  expect_refused({"--save", folder_ / "other"}, "ulimit -f) is " + std::to_string(size - 1));
  limit(size);
  EXPECT_EQ(run({"--save", folder_ / "other"}), 0) << err_;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_F(RunProgram, SaysTheSizeOfWeightsThatHaveNoRoom) {
  if (::access("/proc", W_OK) != 0) GTEST_SKIP() << "only root gets as far as asking for room";
  expect_refused({"--save", "/proc/none"}, "has 0 B free, the weights take ");
  const std::string said = err_;
  ASSERT_EQ(run({"--save", folder_ / "saved"}), 0) << err_;
  const auto size = std::filesystem::file_size(folder_ / "saved/model.safetensors");
  EXPECT_NE(said.find("take " + headrace::base::format_bytes(size) + ";"), std::string::npos)
      << said;
}

TEST_F(RunProgram, NamesAReportThatCannotBeWrittenOnceAndFirst) {
  expect_refused({"--json", folder_ / "none/r.json"}, "none/r.json': ENOENT");
  EXPECT_EQ(err_.find("cannot write"), err_.rfind("cannot write")) << err_;
}

TEST_F(RunProgram, KeepsWeightsThatAreThereUnlessToldOtherwise) {
  const std::string file = folder_.write("saved/model.safetensors", "weights of a long run");
  expect_refused({"--save", folder_ / "saved"}, "--overwrite");
  EXPECT_EQ(ScratchFolder::read(file), "weights of a long run");
  EXPECT_EQ(run({"--save", folder_ / "saved", "--overwrite"}), 0) << err_;
  EXPECT_NE(ScratchFolder::read(file), "weights of a long run");
}

TEST_F(RunProgram, KeepsWeightsThatCameDuringTheRun) {
  script.at_last_evaluation = [this] { folder_.write("saved/model.safetensors", "another's"); };
  EXPECT_EQ(run({"--save", folder_ / "saved", "--eval-batches", "1"}), 0) << err_;
  EXPECT_EQ(ScratchFolder::read(folder_ / "saved/model.safetensors"), "another's");
  EXPECT_NE(err_.find("these weights are in"), std::string::npos) << err_;
  const std::string saved = report()["options"]["saved"];
  EXPECT_EQ(run({"--init", saved, "--steps", "0"}), 0) << err_;
}

TEST_F(RunProgram, SaysThatPlainPlacesNothing) {
  EXPECT_EQ(run({"--plain", "--set", "zero_optimization.offload_optimizer.device=cpu"}), 0) << err_;
  EXPECT_NE(err_.find("--plain keeps everything in torch's memory"), std::string::npos) << err_;
  EXPECT_EQ(run({"--plain", "--set", "gradient_clipping=1"}), 0) << err_;
  EXPECT_EQ(err_, "");
}

TEST_F(RunProgram, CountsTheStepsThatWereSkipped) {
  script.skip_at_update = 2;
  EXPECT_EQ(run({}), 0) << err_;
  EXPECT_NE(out_.find("skipped         1 of "), std::string::npos) << out_;
  const json steps = report()["steps"];
  EXPECT_EQ(steps[0]["skipped"], false);
  EXPECT_EQ(steps[1]["skipped"], true);
  EXPECT_TRUE(steps[1]["gradient_norm"].is_null());
  script = {};
  EXPECT_EQ(run({}), 0) << err_;
  EXPECT_EQ(out_.find("skipped"), std::string::npos) << out_;
}

TEST_F(RunProgram, SaysThatPlainTrainsWithTorchsAdamW) {
  for (const char* setting :
       {"headrace.optimizer=lion", "headrace.moments=8bit", "headrace.non_finite=skip",
        "optimizer.type=SGD", "optimizer.params.maximize=true",
        "optimizer.params.bias_correction=false"}) {
    EXPECT_EQ(run({"--plain", "--set", setting}), 0) << err_;
    EXPECT_NE(err_.find("--plain trains with torch's AdamW"), std::string::npos) << setting << err_;
  }
  EXPECT_EQ(run({"--plain", "--set", "optimizer.type=AdamW"}), 0) << err_;
  EXPECT_EQ(err_, "");
}

TEST_F(RunProgram, NamesTheOptionForActivationsInPlaceOfTheFilesSettings) {
  const std::string ours = "--checkpointing keeps the input of each block alone";
  const std::string theirs =
      folder_.write("theirs.json", R"({"activation_checkpointing": {"number_checkpoints": 4}})");
  for (const char* mode : {"--no-progress", "--plain"}) {
    EXPECT_EQ(run({"--config", theirs, mode}), 0) << err_;
    EXPECT_NE(err_.find(ours), std::string::npos) << err_;
    EXPECT_EQ(run({"--config", theirs, mode, "--checkpointing"}), 0) << err_;
    EXPECT_EQ(err_.find(ours), std::string::npos) << err_;
  }
  EXPECT_EQ(run({"--set", "activation_checkpointing.cpu_checkpointing=false"}), 0);
  EXPECT_EQ(err_.find(ours), std::string::npos) << err_;
}

TEST_F(RunProgram, EndsWithTwoWhenThePlanIsRefused) {
  script.refuse = true;
  EXPECT_EQ(run({"--save", folder_ / "saved"}), 2);
  EXPECT_NE(err_.find("the plan does not fit"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
}

TEST_F(RunProgram, EndsAtALossThatIsNotFinite) {
  script.nan_at_forward = 3;
  EXPECT_EQ(run({"--save", folder_ / "saved"}), 1);
  EXPECT_NE(err_.find("the training loss of step 3 is not a number"), std::string::npos) << err_;
  EXPECT_EQ(script.updates, 2u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
  EXPECT_EQ(report()["error"]["code"], "kNotFinite");
}

TEST_F(RunProgram, ALossThatIsNotFiniteBeforeAnyUpdateIsNoFaultOfTheLearningRate) {
  script.nan_at_forward = 1;
  EXPECT_EQ(run({}), 1);
  EXPECT_NE(err_.find("it is the initial weights"), std::string::npos) << err_;
  EXPECT_EQ(err_.find("--lr"), std::string::npos) << err_;
}

TEST_F(RunProgram, NamesTheStepInWhichTheDriveFailed) {
  script.fail_at_update = 2;
  EXPECT_EQ(run({}), 1);
  EXPECT_NE(err_.find("1 of 4 steps done, nothing was saved"), std::string::npos) << err_;
  EXPECT_EQ(report()["steps_completed"], 1);
  EXPECT_EQ(report()["steps"][0]["loss"], 4.0);
  EXPECT_EQ(report()["error"]["code"], "kIo");
  EXPECT_NE(err_.find("step 2: swap_in 'h.0' got EIO"), std::string::npos) << err_;
}

TEST_F(RunProgram, SavesWhatInitReads) {
  ASSERT_EQ(run({"--save", folder_ / "saved"}), 0) << err_;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "saved/model.safetensors"));
  EXPECT_EQ(run({"--init", folder_ / "saved", "--steps", "0"}), 0) << err_;
  EXPECT_EQ(run({"--init", folder_ / "saved/model.safetensors", "--steps", "0"}), 0) << err_;
  script.made = 0;
  expect_refused({"--init", folder_ / "saved", "--layers", "2"}, "no tensor 'h.1.norm_1.weight'");
  expect_refused({"--init", folder_ / "saved", "--hidden", "16"}, "BF16 [256, 8]");
}

TEST_F(RunProgram, SavesCheckpointsAndContinuesFromOne) {
  using Names = std::vector<std::string>;
  const std::string saved = folder_ / "saved";
  ASSERT_EQ(run({"--save", saved, "--save-every", "2", "--steps", "7"}), 0) << err_;
  EXPECT_EQ(script.saved, (Names{"step-2", "step-4", "step-6"}));
  EXPECT_EQ(report()["checkpoints"].size(), 3u);
  EXPECT_EQ(report()["checkpoints"][2]["step"], 6);
  EXPECT_NE(err_.find("step 6 is saved in '"), std::string::npos) << err_;
  const std::vector<std::byte> state = script.state;
  script = {};
  script.loaded = state;
  ASSERT_EQ(run({"--save", saved, "--overwrite", "--save-every", "2", "--load", saved, "--steps",
                 "10", "--keep", "2"}),
            0)
      << err_;
  EXPECT_NE(err_.find("goes on after step 6, of the checkpoint in '"), std::string::npos) << err_;
  EXPECT_NE(err_.find("written with --steps 7; this run continues with --steps 10"),
            std::string::npos)
      << err_;
  EXPECT_EQ(err_.find("--seed"), std::string::npos) << err_;
  EXPECT_EQ(script.updates, 4u);
  EXPECT_EQ(script.saved, (Names{"step-8", "step-10"}));
  EXPECT_EQ(report()["resumed_from"], 6);
  Names left;
  for (const auto& entry : std::filesystem::directory_iterator(saved))
    if (entry.is_directory()) left.push_back(entry.path().filename().string());
  std::ranges::sort(left);
  EXPECT_EQ(left, (Names{"step-10", "step-8"}));
}

TEST_F(RunProgram, RefusesACheckpointThatIsInTheWay) {
  const std::string saved = folder_ / "saved";
  std::filesystem::create_directories(saved + "/step-4");
  EXPECT_EQ(run({"--save", saved, "--save-every", "2"}), 2);
  EXPECT_NE(err_.find("step-4' is there already, and this run would save step 4 too"),
            std::string::npos)
      << err_;
  EXPECT_EQ(script.updates, 0u);
  EXPECT_EQ(run({"--save", saved, "--save-every", "3"}), 0) << err_;
  EXPECT_EQ(run({"--save", saved, "--save-every", "2", "--overwrite"}), 0) << err_;
  script.loaded = std::vector<std::byte>(3);
  EXPECT_EQ(run({"--load", saved}), 2);
  EXPECT_NE(err_.find("the checkpoint was written by another program"), std::string::npos) << err_;
}

TEST_F(RunProgram, RefusesCheckpointsThatTheDiskCannotHold) {
  const std::vector<std::string> words = {
      "--hidden", "512", "--save", folder_ / "saved", "--steps", "100000000", "--save-every", "1"};
  EXPECT_EQ(run(words), 2);
  EXPECT_NE(err_.find("free; the run needs 100000000 more checkpoints at once, of 45"),
            std::string::npos)
      << err_;
  EXPECT_NE(err_.find("the run was not started. Make room, or give --keep "), std::string::npos)
      << err_;
  EXPECT_EQ(script.updates, 0u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
}

TEST_F(RunProgram, NamesTheLastCheckpointWhereTheNextOneFails) {
  script.fail_at_save = 4;
  EXPECT_EQ(run({"--save", folder_ / "saved", "--save-every", "2"}), 1);
  EXPECT_NE(err_.find("the disk is full; 4 of 4 steps done, saved: '"), std::string::npos) << err_;
  EXPECT_NE(err_.find("step-2'. Give --load "), std::string::npos) << err_;
}

std::vector<std::string> in_background(const std::string& folder, const char* every) {
  return {"--save",
          folder,
          "--save-every",
          every,
          "--save-in-background",
          "--set",
          "headrace.nvme_paths=[\"" + folder + "\"]",
          "--store",
          "s"};
}

TEST_F(RunProgram, TrainsOnWhileACheckpointIsSavedInTheBackground) {
  script.save_takes = 1;
  ASSERT_EQ(run(in_background(folder_ / "saved", "2")), 0) << err_;
  EXPECT_EQ(report()["checkpoints"].size(), 2u);
  EXPECT_EQ(report()["checkpoints"][1]["step"], 4);
  EXPECT_EQ(script.waits, 1u);  // at the end of the run
  EXPECT_LT(err_.find("step 2 is saved in '"), err_.find("step 4 is saved in '")) << err_;
  EXPECT_EQ(err_.find("waited for the save"), std::string::npos) << err_;
  EXPECT_EQ(report()["config"]["headrace"]["background_save_bytes_per_second"], 200u << 20);
}

TEST_F(RunProgram, WaitsForABackgroundSaveThatIsUnderWayWhenTheNextOneIsDue) {
  script.save_takes = 3;
  ASSERT_EQ(run(in_background(folder_ / "saved", "2")), 0) << err_;
  EXPECT_EQ(script.waits, 2u);
  EXPECT_NE(err_.find("step 4 waited for the save of step 2, "), std::string::npos) << err_;
  EXPECT_NE(err_.find("Raise --save-every or headrace.background_save"), std::string::npos) << err_;
  EXPECT_EQ(report()["checkpoints"].size(), 2u);
}

TEST_F(RunProgram, EndsWithTheErrorOfABackgroundSave) {
  script.save_takes = 1;
  script.fail_at_save = 2;
  EXPECT_EQ(run(in_background(folder_ / "saved", "1")), 1);
  EXPECT_NE(err_.find("cannot write " + (folder_ / "saved") + "/step-2.tmp/model.safetensors: EIO"),
            std::string::npos)
      << err_;
  EXPECT_NE(err_.find("3 of 4 steps done, the store 's' has the last one"), std::string::npos)
      << err_;
  EXPECT_EQ(report()["error"]["code"], "kIo");
  EXPECT_EQ(report()["checkpoints"].size(), 1u);
}

TEST_F(RunProgram, RefusesBackgroundSavesWithoutAStore) {
  expect_refused({"--save", folder_ / "saved", "--save-every", "2", "--save-in-background"},
                 "Give --store NAME");
  EXPECT_EQ(script.updates, 0u);
}

TEST_F(RunProgram, EndsWithTheSignalThatEndedIt) {
  // A process of its own, since the first signal is remembered for good.
  const auto child = [&](int number) {
    script.raise_at_forward = number;
    headrace::tools::install_signal_handlers();
    const int code = run({"--save", folder_ / "saved"});
    const std::string words = "; 1 of 4 steps done, nothing was saved. --save alone writes";
    const bool told = script.interrupts == 1 && script.updates == 1 &&
                      err_.find(words) != std::string::npos && report()["steps_completed"] == 1;
    std::exit(told && !std::filesystem::exists(folder_ / "saved") ? code : 99);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(child(SIGINT), ::testing::ExitedWithCode(130), "");
  EXPECT_EXIT(child(SIGTERM), ::testing::ExitedWithCode(143), "");
  EXPECT_EXIT(child(SIGQUIT), ::testing::ExitedWithCode(131), "");
}
}  // namespace
}  // namespace train_gpt
