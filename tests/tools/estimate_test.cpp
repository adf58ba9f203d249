// SPDX-License-Identifier: Apache-2.0
// estimate_test: `headrace estimate`: the known estimators to the digit, and the plan beside them.
#include "estimate/estimate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::estimate_test {
namespace {
// Hundredths of GiB, as the estimators print them.
long hundredths(double bytes) { return std::lround(bytes / (1 << 30) * 100); }

EstimateInputs inputs_of(const Model& model, std::uint32_t gpus, std::uint32_t nodes = 1) {
  EstimateInputs inputs;
  inputs.parameters = model.elements();
  inputs.largest_layer = model.largest_layer().elements;
  inputs.gpus_per_node = gpus;
  inputs.nodes = nodes;
  return inputs;
}

// DeepSpeed's documentation prints this table for t5-3b, one node, 8 GPUs, but for the second row,
// which its functions have had since 0.14.3.
TEST(ZeroEstimates, AreDeepSpeedsPublishedTableForT53bOnEightGpus) {
  const long expected[][2] = {{12748, 531}, {12748, 1129}, {12748, 1593}, {7171, 12},  {12748, 12},
                              {6374, 79},   {12748, 79},   {147, 610},    {12748, 610}};
  const auto estimates = zero_estimates(inputs_of(model_of("t5-3b"), 8));
  ASSERT_EQ(estimates.size(), std::size(expected));
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    EXPECT_EQ(hundredths(estimates[i].host_bytes), expected[i][0]) << i;
    EXPECT_EQ(hundredths(estimates[i].gpu_bytes), expected[i][1]) << i;
  }
}

TEST(ZeroEstimates, DivideByNodesWhereTheStateIsDivided) {
  const Model model = model_of("gpt2-xl");
  const auto one = zero_estimates(inputs_of(model, 8)),
             two = zero_estimates(inputs_of(model, 8, 2));
  EXPECT_EQ(two[3].host_bytes, one[3].host_bytes / 2);  // ZeRO-3, all on the CPU, zero_init
  EXPECT_EQ(two[0].host_bytes, one[0].host_bytes * 2);  // ZeRO-2: per node 4 bytes of each GPU
  EXPECT_EQ(two[4].host_bytes, one[4].host_bytes);      // built whole in each process
  EXPECT_LT(two[7].gpu_bytes, one[7].gpu_bytes);
}

TEST(ZeroEstimates, NameTheVersionsBetweenWhichAFormulaChanged) {
  const auto estimates = zero_estimates(inputs_of(model_of("gpt2"), 8));
  EXPECT_EQ(estimates[1].versions, "from 0.14.3");
  EXPECT_EQ(estimates[2].versions, "to 0.14.2");
  // At 8 GPUs the later one has 2 + 18 / 8 bytes per parameter, the earlier one 4 + 16 / 8.
  EXPECT_DOUBLE_EQ(estimates[2].gpu_bytes / estimates[1].gpu_bytes, 6 / 4.25);
}

// The paper's example, in GB: its table 1 and figure 1.
TEST(ZeroStages, AreThePapersFor7500MillionParametersOn64Gpus) {
  EstimateInputs inputs;
  inputs.parameters = 7'500'000'000;
  inputs.gpus_per_node = 16;
  inputs.nodes = 4;
  const char* const expected[] = {"120.0", "31.4", "16.6", "1.9"};
  const auto stages = zero_stages(inputs);
  ASSERT_EQ(stages.size(), std::size(expected));
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    EXPECT_EQ(stages[s].stage, s);
    char text[16];
    std::snprintf(text, sizeof text, "%.1f", 1e-9 * stages[s].gpu_bytes);
    EXPECT_STREQ(text, expected[s]);
  }
}

