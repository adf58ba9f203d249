// SPDX-License-Identifier: Apache-2.0
// The built train_gpt: equal results wherever the bytes live, save and init, refusals, signals.
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include "program.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;

constexpr const char* kOffloadOptimizer = "zero_optimization.offload_optimizer.device=";
constexpr const char* kOffloadParameters = "zero_optimization.offload_param.device=";

std::string sample_text() {
  constexpr const char* kWords[] = {"def ",  "return ", "self.",   "value", " = ",
                                    "(x)\n", "    ",    "import ", "None",  "for i in ",
                                    "range", "# note ", "if ",     ":\n"};
  std::mt19937 random(17);
  std::string text;
  while (text.size() < 60'000) text += kWords[random() % std::size(kWords)];
  return text;
}

const std::vector<std::string> kSeveralTiles{"--hidden", "128", "--set",
                                             "headrace.tile_elements=65536"};

class TrainGpt : public ::testing::Test {
 protected:
  TrainGpt() {
    text_ = folder_.write("text.txt", sample_text());
    std::filesystem::create_directory(drive());
  }

  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all{TRAIN_GPT_PROGRAM,
                                 "--layers",
                                 "3",
                                 "--hidden",
                                 "64",
                                 "--heads",
                                 "2",
                                 "--seq",
                                 "32",
                                 "--batch",
                                 "2",
                                 "--steps",
                                 "4",
                                 "--eval-batches",
                                 "1",
                                 "--threads",
                                 "1",
                                 "--text",
                                 text_,
                                 "--no-progress",
                                 "--set",
                                 "headrace.allow_memory_backed=true"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome run(const std::vector<std::string>& more) const {
    return Program(folder_, words(more)).finish();
  }
  json report(std::vector<std::string> more) const {
    more.insert(more.end(), {"--json", "-"});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  std::vector<std::string> on_nvme(bool parameters) const {
    std::vector<std::string> all{"--set", std::string(kOffloadOptimizer) + "nvme", "--set",
                                 "zero_optimization.offload_optimizer.nvme_path=" + drive()};
    if (parameters) {
      all.insert(all.end(), {"--set", "zero_optimization.stage=3", "--set",
                             std::string(kOffloadParameters) + "nvme", "--set",
                             "zero_optimization.offload_param.nvme_path=" + drive()});
    }
    return all;
  }
  std::vector<std::string> in_a_store(const std::string& name) const {
    return join(on_nvme(true), {"--set", "headrace.allow_memory_backed=false", "--store", name});
  }
  static std::vector<std::string> join(std::vector<std::string> a,
                                       const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  std::string drive() const { return nvme_ / "drive"; }
  void expect_drive_is_empty() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(drive())) {
      EXPECT_FALSE(entry.is_regular_file()) << entry.path() << " was left behind";
    }
  }

  // A budget under which all parameters stay in memory and about half of the optimizer state.
  std::vector<std::string> mixed(const std::vector<std::string>& how) const {
    const auto few_slots = join(on_nvme(true), {"--set", "headrace.update_slots=1"});
    const json all = report(join(how, few_slots));
    const std::uint64_t budget = all["plan_totals"]["host_bytes"].get<std::uint64_t>() +
                                 6 * all["parameters"].get<std::uint64_t>();
    return join(few_slots, {"--set", "headrace.host_budget_bytes=" + std::to_string(budget)});
  }

  void expect_equal_results(const json& a, const json& b) const {
    EXPECT_EQ(a["hash"], b["hash"]);
    EXPECT_EQ(a["eval_loss"], b["eval_loss"]);
    for (std::size_t step = 0; step < 4; ++step) {
      EXPECT_EQ(a["steps"][step]["loss"], b["steps"][step]["loss"]);
    }
  }

  // The same training in every placement gives the same bits; gives the report of the first.
  json expect_equal_everywhere(std::vector<std::string> how) const {
    how = join(how, kSeveralTiles);
    const json memory = report(how);
    EXPECT_EQ(memory["steps"][3]["nvme_read_bytes"], 0);
    const std::vector<std::vector<std::string>> placements{
        {"--set", std::string(kOffloadOptimizer) + "cpu", "--set", "headrace.update_threads=2"},
        on_nvme(false),
        join(on_nvme(true), {"--set", "headrace.update_threads=2"}),
        join(on_nvme(true),
             {"--set", "headrace.io_queue=threads", "--set", "headrace.update_threads=1"}),
        join(on_nvme(true),
             {"--set", "headrace.tile_elements=131072", "--set", "headrace.update_slots=1"})};
    for (const auto& placement : placements) {
      const json other = report(join(how, placement));
      SCOPED_TRACE(other["config"].dump());
      expect_equal_results(other, memory);
      expect_drive_is_empty();
    }
    const json half = report(join(how, mixed(how)));
    EXPECT_GT(half["plan_totals"]["resident_share_of_state"], 0.1);
    EXPECT_LT(half["plan_totals"]["resident_share_of_state"], 0.9);
    expect_equal_results(half, memory);
    return memory;
  }

  ScratchFolder folder_, nvme_;
  std::string text_;
};

// Plain DeepSpeed files, unchanged but for the path.
// Processes that keep every CPU busy while this lives.
class BusyNeighbours {
 public:
  explicit BusyNeighbours(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const pid_t process = ::fork();
      if (process == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile std::uint64_t turns = 0;;) turns = turns + 1;
      }
      processes_.push_back(process);
    }
  }
  ~BusyNeighbours() {
    for (const pid_t process : processes_) ::kill(process, SIGKILL);
    for (const pid_t process : processes_) ::waitpid(process, nullptr, 0);
  }
  BusyNeighbours(const BusyNeighbours&) = delete;
  BusyNeighbours& operator=(const BusyNeighbours&) = delete;

 private:
  std::vector<pid_t> processes_;
};

