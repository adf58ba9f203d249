// SPDX-License-Identifier: Apache-2.0
// The whole program with a model of this test's own: what is refused, what is reported, what is
// left behind.
#include "run.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "process.hpp"
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
  int raise_at_forward = 0;
  bool refuse = false;
  std::uint64_t forwards = 0, backwards = 0, updates = 0, evaluations = 0, closes = 0, made = 0,
                interrupts = 0;
  std::vector<headrace::StepOptions> asked;
  std::function<void()> at_last_evaluation = [] {};
};
Script script;

class Fake : public Training {
 public:
  double forward(const Batch&) override {
    ++script.forwards;
    if (script.raise_at_forward > 0 && script.forwards == 2) ::raise(script.raise_at_forward);
    check_signal();
    if (script.forwards == script.nan_at_forward) return NAN;
    return 4.0 / static_cast<double>(script.forwards);
  }
  void backward() override { ++script.backwards; }
  double evaluate(const Batch&) override {
    script.at_last_evaluation();
    return static_cast<double>(++script.evaluations);
  }
  headrace::StepResult update(const headrace::StepOptions& options) override {
    script.asked.push_back(options);
    if (++script.updates == script.fail_at_update) {
      throw headrace::Error(headrace::Code::kIo, "swap_in 'h.0' got EIO", EIO);
    }
    if (script.updates == script.skip_at_update)
      return {.step = script.updates - 1, .gradient_norm = INFINITY, .skipped = true};
    return {.step = script.updates, .gradient_norm = 0.5};
  }
  std::string hash_parameters() override { return "p"; }
  std::string hash_optimizer_state() override { return "o"; }
  void store(const std::string& name,
             const std::function<void(std::span<const std::byte>)>& sink) override {
    for (const NamedShape& p : gpt_parameters(shape)) {
      if (p.name == name) sink(std::vector<std::byte>(2 * p.elements(), std::byte{7}));
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
                    {[](std::uint32_t) { return TorchFacts{}; }, make_fake, make_fake});
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
  EXPECT_NE(said.find("take " + format_bytes(static_cast<double>(size)) + ";"), std::string::npos)
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
  for (const char* setting : {"headrace.optimizer=lion", "headrace.moments=8bit",
                              "headrace.non_finite=skip", "optimizer.type=SGD"}) {
    EXPECT_EQ(run({"--plain", "--set", setting}), 0) << err_;
    EXPECT_NE(err_.find("--plain trains with torch's AdamW"), std::string::npos) << setting << err_;
  }
  EXPECT_EQ(run({"--plain", "--set", "optimizer.type=AdamW"}), 0) << err_;
  EXPECT_EQ(err_, "");
}

TEST_F(RunProgram, SaysWhatItTrainsWithInPlaceOfTheFiles) {
  const std::string ours =
      "--lr 0.001, --min-lr 0.0001, --warmup 1, --batch 2, --weight-decay 0.1, betas 0.9 0.95, "
      "eps 1e-08, momentum 0.9";
  for (const char* file :
       {R"({"optimizer": {"params": {"lr": 0.1}}})", R"({"train_batch_size": 32})",
        R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}})",
        R"({"scheduler": {"type": "WarmupLR"}})"}) {
    EXPECT_EQ(run({"--config", folder_.write("theirs.json", file)}), 0) << err_;
    EXPECT_NE(err_.find(ours), std::string::npos) << file << err_;
  }
  EXPECT_EQ(run({"--set", "gradient_clipping=1"}), 0);
  EXPECT_EQ(err_.find(ours), std::string::npos) << err_;
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
  EXPECT_NE(err_.find("not a number at step 3"), std::string::npos) << err_;
  EXPECT_EQ(script.updates, 2u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
  EXPECT_EQ(report()["error"]["code"], "kNotFinite");
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

TEST_F(RunProgram, EndsWithTheSignalThatEndedIt) {
  // A process of its own, since the first signal is remembered for good.
  const auto child = [&](int number) {
    script.raise_at_forward = number;
    install_signal_handlers();
    const int code = run({"--save", folder_ / "saved"});
    const std::string words = "; 1 of 4 steps done, nothing was saved. --save writes at the end";
    const bool told = script.interrupts == 1 && script.updates == 1 &&
                      err_.find(words) != std::string::npos && report()["steps_completed"] == 1;
    std::exit(told && !std::filesystem::exists(folder_ / "saved") ? code : 99);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(child(SIGINT), ::testing::ExitedWithCode(130), "");
  EXPECT_EXIT(child(SIGTERM), ::testing::ExitedWithCode(143), "");
}
}  // namespace
}  // namespace train_gpt
