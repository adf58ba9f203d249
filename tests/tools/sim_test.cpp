// SPDX-License-Identifier: Apache-2.0
// sim_test: `headrace sim`: published points, worlds of several sizes, and what it refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "headrace/error.hpp"
#include "sim/published.hpp"
#include "sim/worlds.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::sim_test {
namespace {
constexpr std::uint32_t kTensorParallel = 4;

Scenario trillion(std::uint32_t nodes) {
  Scenario s;
  s.machine = *known_machine("dgx-2");
  assume_the_rest(s.machine);
  s.nodes = nodes;
  s.model = std::make_shared<PlannedModel>(
      sliced(planned_model(model_of("gpt-25600x128"), {}), kTensorParallel));
  s.sequence = 1024;
  s.batch = 20;
  s.settings.train_micro_batch_size_per_gpu = 20;
  s.activations = Activations::kCheckpointedInHostMemory;
  s.settings.offload_parameters = s.settings.offload_optimizer = OffloadDevice::kNvme;
  s.settings.prefetch_groups = 1;
  return s;
}

TEST(Published, PointsAreWithinFifteenPercent) {
  Planning planning;
  std::map<std::string, PublishedPoint> points;
  for (const PublishedPoint& point : simulate_published(planning).points)
    points.emplace(point.what, point);
  for (const char* what : {"1 T parameters on 512 GPUs", "1 T parameters on 64 GPUs",
                           "512 GPUs over 64, 8 times as many", "10 B on one DGX-2",
                           "50 B on one DGX-2", "100 B on one DGX-2", "0.5 T on 512 GPUs",
                           "backward of 8 B on 64 GPUs, over ZeRO-Offload's"}) {
    ASSERT_TRUE(points.contains(what)) << what;
    EXPECT_NEAR(points.at(what).ratio(), 1, 0.15) << what << ": " << points.at(what).simulated;
  }
  EXPECT_NEAR(points.at("... with activations computed again").ratio(), 1, 0.2)
      << "a longer backward, beside which less is saved";
  // Gradients of these stay in host memory, which they fill.
  EXPECT_NE(points.at("20 T on 512 GPUs").refusal.find("of host memory"), std::string::npos)
      << points.at("20 T on 512 GPUs").refusal;
}

TEST(Published, ABoundThatHoldsCountsAsMet) {
  PublishedPoint point{"", "", 40, "at least", 50};
  EXPECT_EQ(point.ratio(), 1);
  point.simulated = 30;
  EXPECT_EQ(point.ratio(), 0.75);
  point.relation = "at most";
  EXPECT_EQ(point.ratio(), 1);
  point.simulated = 50;
  EXPECT_EQ(point.ratio(), 1.25);
  point.simulated = 0;
  EXPECT_EQ(point.ratio(), 0) << "refused";
}

// All ranks of tensor parallelism have a slice of each matrix, all of the vectors, and a part of
// the state of their slice.
TEST(Sliced, RanksHaveOneModelAmongThem) {
  const PlannedModel whole = planned_model(model_of("gpt-4096x50"), {});
  const PlannedModel slice = sliced(whole, kTensorParallel);
  EXPECT_EQ(slice.parameters, whole.parameters);
  double elements = 0, all = 0, vectors = 0;
  for (std::size_t g = 0; g < whole.groups.size(); ++g) {
    elements += static_cast<double>(slice.groups[g].group.elements());
    for (const ModelParameter& parameter : whole.groups[g].group.parameters)
      (parameter.shape.size() < 2 ? vectors : all) += static_cast<double>(parameter.elements());
  }
  EXPECT_DOUBLE_EQ(elements, all / kTensorParallel + vectors);
  const auto flops = [](const PlannedModel& model) {
    double sum = 0;
    for (const GroupWork& work : work_of(model, 1024, 1024)) sum += work.backward_flops;
    return sum;
  };
  EXPECT_DOUBLE_EQ(kTensorParallel * flops(slice), flops(whole));
  EXPECT_EQ(work_of(whole, 1024, 1024)[1].summed_bytes, 0);
  EXPECT_EQ(work_of(slice, 1024, 1024)[1].summed_bytes, 2 * 1024 * 4096 * 2);
  EXPECT_EQ(checkpoint_bytes(slice, 1024), checkpoint_bytes(whole, 1024) / kTensorParallel);
}

TEST(Worlds, ABatchAtEachOfMoreRanksIsMoreTokensAtTheSameRate) {
  Planning planning;
  const std::vector<World> worlds = worlds_of(planning, trillion(1), {4, 8, 32});
  double tokens = 0, per_rank = 0;
  for (const World& world : worlds) {
    ASSERT_TRUE(world.fits()) << world.outcome.refusal;
    EXPECT_GT(world.tokens_per_second(), tokens);
    tokens = world.tokens_per_second();
    // More drives for the same state.
    EXPECT_GE(tokens / world.scenario.ranks(), per_rank * 0.99);
    per_rank = tokens / world.scenario.ranks();
    EXPECT_LT(world.flops_per_second(), world.scenario.machine.flops.value);
    EXPECT_GT(world.flops_per_second(), 0.5 * world.scenario.machine.flops.value);
  }
}

TEST(Worlds, TheNetworkThatIsEnoughIsNoticedOnceItIsLess) {
  Planning planning;
  const World world = world_of(planning, trillion(8));
  const auto step_over = [&](double bits) {
    Scenario s = world.scenario;
    s.machine.network.value = bits / 8;
    return planning.evaluate(s).prediction.step_seconds;
  };
  const double best = step_over(1e16), wanted = world.network_wanted;
  EXPECT_LE(step_over(wanted), best * (1 + kUnnoticed));
  EXPECT_GT(step_over(wanted / 1.1), best * (1 + kUnnoticed));
  // 48 bits of each parameter while a step computes.
  const Prediction& p = world.outcome.prediction;
  // The sums of tensor parallelism are no computation.
  const double computes = p.forward.of(StepLane::kCompute) + p.backward.of(StepLane::kCompute);
  EXPECT_NEAR(world.network_by_rule * computes, 48 * 1.008e12, 2e12);
  EXPECT_GT(world.network_by_rule * computes, 48 * 1.008e12);
  EXPECT_EQ(world_of(planning, trillion(1)).network_by_rule, 0) << "one node";
}

TEST(Worlds, CheckpointsInHostMemoryLeaveTheGpuAndCrossTheLink) {
  Planning planning;
  Scenario s = trillion(8);
  const Outcome away = planning.evaluate(s);
  s.activations = Activations::kCheckpointed;
  s.machine.gpu_memory_bytes = 0;  // not checked
  const Outcome here = planning.evaluate(s);
  const double one = checkpoint_bytes(*s.model, s.tokens());
  EXPECT_DOUBLE_EQ(away.saved, 128 * one);
  EXPECT_DOUBLE_EQ(here.activations - away.activations, 126 * one) << "two layers' remain";
  const auto link = [](const Outcome& outcome) {
    return outcome.prediction.forward.of(StepLane::kCopyToHost);
  };
  EXPECT_EQ(link(here), 0);
  EXPECT_NEAR(link(away), away.saved / s.machine.link.value, 1e-6);
}

class SimProgram : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.string() + "/" + name; }
  static Ran run(const std::string& words) { return run_headrace("sim " + words); }

 private:
  const testing::TemporaryDirectory folder_;
};