TEST(Planned, BelowStage3HasAllParametersOnEachGpu) {
  const Model model = model_of("gpt2-xl");
  const auto plans = planned(model, inputs_of(model, 8), {});
  ASSERT_EQ(plans.size(), 4u);
  const auto joined = 2 * static_cast<double>(model.elements());
  EXPECT_GT(static_cast<double>(plans[3].gpu_bytes), joined);
  EXPECT_LT(static_cast<double>(plans[3].gpu_bytes - plans[0].gpu_bytes), joined)
      << "instead of three slots";
  EXPECT_NEAR(static_cast<double>(plans[3].host_bytes), static_cast<double>(plans[0].host_bytes),
              0.01 * static_cast<double>(plans[0].host_bytes));
}

TEST(Planned, HoldsAndMovesTheBytesThatTheFormatsHave) {
  const Model model = model_of("gpt2-xl");
  const auto parameters = static_cast<double>(model.elements());
  Settings settings;
  const auto plans = planned(model, inputs_of(model, 1), settings);
  ASSERT_EQ(plans.size(), 3u);
  // Weight 2, residual 2, moments 8, gradient 2; slots come on top.
  EXPECT_NEAR(static_cast<double>(plans[0].host_bytes) / parameters, 14, 0.5);
  EXPECT_EQ(plans[0].nvme_bytes, 0u);
  EXPECT_NEAR(static_cast<double>(plans[1].nvme_bytes) / parameters, 10, 0.15);
  EXPECT_NEAR(static_cast<double>(plans[1].nvme_bytes_per_step) / parameters, 20, 0.3);
  EXPECT_NEAR(static_cast<double>(plans[2].nvme_bytes) / parameters, 12, 0.15);
  EXPECT_LT(plans[2].host_bytes, plans[1].host_bytes);
  settings.moments = MomentCodec::kBlock8;
  EXPECT_NEAR(
      static_cast<double>(planned(model, inputs_of(model, 1), settings)[1].nvme_bytes) / parameters,
      4, 0.15);
}

// Wherever the state is: weight 2, residual 2 and moments 8, twice.
TEST(Planned, HasTwoSlotsOfAllStateOnTheDrivesWithAStore) {
  const Model model = model_of("gpt2-xl");
  Settings settings;
  settings.durable_every = 1;
  settings.store = "run";
  for (const Planned& plan : planned(model, inputs_of(model, 2), settings)) {
    EXPECT_NEAR(static_cast<double>(plan.nvme_bytes) / static_cast<double>(model.elements()), 24,
                0.3)
        << plan.where;
  }
}

TEST(Planned, IsForAllRanksOfANode) {
  const Model model = model_of("gpt2-xl");
  const auto one = planned(model, inputs_of(model, 1), {})[0];
  const auto four = planned(model, inputs_of(model, 4), {})[0];
  EXPECT_GT(four.host_bytes, one.host_bytes);  // each rank has slots of its own
  EXPECT_LT(static_cast<double>(four.host_bytes), 1.2 * static_cast<double>(one.host_bytes));
  EXPECT_GT(four.gpu_bytes, one.gpu_bytes);  // gradients of a group before they are reduced
}

// 2^50 elements are 2^30 tiles: no table has them.
TEST(Planned, IsRefusedWhereARankHasMoreTilesThanItsTablesAreWorth) {
  Model model{"m", "made up", {{"h", {{"w", {std::int64_t{1} << 50}}}}}};
  EXPECT_NE(plan_refusal(model, inputs_of(model, 1), {}).find("a rank has 1073741824 tiles"),
            std::string::npos);
  EXPECT_EQ(plan_refusal(model, inputs_of(model, 1024, 1000), {}), "");
  const Model known = model_of("llama-3.1-405b");
  EXPECT_EQ(plan_refusal(known, inputs_of(known, 1), {}), "") << "a model that there is";
}

class EstimateProgram : public ::testing::Test {
 protected:
  static Ran run(const std::string& words) { return run_headrace("estimate " + words); }
  testing::TemporaryDirectory folder_;
};

