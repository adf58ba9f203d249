// SPDX-License-Identifier: Apache-2.0
// A model of 300 million parameters under a budget of 1 GiB: memory against the plan, bytes against
// the kernel's count.
#include "program.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;

class LargeModel : public ::testing::Test {
 protected:
  json report(const std::vector<std::string>& more) const {
    std::vector<std::string> words{TRAIN_GPT_PROGRAM,
                                   "--layers",
                                   "24",
                                   "--hidden",
                                   "1024",
                                   "--heads",
                                   "16",
                                   "--seq",
                                   "64",
                                   "--batch",
                                   "1",
                                   "--lr",
                                   "1e-4",
                                   "--no-progress",
                                   "--json",
                                   "-",
                                   "--set",
                                   "gradient_clipping=1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = Program(folder_, words).finish();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }
  ScratchFolder folder_;
};

TEST_F(LargeModel, StaysWithinItsPlanAndOneGibibyte) {
  const std::string drive = TRAIN_GPT_SCRATCH "/memory_test_drive";
  std::filesystem::create_directories(drive);
  const std::string saved = TRAIN_GPT_SCRATCH "/memory_test_saved";
  std::filesystem::remove_all(saved);  // of a run that was killed
  const json d = report({"--steps", "5", "--eval-batches", "1", "--save", saved, "--set",
                         "zero_optimization.stage=3", "--set",
                         "zero_optimization.offload_optimizer.device=nvme", "--set",
                         "zero_optimization.offload_optimizer.nvme_path=" + drive, "--set",
                         "zero_optimization.offload_param.device=nvme", "--set",
                         "zero_optimization.offload_param.nvme_path=" + drive, "--set",
                         "headrace.host_budget_bytes=1GiB"});
  const json plain = report({"--steps", "1", "--eval-batches", "0", "--plain"});
  std::filesystem::remove_all(saved);
  ASSERT_GE(d["parameters"], 300'000'000);

  const json& memory = d["memory"];
  const double engine = memory["engine_bytes"];
  const double host = d["plan_totals"]["host_bytes"];
  EXPECT_LE(host, 1 << 30);
  EXPECT_NEAR(engine, host, 0.02 * host);
  const double peak =
      memory["peak_rss_bytes"].get<double>() - memory["baseline_rss_bytes"].get<double>();
  const double activations = plain["memory"]["activations_bytes"];
  EXPECT_LE(peak, 1.05 * (memory["planned_bytes"].get<double>() + activations))
      << memory << " activations " << activations;

  double counted = 0, kernel = 0;
  for (const json& step : d["steps"]) {
    counted += step["nvme_read_bytes"].get<double>() + step["nvme_written_bytes"].get<double>();
    kernel += step["kernel_read_bytes"].get<double>() + step["kernel_written_bytes"].get<double>();
  }
  if (d["lanes"]["direct_io"].get<bool>()) {
    EXPECT_NEAR(counted, kernel, 0.005 * kernel);
  }
}
}  // namespace
}  // namespace train_gpt