TEST_F(SimProgram, ShowsPublishedPointsWithWhatIsTakenAsGiven) {
  const Ran ran = run("--published --json " + file("p.json"));
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("1 T parameters on 512 GPUs"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("Taken as given"), std::string::npos) << ran.out;
  const auto report = nlohmann::json::parse(std::ifstream(file("p.json")));
  EXPECT_EQ(report["published"][0]["published"], 49);
  EXPECT_NEAR(report["published"][0]["ratio"].get<double>(), 1, 0.15);
  EXPECT_TRUE(report["taken_as_given"].contains("flops"));
}

TEST_F(SimProgram, SimulatesWorldsUpTo512RanksUnlessToldOthers) {
  const std::string json = file("w.json");
  ASSERT_EQ(run("llama-3-8b --machine dgx-h100 --checkpointing --json " + json).exit_code, 0);
  auto report = nlohmann::json::parse(std::ifstream(json));
  ASSERT_EQ(report["worlds"].size(), 7u);
  EXPECT_EQ(report["worlds"].back()["ranks"], 512);
  EXPECT_EQ(report["worlds"].front()["scaling"], 1);
  ASSERT_EQ(
      run("gpt2 --machine workstation --gpus 0 --ranks 2 --nodes 1,3 --json " + json).exit_code, 0);
  report = nlohmann::json::parse(std::ifstream(json));
  ASSERT_EQ(report["worlds"].size(), 2u);
  EXPECT_EQ(report["worlds"][1]["ranks"], 6);
}

