// SPDX-License-Identifier: Apache-2.0
// train_gpt_test.cpp: train_gpt --device cuda from command line to report, without a GPU: torch's
// operators run on the CPU over the memory of a simulated GPU (tests/torch/simulated_gpu.hpp), and
// the library's CUDA code over the simulated runtime (tests/device/simulated_cuda.hpp).
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/computing_device.hpp"
#include "device/simulated_cuda.hpp"
#include "run.hpp"
#include "torch/simulated_gpu.hpp"
#include "train_gpt/scratch_folder.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;
namespace simulated_cuda = headrace::device::simulated_cuda;

// Torch's side of the GPU: a device of its own over the same simulated streams and memory.
void plug_in(std::uint64_t seed) {
  // Torch's streams and ours on as many hardware queues as CUDA makes by default, or without
  // sharing.
  simulated_cuda::plug_in({.seed = seed,
                           .late_microseconds_max = 20,
                           .protects = false,
                           .hardware_queues = seed % 2 == 0 ? 8u : 0u});
  headrace_test::plug_in(std::make_shared<headrace::device::DeviceWithLaunch>(
      headrace::make_cuda_device(), [](headrace::Stream stream, std::function<void()> kernel) {
        simulated_cuda::launch(stream.handle, std::move(kernel));
      }));
}

class OnGpu : public ::testing::Test {
 protected:
  json run(std::uint64_t seed, const std::vector<std::string>& more) {
    plug_in(seed);
    std::vector<std::string> words{"train_gpt",      "--no-progress",
                                   "--device",       "cuda",
                                   "--layers",       "3",
                                   "--hidden",       "64",
                                   "--heads",        "2",
                                   "--seq",          "32",
                                   "--batch",        "2",
                                   "--steps",        "4",
                                   "--eval-batches", "1",
                                   "--text",         text_,
                                   "--json",         folder_ / "report.json"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    const int code = run_program(static_cast<int>(arguments.size()), arguments.data(),
                                 {.warm_up = warm_up_torch,
                                  .device_peak = device_peak,
                                  .make_offloaded = make_offloaded,
                                  .make_plain = make_plain,
                                  .version_that_threw = torch_that_threw});
    out_ = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0) << out_;
    const json report = json::parse(ScratchFolder::read(folder_ / "report.json"));
    headrace_test::plug_in(nullptr);
    return report;
  }
  std::vector<std::string> placed(const std::string& where, std::vector<std::string> more = {}) {
    const std::string key = "zero_optimization.offload_";
    std::vector<std::string> words;
    for (const char* what : {"param", "optimizer"}) {
      words.insert(words.end(), {"--set", key + what + ".device=" + where});
      if (where == "nvme") words.insert(words.end(), {"--set", key + what + ".nvme_path=" + nvme_});
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  ScratchFolder folder_;
  std::string text_ = folder_.write("text.txt", [] {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += "abc " + std::to_string(i % 17);
    return text;
  }());
  std::string nvme_ = folder_ / "";
  std::string out_;
};

// Fails in torch as a fault of the trainer's would.
struct MismatchedShapes : Training {
  double forward(const Batch&) override {
    return at::mm(at::zeros({2, 3}), at::zeros({4, 5})).item<double>();
  }
  void backward(double) override {}
  double evaluate(const Batch&) override { return 0; }
  headrace::StepResult update(const headrace::StepOptions&) override { return {}; }
  void set_betas(float, float) override {}
  void store(const std::string&,
             const std::function<void(std::uint64_t, std::span<const std::byte>)>&) override {}
};

TEST(TrainGptInTorch, SaysWhatTorchSaidWhereAndNothingOfMemory) {
  const ScratchFolder folder;
  const std::string text = folder.write("text.txt", std::string(4000, 'x'));
  const auto fails = [](const TrainingSetup&) -> std::unique_ptr<Training> {
    return std::make_unique<MismatchedShapes>();
  };
  const std::vector<const char*> words{"train_gpt", "--no-progress", "--seq",     "16", "--hidden",
                                       "64",        "--text",        text.c_str()};
  ::testing::internal::CaptureStderr();
  const int code = run_program(static_cast<int>(words.size()), words.data(),
                               {.warm_up = warm_up_torch,
                                .device_peak = device_peak,
                                .make_offloaded = fails,
                                .make_plain = fails,
                                .version_that_threw = torch_that_threw});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("LibTorch " TORCH_VERSION " failed in the forward pass of step 1: mat1 and "
                      "mat2 shapes cannot be multiplied (2x3 and 4x5)"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("0 of 100 steps done"), std::string::npos) << said;
  for (const char* advice : {"ulimit", "memory.max"})
    EXPECT_EQ(said.find(advice), std::string::npos) << said;
}

TEST_F(OnGpu, EveryPlacementGivesTheSameHashes) {
  const json device = run(1, {});
  EXPECT_EQ(device["options"]["device"], "Simulated GPU (cuda:0)");
  EXPECT_NE(out_.find("device          Simulated GPU"), std::string::npos) << out_;
  EXPECT_LT(device["steps"][3]["loss"], device["steps"][0]["loss"]);
  EXPECT_EQ(run(2, placed("cpu"))["hash"], device["hash"]);
  EXPECT_EQ(run(3, placed("nvme"))["hash"], device["hash"]);
  EXPECT_EQ(run(4, placed("nvme", {"--checkpointing"}))["hash"], device["hash"]);
  EXPECT_EQ(run(5, placed("nvme", {"--set", "headrace.update_mode=defer"}))["hash"],
            device["hash"]);
  EXPECT_EQ(run(6, placed("nvme", {"--set", "headrace.prefetch_groups=0"}))["hash"],
            device["hash"]);
  for (const char* where : {"cpu", "nvme"}) {
    EXPECT_EQ(run(7, placed(where, {"--set", "headrace.update_on=device"}))["hash"],
              device["hash"]);
  }
}

TEST_F(OnGpu, SumsMicroBatchesAndTrainsInFp16AsWell) {
  for (const char* more : {"gradient_accumulation_steps=2", "fp16.enabled=true"}) {
    const json device = run(1, {"--set", more});
    EXPECT_EQ(run(2, placed("nvme", {"--set", more}))["hash"], device["hash"]) << more;
  }
}

TEST_F(OnGpu, PlainTrainsThereToo) {
  const json ours = run(1, placed("cpu")), plain = run(2, {"--plain"});
  EXPECT_NEAR(plain["steps"][3]["loss"].get<double>(), ours["steps"][3]["loss"].get<double>(),
              0.05);
}

TEST_F(OnGpu, KeepsToTheDevicesBudget) {
  const std::uint64_t budget = std::uint64_t{25}
                               << 20;  // one slot beside what gradients go through
  const json report =
      run(1, placed("cpu", {"--set", "headrace.device_budget_bytes=" + std::to_string(budget)}));
  EXPECT_LE(report["memory"]["device_planned_bytes"].get<std::uint64_t>(), budget);
}
}  // namespace
}  // namespace train_gpt