TEST_F(TrainGpt, ShortensOpenMpsWaitsOnSharedCpusAndComputesTheSame) {
  std::uint64_t ran = 0;
  if (!(std::ifstream("/proc/self/schedstat") >> ran) || ran == 0)
    GTEST_SKIP() << "this kernel does not count what threads wait for CPUs";
  const unsigned cpus = std::max(2u, std::thread::hardware_concurrency());
  const std::vector<std::string> model{"--hidden", "128", "--threads", "2", "--steps", "120"};
  const auto short_waits = [](const json& report) {
    return report.at("/lanes/trainer/short_waits_seconds"_json_pointer).get<double>();
  };
  const BusyNeighbours neighbours(cpus);
  const json shared = report(model);
  EXPECT_GT(short_waits(shared), 0);
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  const json left_alone = report(model);
  ::unsetenv("OMP_WAIT_POLICY");
  EXPECT_EQ(short_waits(left_alone), 0);
  ::setenv("OMP_STACKSIZE", "16M", 1);
  EXPECT_EQ(short_waits(report(model)), 0);
  ::unsetenv("OMP_STACKSIZE");
  EXPECT_EQ(shared["hash"], left_alone["hash"]);
}

TEST_F(TrainGpt, RunsDeepSpeedsOwnFiles) {
  const std::string nvme =
      R"("device": "nvme", "nvme_path": ")" + drive() + R"(", "pin_memory": true)";
  const std::string adam =
      R"("optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.999],
    "eps": 1e-8, "weight_decay": 0.01}},
    "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0)";
  const auto write = [&](const char* name, const std::string& body) {
    return folder_.write(name, "{" + adam + ", " + body + "}");
  };
  const json zero3 =
      report({"--config", write("zero3.json",
                                R"("bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "sub_group_size": 1e8, "stage3_max_live_parameters": 1e9,
      "offload_optimizer": {)" + nvme +
                                    R"(, "buffer_count": 4}, "offload_param": {)" + nvme +
                                    R"(, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}},
    "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": false})")});
  EXPECT_GT(zero3["steps"][3]["nvme_written_bytes"], 0);
  const json cpu = report({"--config", write("cpu.json", R"("bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "contiguous_gradients": true, "overlap_comm": true})")});
  EXPECT_EQ(cpu["steps"][3]["nvme_written_bytes"], 0);
  const json plain = report({"--config", write("bf16.json", R"("bf16": {"enabled": true})")});
  expect_equal_results(cpu, zero3);
  expect_equal_results(plain, zero3);
  EXPECT_EQ(plain["options"]["lr"], 3e-3);
  for (const json& step : plain["steps"])
    EXPECT_FLOAT_EQ(step["learning_rate"].get<float>(), 3e-3f) << "no scheduler: it stays";

  const json half = report({"--steps", "16", "--config", write("fp16.json", R"(
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 24, "hysteresis": 1},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})")});
  EXPECT_EQ(half["options"]["dtype"], "F16");
  const json& steps = half["steps"];
  EXPECT_TRUE(steps[0]["skipped"]) << "2^24 overflows fp16";
  EXPECT_EQ(steps[1]["loss_scale"].get<double>(), std::ldexp(1, 23));
  EXPECT_FALSE(steps[15]["skipped"]);
  EXPECT_LT(steps[15]["loss"], steps[0]["loss"]);
}

TEST_F(TrainGpt, GivesEqualBitsWhereverTheBytesLive) { expect_equal_everywhere({}); }

// DeepSpeed trains a file without bf16 and fp16 in f32.
TEST_F(TrainGpt, TrainsInF32WhereTheFileEnablesNeither16BitDtype) {
  const std::string file = folder_.write("f32.json", R"({"fp16": {"enabled": false},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}},
    "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0})");
  const std::vector<std::string> how{"--config", file};
  const json f32 = report(how);
  EXPECT_EQ(f32["options"]["dtype"], "F32");
  EXPECT_EQ(f32["options"]["products_in"], "f32");
  expect_equal_results(report(join(how, on_nvme(true))), f32);
  const json torch = report({"--config", file, "--plain"});
  EXPECT_EQ(torch["options"]["dtype"], "F32");
  const json bf16 = report({"--config", file, "--set", "bf16.enabled=true"});
  for (std::size_t step = 0; step < 4; ++step) {
    const double loss = f32["steps"][step]["loss"];
    EXPECT_NEAR(loss, torch["steps"][step]["loss"].get<double>(), 1e-5 * loss) << step;
  }
  EXPECT_NE(f32["steps"][3]["loss"], bf16["steps"][3]["loss"]);
}

TEST_F(TrainGpt, GivesEqualBitsWithAccumulationAndClippingThatBites) {
  expect_equal_everywhere({"--accumulation", "4", "--set", "gradient_clipping=0.1"});
}

TEST_F(TrainGpt, GivesEqualBitsWithCheckpointingAndWithout) {
  const std::vector<std::string> how{"--accumulation", "2", "--set", "gradient_clipping=0.1"};
  const json with = expect_equal_everywhere(join(how, {"--checkpointing"}));
  const json without = report(join(how, kSeveralTiles));
  expect_equal_results(with, without);
  EXPECT_EQ(with["options"]["checkpointing"], true);
  EXPECT_EQ(without["options"]["checkpointing"], false);
}

// No gradient arrives twice, so none is kept in f32 for that; and the second run needs no bytes
// that the backward pass behind it would not have brought.
TEST_F(TrainGpt, PlansAndMovesTheSameBytesWithCheckpointing) {
  // No prefetches, which would be counted or not by how far they are at the end of a step.
  const auto how = join(on_nvme(true), {"--set", "headrace.prefetch_groups=0"});
  const json with = report(join(how, {"--checkpointing"})), without = report(how);
  EXPECT_EQ(with["hash"], without["hash"]);
  EXPECT_EQ(with["plan"], without["plan"]);
  for (const char* lane : {"nvme_read", "nvme_write"})
    EXPECT_EQ(with["lanes"][lane]["bytes"], without["lanes"][lane]["bytes"]) << lane;
}

TEST_F(TrainGpt, GivesEqualLossesWithCheckpointingByTorchAlone) {
  const json with = report({"--plain", "--accumulation", "2", "--checkpointing"});
  const json without = report({"--plain", "--accumulation", "2"});
  EXPECT_EQ(with["eval_loss"], without["eval_loss"]);
  for (std::size_t step = 0; step < 4; ++step) {
    for (const char* value : {"loss", "gradient_norm"})
      EXPECT_EQ(with["steps"][step][value], without["steps"][step][value]) << value;
  }
}

// Eight blocks whose activations are some 8 MB each, their inputs half of one.
TEST_F(TrainGpt, KeepsTheActivationsOfFewerBlocksWithCheckpointing) {
  const std::vector<std::string> deep{"--layers", "8", "--hidden", "128", "--seq",          "256",
                                      "--batch",  "8", "--steps",  "1",   "--eval-batches", "0"};
  const auto above = [](const json& d) {
    return d["memory"]["peak_rss_bytes"].get<double>() -
           d["memory"]["baseline_rss_bytes"].get<double>();
  };
  const json plain = report(join(deep, {"--plain"}));
  const json plain_with = report(join(deep, {"--plain", "--checkpointing"}));
  const double all = plain["memory"]["activations_bytes"];
  EXPECT_LT(plain_with["memory"]["activations_bytes"].get<double>(), all / 2);
  const json ours = report(join(deep, on_nvme(true)));
  const json ours_with = report(join(join(deep, on_nvme(true)), {"--checkpointing"}));
  // What is kept for the next tensors of that size is a part of the peak in both.
  EXPECT_LT(above(ours_with), above(ours) - all / 3);
}

TEST_F(TrainGpt, GivesEqualBitsWithAnF32Master) {
  const std::vector<std::string> f32{"--set", "headrace.master=f32"};
  EXPECT_EQ(report(f32)["hash"], report(join(f32, on_nvme(true)))["hash"]);
}

TEST_F(TrainGpt, GivesSgdWithMomentumAMomentum) {
  const json plain = report({"--set", "headrace.optimizer=sgd"});
  const json with = report({"--set", "headrace.optimizer=sgd_momentum"});
  EXPECT_EQ(plain["steps"][1]["loss"], with["steps"][1]["loss"]) << "m = g at first";
  EXPECT_NE(plain["hash"]["parameters"], with["hash"]["parameters"]);
}

TEST_F(TrainGpt, CountsTheBytesOfStateOnNvme) {
  // Blocks of a million parameters, so that rounding shards up to whole blocks hardly shows.
  // All of a step within it: where updates are deferred, some of one's is read in the step before.
  const json d =
      report(join(on_nvme(false), {"--layers", "4", "--hidden", "256", "--heads", "4", "--steps",
                                   "3", "--set", "headrace.update_mode=barrier"}));
  const double parameters = d["parameters"];
  EXPECT_NEAR(d["steps"][1]["nvme_read_bytes"].get<double>() / parameters, 10, 0.1);
  EXPECT_NEAR(d["steps"][1]["nvme_written_bytes"].get<double>() / parameters, 10, 0.1);
}

TEST_F(TrainGpt, FollowsTorchsOwnTrainingClosely) {
  const json ours = report({});
  const json plain = report({"--plain"});
  EXPECT_EQ(ours["steps"][0]["loss"], plain["steps"][0]["loss"]) << "the same initial weights";
  for (std::size_t step = 1; step < 4; ++step) {
    EXPECT_NEAR(ours["steps"][step]["loss"].get<double>(),
                plain["steps"][step]["loss"].get<double>(), 0.01);
  }
  EXPECT_GT(plain["memory"]["activations_bytes"], 0);
}

// docs/swap_file.md computes the hash of parameters from such a file.
TEST_F(TrainGpt, SavesTheWeightsThatItsHashIsOf) {
  const json saved = report(join(on_nvme(true), {"--save", folder_ / "saved"}));
  const json again = report({"--save", folder_ / "again"});
  EXPECT_EQ(again["hash"]["parameters"], saved["hash"]["parameters"]);
  const std::string file = ScratchFolder::read(folder_ / "saved/model.safetensors");
  EXPECT_EQ(file, ScratchFolder::read(folder_ / "again/model.safetensors"));
  EXPECT_EQ(file.size() % 4096, 2 * saved["parameters"].get<std::uint64_t>() % 4096);
  EXPECT_NE(file.substr(0, 4096).find(R"("embed.tokens.weight":{"dtype":"BF16")"),
            std::string::npos);
}

TEST_F(TrainGpt, StartsFromWhatItSaved) {
  const json saved = report(join(on_nvme(true), {"--save", folder_ / "saved"}));
  const json read = report({"--init", folder_ / "saved", "--steps", "0"});
  EXPECT_EQ(read["hash"]["parameters"], saved["hash"]["parameters"]);
  EXPECT_EQ(read["eval_loss"], saved["eval_loss"]);
  std::filesystem::resize_file(folder_ / "saved/model.safetensors", 5000);
  const Outcome damaged = run({"--init", folder_ / "saved", "--steps", "0"});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_NE(damaged.err.find("not a sound safetensors file"), std::string::npos) << damaged.err;
}

// In another place, from the latest checkpoint and from an earlier one.
TEST_F(TrainGpt, ContinuesFromACheckpointToTheBitsOfTheRunThatWasNotInterrupted) {
  const std::string saved = folder_ / "saved";
  const json whole = report({});
  const json first = report(join(on_nvme(true), {"--save", saved, "--save-every", "1"}));
  EXPECT_EQ(first["hash"], whole["hash"]);
  EXPECT_EQ(first["checkpoints"].size(), 4u);
  for (const std::string& from : std::vector<std::string>{saved + "/step-3", saved + "/step-1"}) {
    const json rest = report({"--load", from});
    EXPECT_EQ(rest["hash"], whole["hash"]) << from;
    EXPECT_EQ(rest["eval_loss"], whole["eval_loss"]) << from;
    EXPECT_EQ(rest["steps"].back()["loss"], whole["steps"].back()["loss"]) << from;
  }
  std::filesystem::remove_all(saved + "/step-4");
  const Outcome torn = run({"--load", saved});
  EXPECT_EQ(torn.exit_code, 2) << torn.err;
  EXPECT_NE(torn.err.find("step-4/manifest.json is not there"), std::string::npos) << torn.err;
}

TEST_F(TrainGpt, ContinuesFromACheckpointThatWasSavedInTheBackground) {
  const std::string saved = folder_ / "saved";
  const json whole = report({});
  const json first = report(join(in_a_store("beside"), {"--save", saved, "--save-every", "1",
                                                        "--save-in-background", "--keep", "3"}));
  EXPECT_EQ(first["hash"], whole["hash"]);
  EXPECT_EQ(first["checkpoints"].size(), 4u);
  EXPECT_FALSE(std::filesystem::exists(saved + "/step-1"));
  for (const std::string& from : std::vector<std::string>{saved, saved + "/step-2"})
    EXPECT_EQ(report({"--load", from})["hash"], whole["hash"]) << from;
}

TEST_F(TrainGpt, ContinuesFromAStoreWhoseNameIsANumber) {
  const auto stored = in_a_store("123");
  const json whole = report({});
  EXPECT_EQ(report(stored)["hash"], whole["hash"]);
  EXPECT_EQ(report(stored)["hash"], whole["hash"]);
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(drive()))
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  EXPECT_NE(std::ranges::find(folders, "store-123"), folders.end());
}