TEST_F(EstimateProgram, PrintsTheTableAndThePlan) {
  const Ran ran = run("t5-3b --gpus 8");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* part : {"2,851,598,336 parameters", "71.71      0.12  18 P / N f | 4 L",
                           "all in host memory", "parameters and state on NVMe", "zero_init=0"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
}

TEST_F(EstimateProgram, SaysThatAStoreTakesTheDrivesBytes) {
  const Ran ran =
      run("gpt2 --set headrace.durable=step --set headrace.store=1 --set "
          "zero_optimization.offload_optimizer.device=nvme --set "
          "zero_optimization.offload_optimizer.nvme_path=" +
          folder_.string());
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("with a store"), std::string::npos) << ran.out;
  EXPECT_EQ(run("gpt2").out.find("with a store"), std::string::npos);
}

TEST_F(EstimateProgram, CountsGiveTheEstimatorsAloneAndSayWhy) {
  const Ran ran = run("--parameters 2.851B --largest-layer 32M --gpus 8");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("2,851,000,000 parameters; the largest layer has 32,000,000\n"),
            std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("Name a model instead of --parameters"), std::string::npos) << ran.out;
  const Ran alone = run("--parameters 7.5B --nodes 8 --gpus 8");
  EXPECT_EQ(alone.exit_code, 0) << alone.out;
  EXPECT_NE(alone.out.find(" 31.4  4 P + 12 P / (G N)"), std::string::npos) << alone.out;
  EXPECT_NE(alone.out.find("Give --largest-layer"), std::string::npos) << alone.out;
}

TEST_F(EstimateProgram, ReportsAllOfItAsJson) {
  const std::string path = folder_.string() + "/estimate.json";
  const Ran ran = run("gpt2 --nodes 2 --gpus 4 --set headrace.moments=bf16 --json " + path);
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("adamw, bf16 moments, split masters"), std::string::npos) << ran.out;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["program"], "headrace estimate");
  EXPECT_EQ(json["parameters"], 124'439'808);
  EXPECT_EQ(json["deepspeed"].size(), 9u);
  EXPECT_EQ(json["zero_stages"].size(), 4u);
  EXPECT_EQ(json["headrace"].size(), 4u);
  std::uint64_t host = 0;
  for (const auto& row : json["headrace"][0]["rows_of_one_rank"]) {
    if (row["tier"] == "host") host += row["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(json["headrace"][0]["host_bytes_per_node"], 4 * host);
}

TEST_F(EstimateProgram, RefusesWhatItCannotUseWithTheOneChangeThatHelps) {
  const auto refused = [&](const std::string& words, const std::string& part) {
    expect_refused(run(words), words, part);
  };
  refused("", "MODEL is missing");
  refused("gpt3", "did you mean gpt2?");
  refused("gpt2 --parameters 1M", "Give one of both");
  refused("--largest-layer 1M", "--largest-layer without --parameters");
  refused("--parameters 1M --largest-layer 2M", "larger than --parameters");
  refused("--parameters 0 --largest-layer 1", "--parameters");
  refused("--parameters 1Z --largest-layer 1", "--parameters");
  refused("gpt2 --gpus 0", "--gpus");
  refused("gpt2 --buffer-factor nan", "--buffer-factor");
  refused("gpt2 --set headrace.moments=4bit", "headrace.moments");
  refused(folder_.string(), "neither *.safetensors nor config.json");
}

TEST_F(EstimateProgram, FollowsTheBatchAndTheDtypeOfTheSettings) {
  const std::string sizes =
      "--set train_batch_size=8 --set train_micro_batch_size_per_gpu=8 --set fp16.enabled=true ";
  const Ran ran = run(sizes + "gpt2");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("fp16 weights, f32 masters"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("8589934592"), std::string::npos) << ran.out;
  expect_refused(run(sizes + "gpt2 --gpus 4"), sizes, "train_batch_size 8 is not");
}
}  // namespace
}  // namespace headrace::tools::estimate_test