TEST_F(SimProgram, PrintsTheNotesOfTheWorldThatItNames) {
  const std::string words = "gpt2 --machine workstation --gpus 0 --ranks 1 --nodes ";
  const std::string several = run(words + "1,2").out, one = run(words + "1").out;
  EXPECT_NE(several.find("With 2 nodes\n  a projection: ranks have not run on several machines"),
            std::string::npos)
      << several;
  EXPECT_NE(one.find("With 1 node\n"), std::string::npos) << one;
  EXPECT_EQ(one.find("a projection"), std::string::npos) << one;
}

TEST_F(SimProgram, EndsWith2WhereNoWorldFitsAndNamesWhatHelps) {
  const Ran ran = run("llama-2-70b --machine dgx-2 --nodes 1");
  EXPECT_EQ(ran.exit_code, 2) << ran.out;
  EXPECT_NE(ran.out.find("does not fit"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("give --checkpointing"), std::string::npos) << ran.out;
}

TEST_F(SimProgram, DividesTheBatchAmongTheRanksOfEachWorld) {
  const std::string json = file("b.json");
  ASSERT_EQ(run("gpt2 --machine workstation --nodes 1,2,3 --set train_batch_size=32 --set "
                "train_micro_batch_size_per_gpu=4 --json " +
                json)
                .exit_code,
            0);
  const auto worlds = nlohmann::json::parse(std::ifstream(json))["worlds"];
  EXPECT_EQ(worlds[0]["micro_batches"], 8);
  EXPECT_EQ(worlds[1]["micro_batches"], 4);
  EXPECT_EQ(worlds[2]["fits"], false) << "12 does not divide 32";
  EXPECT_NE(worlds[2]["refusal"].get<std::string>().find("32"), std::string::npos);
}

TEST_F(SimProgram, RefusesAWorldWhoseRanksDoNotMakeUpNodesAndSimulatesTheOthers) {
  const Ran ran =
      run("gpt2 --machine workstation --nodes 2,3 --set "
          "zero_optimization.zero_hpz_partition_size=2");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("3      3  does not fit"), std::string::npos) << ran.out;
}

TEST_F(SimProgram, SumsWithinNodesMakeAStepShorterWhereTheNetworkBinds) {
  const std::string json = file("h.json");
  const auto seconds = [&](const std::string& more) {
    EXPECT_EQ(run("gpt2-xl --machine dgx-2 --network 1GB --nodes 4 --batch 1 --json " + json + more)
                  .exit_code,
              0);
    return nlohmann::json::parse(
               std::ifstream(json))["worlds"][0]["prediction_of_one_rank"]["step_seconds"]
        .get<double>();
  };
  const double without = seconds("");
  EXPECT_LT(seconds(" --set headrace.hierarchical_reduce_ranks=16"), 0.8 * without);
}

TEST_F(SimProgram, HasNoNumberForAStepThatTakesNoTime) {
  const std::string model = file("m.json");
  std::ofstream(model) << R"({"groups": [{"name": "l.0", "parameters": [
      {"name": "b", "shape": [8]}]}]})";
  for (const std::string& machine : {std::string("--gpus 0"), std::string("--machine dgx-h100")}) {
    const Ran ran = run(model + " --frozen '*' --nodes 1,2 " + machine);
    EXPECT_EQ(ran.out.find("nan"), std::string::npos) << ran.out;
    EXPECT_EQ(ran.out.find("9,223"), std::string::npos) << ran.out;
  }
}

TEST_F(SimProgram, RefusesWhatItCannotUseWithTheOneChangeThatHelps) {
  const auto refused = [&](const std::string& words, const std::string& part) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.exit_code, 2) << words << ran.out;
    EXPECT_NE(ran.out.find(part), std::string::npos) << words << "\n" << ran.out;
  };
  refused("", "MODEL is missing");
  refused("gpt2 --published", "Give --published and --json alone");
  refused("--published --nodes 3", "--nodes would change nothing");
  refused("gpt2 --nodes 1,x", "--nodes 'x'");
  refused("gpt2 --nodes 1,,2", "--nodes");
  refused("gpt2 --machine dgx-2 --offload-checkpoints", "Give both");
  refused("gpt2 --machine dgx-2 --tensor-parallel 3", "Give a divisor");
  refused("gpt2 --machine dgx-2 --ranks 3", "--gpus 0");
  refused("gpt2 --gpus 0 --checkpointing --offload-checkpoints", "Leave it out");
  refused("gpt-0x3", "'gpt-0x3'");
  refused("gpt-768x100000", "1 to 10000 layers");
  refused("gpt2 --machine dgx-2 --nodes 65537", "--nodes");
  refused("gpt2 --machine /", "is no machine that is known and no file");
}
}  // namespace
}  // namespace headrace::tools::sim_test