TEST_F(TrainGpt, WritesATraceOfItsStepsThatChangesNoBit) {
  const std::string path = folder_ / "trace.json";
  const json with = report(join(on_nvme(true), {"--trace", path}));
  EXPECT_EQ(with["hash"], report(on_nvme(true))["hash"]);
  std::set<std::string> names;
  double read = 0;
  for (const json& event : json::parse(ScratchFolder::read(path))) {
    if (event["ph"] != "X") continue;
    names.insert(event["name"].get<std::string>());
    if (event["cat"] == "NVMe read" && event["args"]["step"] == 4)
      read += event["args"]["bytes"].get<double>();
  }
  for (const char* name : {"forward", "backward", "gather h.0", "step", "write h.1", "update head"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_GT(read, 0);
  std::ofstream(folder_ / "mine.json") << "[1]";
  for (const std::string& target : {folder_ / "mine.json", std::string("-")}) {
    const Outcome refused = run({"--trace", target});
    EXPECT_EQ(refused.exit_code, 2) << target;
    EXPECT_NE(refused.err.find("--trace"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(ScratchFolder::read(folder_ / "mine.json"), "[1]");
}

TEST_F(TrainGpt, EndsAtALossThatIsNotFiniteAndWritesNothing) {
  const Outcome outcome = run(join(on_nvme(true), {"--lr", "1e30", "--warmup", "0", "--steps", "20",
                                                   "--save", folder_ / "saved"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("step "), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
  expect_drive_is_empty();
}

TEST_F(TrainGpt, RefusesWeightsThatAreNotFiniteAndNotTheLearningRate) {
  ASSERT_EQ(run({"--steps", "0", "--save", folder_ / "saved"}).exit_code, 0);
  const std::string file = folder_ / "saved/model.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-2, std::ios::end)
      .write("\xc0\x7f", 2);
  const Outcome outcome = run(join(on_nvme(true), {"--init", folder_ / "saved"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("has values that are not finite, element "), std::string::npos)
      << outcome.err;
  EXPECT_EQ(outcome.err.find("--lr"), std::string::npos) << outcome.err;
  expect_drive_is_empty();
}

TEST_F(TrainGpt, RefusesWithCauseAndFixAndLeavesNothing) {
  const std::string config =
      folder_.write("bad.json", "{\n  \"gradient_clipping\": 1,\n  \"zero\" 2\n}\n");
  const struct {
    std::vector<std::string> words;
    const char* says;
  } cases[] = {
      {{"--set", "headrace.host_budget_bytes=1MiB"}, "smallest budget that would do"},
      {{"--set", "zero_optimization.offload_optimizer.nvme_path=" + nvme_.path() + "/none"},
       "ENOENT"},
      {{"--set", "zero_optimization.offload_optimizer.nvme_path=" + text_}, text_.c_str()},
      {{"--config", config}, "bad.json:3:"},
      {{"--set", "gradient_cliping=1"}, "gradient_clipping"},
      {{"--set", "gradient_clipping=\"much\""}, "gradient_clipping"},
      {{"--text", folder_ / "none"}, "--text"},
      {{"--seq", "100000"}, "--seq"},
      {{"--heads", "3"}, "not divisible"}};
  for (const auto& refused : cases) {
    const Outcome outcome = run(join(on_nvme(false), refused.words));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(refused.says), std::string::npos)
        << refused.says << " in: " << outcome.err;
    EXPECT_EQ(outcome.out, "");
    expect_drive_is_empty();
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need it themselves
TEST_F(TrainGpt, EndsWithCauseAndConsequenceWhenTorchGetsNoMemory) {
  // 4 GiB of activations at once, in an address space of 3.
  auto limited = words(join(on_nvme(true), {"--batch", "65536", "--seq", "512"}));
  limited.insert(limited.begin(), {"/bin/sh", "-c", "ulimit -v 3145728; exec \"$@\"", "sh"});
  const Outcome outcome = Program(folder_, limited).finish();
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  for (const char* word : {"the system gives no more memory", "ulimit -v", "0 of 4 steps done",
                           "nothing was saved", "the swap files are gone"}) {
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in: " << outcome.err;
  }
  EXPECT_EQ(outcome.err.find("frame #"), std::string::npos) << "a stack is no message";
  expect_drive_is_empty();
}
#endif

TEST_F(TrainGpt, CleansUpAfterASignal) {
  for (const int number : {SIGINT, SIGTERM, SIGQUIT}) {
    auto endless = words(join(on_nvme(true), {"--steps", "1000000", "--save", folder_ / "saved"}));
    if (number == SIGTERM) endless.push_back("--checkpointing");
    std::erase(endless, "--no-progress");
    Program program(folder_, endless);
    ASSERT_TRUE(program.wait_for("step 1/"));
    program.signal(number);
    if (number != SIGQUIT) program.signal(number);  // whose second one ends it at once
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.exit_code, 128 + number) << outcome.err;
    EXPECT_NE(outcome.err.find("of 1000000 steps done, nothing was saved, the swap files are gone"),
              std::string::npos)
        << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
    expect_drive_is_empty();
  }
}

// At this rate, one is under way at all times.
TEST_F(TrainGpt, GivesABackgroundSaveUpAtASignalAndContinues) {
  const std::string saved = folder_ / "saved";
  auto endless =
      words(join(in_a_store("given-up"), {"--steps", "1000000", "--save", saved, "--save-every",
                                          "20", "--keep", "2", "--save-in-background", "--set",
                                          "headrace.background_save_bytes_per_second=16KiB"}));
  std::erase(endless, "--no-progress");
  for (const char* said : {"step 20 is saved in", "goes on after step "}) {
    Program program(folder_, endless);
    ASSERT_TRUE(program.wait_for(said));
    program.signal(SIGTERM);
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.err;
    EXPECT_NE(outcome.err.find("the store 'given-up' has the last one"), std::string::npos)
        << outcome.err;
    for (const auto& entry : std::filesystem::directory_iterator(saved))
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

TEST_F(TrainGpt, CleansUpAfterASignalWhileItCreates) {
  auto large = words(join(on_nvme(true), {"--layers", "12", "--hidden", "768", "--heads", "12"}));
  std::erase(large, "--no-progress");
  Program program(folder_, large);
  ASSERT_TRUE(program.wait_for("creating the model"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGTERM);
  EXPECT_EQ(program.finish().exit_code, 128 + SIGTERM);
  expect_drive_is_empty();
}
}  // namespace
}  // namespace train_gpt
