// SPDX-License-Identifier: Apache-2.0
// plan_test: `headrace plan`: what it computes with, what it says, and that its advice holds.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "plan/advice.hpp"
#include "plan/report.hpp"
#include "support/all_on_nvme.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::plan_test {
namespace {
PlannedModel planned(const std::string& name, const std::vector<std::string>& frozen = {}) {
  return planned_model(model_of(name), frozen);
}

double forward_flops(const PlannedModel& model, double tokens, double length) {
  double flops = 0;
  for (const GroupWork& work : work_of(model, tokens, length)) flops += work.forward_flops;
  return flops;
}

TEST(Work, IsTwoFlopsPerMatrixElementAndFourPerPositionAndWidth) {
  // 12 blocks of 12 width^2, and the output layer, which is the token table.
  const PlannedModel gpt2 = planned("gpt2");
  const double matrices = 12 * 12 * 768.0 * 768 + 50257 * 768.0;
  EXPECT_DOUBLE_EQ(forward_flops(gpt2, 10, 1024), 10 * (2 * matrices + 12 * 4.0 * 768 * 1024));
  EXPECT_EQ(gpt2.layers, 12u);
  EXPECT_EQ(gpt2.width, 768u);
  EXPECT_EQ(gpt2.vocabulary, 50257u);
  // A table beside an output layer is looked up; heads of keys do not count.
  const PlannedModel llama = planned("llama-3-8b");
  const double block = 2 * 4096.0 * 4096 + 2 * 1024.0 * 4096 + 3 * 14336.0 * 4096;
  EXPECT_DOUBLE_EQ(forward_flops(llama, 1, 2048),
                   2 * (32 * block + 128256 * 4096.0) + 32 * 4 * 4096.0 * 2048);
}

TEST(Work, FrozenParametersGetNoGradientBesideTrainedOnes) {
  const PlannedModel model = planned("gpt2", {"h.*.mlp.*", "wte.weight"});
  EXPECT_EQ(model.frozen_parameters, 12u * (8 * 768 * 768 + 5 * 768) + 50257 * 768);
  const auto work = work_of(model, 1, 1024);
  ASSERT_EQ(work.size(), 14u);
  // Of a block the attention's matrices alone are trained.
  const double matrices = 2 * 12 * 768.0 * 768, trained = 2 * 4 * 768.0 * 768;
  const double attention = model.groups[1].attention_flops * 1024;
  EXPECT_DOUBLE_EQ(work[1].forward_flops, matrices + attention);
  EXPECT_DOUBLE_EQ(work[1].backward_flops, matrices + trained + 2 * attention);
  EXPECT_THROW(planned("gpt2", {"h.99.*"}), Error);
}

TEST(Work, ActivationsAre34BytesPerTokenLayerAndWidthOrTwoWithCheckpoints) {
  const PlannedModel gpt2 = planned("gpt2");
  EXPECT_DOUBLE_EQ(activation_bytes(gpt2, 100, Activations::kKept),
                   100 * (34 * 12 * 768.0 + 4 * 50257.0));
  EXPECT_DOUBLE_EQ(activation_bytes(gpt2, 100, Activations::kCheckpointed),
                   100 * ((2 * 12 + 34) * 768.0 + 4 * 50257.0));
}

TEST(Machines, EveryFigureOfAKnownOneHasASource) {
  for (const char* name : {"dgx-2", "dgx-h100", "nc96ads-a100-v4", "workstation"}) {
    Machine machine = machine_of(name);
    assume_the_rest(machine);
    for (const FigureName& figure : figure_names()) {
      if (std::string(figure.name) == "nvme_mixed") continue;  // one direction after the other
      EXPECT_GT((machine.*figure.figure).value, 0) << name << " " << figure.name;
      EXPECT_FALSE((machine.*figure.figure).source.empty()) << name << " " << figure.name;
    }
  }
  EXPECT_THROW(machine_of("dgx-17"), Error);
}

Scenario scenario_of(const std::string& model, const std::string& machine) {
  Scenario s;
  s.model = std::make_shared<PlannedModel>(planned(model));
  s.machine = machine_of(machine);
  assume_the_rest(s.machine);
  s.settings.offload_optimizer = s.settings.offload_parameters = OffloadDevice::kNvme;
  s.settings.host_budget_auto = true;
  return s;
}

TEST(Advice, TwiceTheDrivesHelpAStepThatTheyBindByAtMostTwo) {
  Scenario s = scenario_of("llama-3-8b", "workstation");
  s.settings.host_budget_auto = false;  // nothing resident
  Planning planning;
  const Outcome outcome = planning.evaluate(s);
  ASSERT_TRUE(outcome.fits()) << outcome.refusal;
  EXPECT_EQ(outcome.prediction.bound, Bound::kNvme);
  bool drives = false;
  for (const Change& change : changes_of(planning, s, outcome)) {
    EXPECT_GT(change.speedup, 0.9) << change.text;
    if (!change.text.starts_with("twice the drives")) continue;
    drives = true;
    EXPECT_GT(change.speedup, 1.5);
    EXPECT_LE(change.speedup, 2);
  }
  EXPECT_TRUE(drives);
}

TEST(Advice, StepsGetNoLongerWithMoreHostMemory) {
  Scenario s = scenario_of("gpt2-xl", "workstation");
  Planning planning;
  double before = 1e30;
  int fitting = 0;
  for (std::uint64_t gib = 2; gib <= 40; ++gib) {
    s.machine.host_bytes = gib << 30;
    const Outcome outcome = planning.evaluate(s);
    if (!outcome.fits()) continue;
    ++fitting;
    EXPECT_LE(outcome.prediction.step_seconds, before * (1 + 1e-12)) << gib;
    before = outcome.prediction.step_seconds;
  }
  EXPECT_GT(fitting, 30);
}

TEST(Planning, RefusesActivationsBeyond64Bits) {
  for (const bool gpu : {true, false}) {
    Scenario s = scenario_of("llama-3.2-1b", "workstation");
    if (!gpu) s.machine.gpus = 0;
    s.sequence = 1u << 24;
    s.batch = 1u << 20;
    const Outcome outcome = Planning().evaluate(s);
    EXPECT_NE(outcome.refusal.find("activations"), std::string::npos) << outcome.refusal;
  }
  EXPECT_EQ(whole_bytes(1e30), std::uint64_t{1} << 63);
}

TEST(Planning, RefusesMoreTilesOfARankThanItsTablesAreWorth) {
  Scenario s = scenario_of("llama-3.1-405b", "workstation");
  s.machine.host_bytes = s.machine.nvme_bytes = 0;  // unknown: no floor refuses it
  s.settings.tile_elements = 65536;
  const Outcome outcome = Planning().evaluate(s);
  EXPECT_NE(outcome.refusal.find("headrace.tile_elements (65536 now)"), std::string::npos)
      << outcome.refusal;
  s.nodes = 16;
  EXPECT_TRUE(Planning().evaluate(s).plan.has_value());
}

constexpr const char* kTwoGroups = R"({"groups": [
    {"name": "a", "parameters": [{"name": "w", "shape": [300, 1000]},
                                 {"name": "b", "shape": [300]}]},
    {"name": "c", "parameters": [{"name": "w", "shape": [70000]}]}]})";

// The engine's own plan of the same groups, which it makes a store for.
TEST(Planning, CountsTheBytesOfAStoreAsTheEngineDoes) {
  const testing::TemporaryDirectory drive;
  const std::string file = drive.string() + "/model.json";
  std::ofstream(file) << kTwoGroups;
  Scenario s;
  s.model = std::make_shared<PlannedModel>(planned(file));
  s.machine = {.name = "node", .nvme_read = {1e9, ""}, .nvme_write = {1e9, ""}};
  assume_the_rest(s.machine);
  s.settings = testing::all_on_nvme(drive.string());
  s.settings.durable_every = 1;
  for (const std::uint64_t trainer_state : {0u, 1u << 20}) {
    s.settings.trainer_state_bytes = trainer_state;
    s.settings.store = "run-" + std::to_string(trainer_state);
    Engine engine(s.settings);
    engine.add_group("a", {{"w", DType::kBf16, {300, 1000}, {}}, {"b", DType::kBf16, {300}, {}}});
    engine.add_group("c", {{"w", DType::kBf16, {70000}, {}}});
    engine.freeze();
    const Outcome outcome = Planning().evaluate(s);
    ASSERT_TRUE(outcome.plan.has_value()) << outcome.refusal;
    EXPECT_EQ(outcome.plan->report.nvme_bytes, engine.plan().nvme_bytes);
    EXPECT_GT(outcome.plan->commit_record.size_bytes, trainer_state);
  }
}

TEST(Planning, AStoreThatIsThereIsRoomForItself) {
  const testing::TemporaryDirectory drive;
  const std::string folder = drive.string() + "/" + swap::user_directory_name() + "/store-run-1";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/rank0.0.store") << "x";
  constexpr std::uint64_t kSparse = std::uint64_t{1} << 42;
  std::error_code error;
  std::filesystem::resize_file(folder + "/rank0.0.store", kSparse, error);
  if (error) GTEST_SKIP() << "no files of 4 TiB here";
  const auto room = [&](const std::string& store) {
    Machine here = this_machine();
    Settings settings = testing::all_on_nvme(drive.string());
    settings.store = store;
    settings.durable_every = store.empty() ? 0 : 1;
    look_at_drives(here, settings);
    return here.nvme_bytes;
  };
  EXPECT_GE(room("run-1"), kSparse);
  EXPECT_GE(room("run-1") - kSparse / 2, room("run-2"));
  EXPECT_GE(room("run-1") - kSparse / 2, room(""));
}

TEST(Planning, AStoreNeedsTwiceTheRoom) {
  Scenario s = scenario_of("gpt2-xl", "workstation");
  s.settings.host_budget_auto = false;
  const std::uint64_t all = Planning().evaluate(s).plan->report.nvme_bytes;
  s.settings.durable_every = 1;
  s.settings.store = "run-1";
  s.machine.nvme_bytes = 2 * all - all / 10;
  Planning planning;
  const Outcome outcome = planning.evaluate(s);
  EXPECT_NE(outcome.refusal.find(" a node are to be on NVMe"), std::string::npos)
      << outcome.refusal;
  EXPECT_NE(floor_refusal(s).find("a store takes"), std::string::npos);
  s.machine.nvme_bytes = 2 * all + all / 10;
  EXPECT_TRUE(planning.fits(s));
}

class PlanProgram : public ::testing::Test {
 protected:
  static Ran run(const std::string& words) { return run_headrace("plan " + words); }
  std::string file(const std::string& name) const { return folder_.string() + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }
  static nlohmann::json read(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(PlanProgram, SaysFirstWhetherItFitsHowLongAStepTakesWhatBindsAndWhatHelps) {
  const Ran ran = run("llama-3-8b --machine workstation --drive-tbw 600");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const std::string first = ran.out.substr(0, ran.out.find('\n'));
  EXPECT_TRUE(first.starts_with("Fits: ")) << first;
  for (const char* part : {" a step (", " tokens/s), bound by NVMe; most helps ", " x)"})
    EXPECT_NE(first.find(part), std::string::npos) << first;
  for (const char* part :
       {"8,030,261,248 parameters", "optimizer state", "activations, 16-bit (an estimate)",
        "NVMe write", "Free batch  from ", " days for 600 TBW", "assumed: one Gen4 drive",
        "Tried, one change at a time", "headrace.moments=8bit"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
}

TEST_F(PlanProgram, TheFirstLineThatTheDocumentQuotesIsWhatItSays) {
  std::stringstream doc;
  doc << std::ifstream(HEADRACE_TOOLS_DOC).rdbuf();
  const auto line_from = [&](const std::string& begin) {
    const std::size_t at = doc.str().find("\n" + begin) + 1;
    return doc.str().substr(at, doc.str().find('\n', at) - at);
  };
  const std::string begin = "headrace plan ", command = line_from(begin);
  const Ran ran = run(command.substr(begin.size(), command.find(" --json") - begin.size()));
  EXPECT_EQ(ran.out.substr(0, ran.out.find('\n')), line_from("Fits: "));
}

TEST_F(PlanProgram, RefusesWithTheTableAndAChangeWithWhichItFits) {
  const std::string words = "llama-3-70b --machine nc96ads-a100-v4 --batch 8";
  const Ran ran = run(words);
  EXPECT_EQ(ran.exit_code, 2) << ran.out;
  EXPECT_NE(ran.out.find("a GPU is to hold"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("gather slots"), std::string::npos) << ran.out;
  const std::string begin = "Does not fit: give ";
  ASSERT_TRUE(ran.out.starts_with(begin)) << ran.out;
  const std::string change =
      ran.out.substr(begin.size(), ran.out.find(", and it does") - begin.size());
  const Ran again = run(words + " " + change);
  EXPECT_EQ(again.exit_code, 0) << change << "\n" << again.out;
}

TEST_F(PlanProgram, RefusesABudgetWithTheTableAndTheSmallestThatWouldDo) {
  const Ran ran = run("gpt2 --machine workstation --set headrace.host_budget_bytes=100000000");
  EXPECT_EQ(ran.exit_code, 2) << ran.out;
  EXPECT_TRUE(ran.out.starts_with("Does not fit: set headrace.host_budget_bytes to \"auto\", and "))
      << ran.out;
  for (const char* part : {"the budget is", "smallest budget that would do", "update slots"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
}

// A GPT of ten trillion parameters, a group for each matrix.
std::string ten_trillion() {
  std::ostringstream text;
  text << R"({"groups": [{"name": "e", "parameters": [)"
       << R"({"name": "wte.weight", "shape": [50257, 32768]}]})";
  for (int i = 0; i < 776; ++i) {
    for (const auto& [matrix, shape] : {std::pair{"attn.c_attn", "[98304, 32768]"},
                                        {"attn.c_proj", "[32768, 32768]"},
                                        {"mlp.c_fc", "[131072, 32768]"},
                                        {"mlp.c_proj", "[32768, 131072]"}})
      text << R"(, {"name": "h.)" << i << "." << matrix
           << R"(", "parameters": [{"name": "weight", "shape": )" << shape << "}]}";
  }
  text << "]}";
  return text.str();
}

TEST_F(PlanProgram, PlansTenTrillionParametersOnDgx2NodesWithFewPlans) {
  const std::string model = write("10t.json", ten_trillion()), json = file("plan.json");
  const std::string words = model +
                            " --machine dgx-2 --nodes 32 --checkpointing --seq 128 --set "
                            "headrace.prefetch_groups=0 --json " +
                            json;
  const Ran ran = run(words);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const auto report = read(json);
  EXPECT_EQ(report["fits"], true);
  EXPECT_NEAR(report["model"]["parameters"].get<double>(), 1e13, 1e11);
  // Each lays out the 24 thousand tiles of one rank a few times: some milliseconds.
  EXPECT_LE(report["plans_made"], 16);
  const double parameters = report["model"]["parameters"];
  EXPECT_NEAR(report["prediction_of_one_rank"]["network_bytes_per_step"].get<double>(),
              parameters * (4 * 31 / 512.0 + 2 * 31 / 32.0), parameters * 0.01);
  EXPECT_NE(ran.out.find("288 bits x parameters x (M - 1) / M"), std::string::npos) << ran.out;
}

// Each rank sends its shards to all others in two gathers, less what is still in three slots where
// forward turns to backward, and the others' gradients in one reduction: in all, 3 x 2 bytes x
// parameters x (W - 1), of which no rank sends much more than its share. Below stage 3 there is one
// gather.
TEST_F(PlanProgram, SharesWhatPassesBetweenRanksOutEvenly) {
  for (const int nodes : {8, 64}) {
    for (const int stage : {2, 3}) {
      const std::string json = file("plan.json");
      ASSERT_EQ(run("llama-2-7b --machine dgx-h100 --nodes " + std::to_string(nodes) +
                    " --set zero_optimization.stage=" + std::to_string(stage) + " --json " + json)
                    .exit_code,
                0);
      const auto report = read(json);
      const double ranks = report["ranks"], parameters = report["model"]["parameters"];
      const auto& one = report["prediction_of_one_rank"];
      const double sent = one["sent_bytes_per_step"], most = one["most_sent_bytes_per_step"];
      EXPECT_EQ(ranks, 8 * nodes);
      const double each = parameters * (ranks - 1) / ranks;
      EXPECT_NEAR(sent, (stage == 2 ? 4 : 5.87) * each, (stage == 2 ? 0.004 : 0.03) * each);
      EXPECT_LE(most, 1.02 * sent) << ranks;
    }
  }
}

// Of a gather, each shard goes to one rank of each node; of a reduction, to its owner.
TEST_F(PlanProgram, SaysWhatLeavesANode) {
  const std::string json = file("plan.json");
  const Ran ran = run(
      "llama-2-7b --machine dgx-h100 --nodes 8 --set zero_optimization.zero_hpz_partition_size=8 "
      "--json " +
      json);
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  const auto report = read(json);
  const double beyond = report["prediction_of_one_rank"]["sent_to_other_nodes_bytes_per_step"];
  const double parameters = report["model"]["parameters"];
  EXPECT_NEAR(beyond, parameters * (2 / 8.0 + 2) * 56 / 64, 1e-3 * beyond);
  EXPECT_NE(ran.out.find(" of it beyond its node of 8 ranks)"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("parameters kept for the node"), std::string::npos) << ran.out;
}

TEST_F(PlanProgram, TakesTheMachineThatDoctorFoundAndFiguresFromAFile) {
  const std::string doctor = file("doctor.json");
  ASSERT_EQ(run_headrace("doctor " + folder_.string() + " --json " + doctor).exit_code, 0);
  const Ran found = run("gpt2 --seq 64 --machine " + doctor);
  EXPECT_NE(found.out.find("headrace doctor): 1 node"), std::string::npos) << found.out;
  const std::string json = file("plan.json");
  const std::string machine = write(
      "node.json",
      R"({"name": "node", "gpus": 2, "host_bytes": 34359738368, "drives": 2, "nvme_read": 4e9})");
  const Ran ran = run("gpt2 --machine " + machine + " --nvme-write 3GB --json " + json);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const auto rates = read(json)["machine"]["rates_of_one_node"];
  EXPECT_EQ(rates["nvme_read"]["value"], 4e9);
  EXPECT_EQ(rates["nvme_write"]["value"], 3e9);
  EXPECT_EQ(rates["nvme_write"]["source"], "given");
  EXPECT_TRUE(rates["link"]["source"].get<std::string>().starts_with("assumed")) << rates;
  EXPECT_EQ(read(json)["ranks"], 2);
}

TEST_F(PlanProgram, AssumesByWhatIsGivenOnAKnownMachineToo) {
  const std::string json = file("plan.json");
  ASSERT_EQ(run("gpt2 --machine workstation --memory 2.6e+10 --json " + json).exit_code, 0);
  EXPECT_DOUBLE_EQ(read(json)["machine"]["rates_of_one_node"]["update"]["value"], 1e9);
}

TEST_F(PlanProgram, SaysWhereTilesAreUpdated) {
  const std::string json = file("plan.json");
  const auto planned = [&](const std::string& more) {
    const Ran ran =
        run("gpt2 --machine workstation --set zero_optimization.offload_optimizer.device=cpu --set "
            "zero_optimization.offload_param.device=cpu --json " +
            json + more);
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    const bool on_device = read(json)["prediction_of_one_rank"]["updates_on_device"];
    return std::pair(on_device, ran.out);
  };
  auto [on_device, out] = planned("");
  EXPECT_FALSE(on_device);
  EXPECT_NE(out.find("by the CPU (headrace.update_on cpu)"), std::string::npos) << out;
  EXPECT_NE(out.find("an update on the GPU (headrace.update_on=device)"), std::string::npos) << out;
  std::tie(on_device, out) = planned(" --set headrace.update_on=auto --update 1e8");
  EXPECT_TRUE(on_device);
  EXPECT_NE(out.find("on the GPU (headrace.update_on device, as auto has it)"), std::string::npos)
      << out;
  std::tie(on_device, out) = planned(" --set headrace.update_on=auto --link 1GB");
  EXPECT_FALSE(on_device);
  EXPECT_NE(out.find("by the CPU (headrace.update_on cpu, as auto has it)"), std::string::npos)
      << out;
  const Ran cpu = run("gpt2 --gpus 0 --set headrace.update_on=device");
  EXPECT_EQ(cpu.exit_code, 2);
  EXPECT_NE(cpu.out.find("Name a GPU by --machine"), std::string::npos) << cpu.out;
}

TEST_F(PlanProgram, TakesTheGpusThatDoctorCouldUse) {
  const std::string doctor = write("doctor.json", R"({"program": "headrace doctor", "sections": [
    {"rows": [{"name": "usable memory", "values": {"bytes": 34359738368}},
              {"name": "GPUs", "values": {"gpus": [{}, {}, {}]}},
              {"name": "usable GPUs", "values": {"usable": 2, "gpus": [
                {"served": true, "memory_bytes": 25769803776},
                {"served": false, "memory_bytes": 1},
                {"served": true, "memory_bytes": 17179869184}]}}]}]})");
  const std::string json = file("plan.json");
  ASSERT_EQ(run("gpt2 --machine " + doctor + " --json " + json).exit_code, 0);
  EXPECT_EQ(read(json)["ranks"], 2);
  EXPECT_EQ(read(json)["machine"]["gpu_memory_bytes"], 17179869184u);
}

TEST_F(PlanProgram, TakesOfDoctorNoGpuThatIsNotServedAndEachDriveOnce) {
  const std::string doctor = write("doctor.json", R"({"program": "headrace doctor", "sections": [
    {"rows": [{"name": "usable memory", "values": {"bytes": 34359738368}},
              {"name": "GPUs", "values": {"gpus": [{"model": "AMD"}]}},
              {"name": "usable GPUs", "values": {"usable": 0, "gpus": []}}]},
    {"rows": [{"name": "free space", "values": {"free_bytes": 1000000000000, "device": 7}}]},
    {"rows": [{"name": "free space", "values": {"free_bytes": 1000000000000, "device": 7}}]},
    {"rows": [{"name": "free space", "values": {"free_bytes": 1000000000000, "device": 8}}]}]})");
  const std::string json = file("plan.json");
  ASSERT_EQ(run("gpt2 --machine " + doctor + " --json " + json).exit_code, 0);
  EXPECT_EQ(read(json)["machine"]["gpus"], 0);
  EXPECT_EQ(read(json)["machine"]["drives"], 2);
  EXPECT_EQ(read(json)["machine"]["nvme_bytes"], 2000000000000u);
}

constexpr const char* kCopyReport = R"({"program": "headrace bench copy",
  "gpu": {"name": "NVIDIA H200", "memory_bytes": 150000000000},
  "rows": [
    {"kind": "copies", "way": "both", "memory": "pinned", "bytes": 268435456,
     "bytes_per_second": {"median": 98e9}},
    {"kind": "copies", "way": "both", "memory": "pinned", "bytes": 65536,
     "bytes_per_second": {"median": 20e9}},
    {"kind": "copies", "way": "both", "memory": "pageable", "bytes": 268435456,
     "bytes_per_second": {"median": 10e9}},
    {"kind": "gradients added", "way": "to_host", "memory": "pinned", "bytes": 999999999,
     "bytes_per_second": {"median": 1e9}}]})";

TEST_F(PlanProgram, TakesMemoryAndLinkOfTheGpuThatBenchCopyMeasured) {
  const std::string copy = write("copy.json", kCopyReport), json = file("plan.json");
  const auto machine_of = [&](const std::string& words) {
    const Ran ran = run("gpt2 --copy-json " + copy + " --json " + json + words);
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    return read(json)["machine"];
  };
  const auto here = machine_of("");
  EXPECT_EQ(here["rates_of_one_node"]["link"]["value"], 49e9);
  EXPECT_EQ(here["rates_of_one_node"]["link"]["source"],
            "measured: " + copy + ", both ways at once");
  EXPECT_EQ(here["gpu_memory_bytes"], 150'000'000'000);
  EXPECT_EQ(read(json)["ranks"], 1);
  EXPECT_EQ(machine_of(" --machine dgx-h100")["rates_of_one_node"]["link"]["value"], 49e9);
  EXPECT_EQ(read(json)["ranks"], 8);
  EXPECT_EQ(machine_of(" --link 12GB")["rates_of_one_node"]["link"]["value"], 12e9);
}

TEST_F(PlanProgram, RefusesAFileThatIsNoReportOfBenchCopy) {
  const auto refused = [&](const std::string& text, const std::string& part) {
    const std::string words = "gpt2 --copy-json " + write("copy.json", text);
    expect_refused(run(words), words, part);
  };
  refused("{", "is not JSON");
  refused(R"({"program": "headrace bench"})", "is no report of bench copy; nothing was planned");
  refused(R"({"program": "headrace bench copy", "error": {}})", "is of a run that failed");
  refused(R"({"program": "headrace bench copy", "rows": []})", "no rate of pinned copies");
  expect_refused(run("gpt2 --copy-json /nothing/here"), "", "--copy-json '/nothing/here'");
}

TEST_F(PlanProgram, SaysHowManyGpusOfThisMachineCanBeUsed) {
  const Ran ran = run("gpt2 --gpus 1000");
  expect_refused(ran, "gpt2 --gpus 1000", "--gpus 1000, and this machine has ");
  EXPECT_NE(ran.out.find("that can be used"), std::string::npos) << ran.out;
}

TEST_F(PlanProgram, SaysUnderTheFirstLineWhatItDidNotCheckAndWhatIsNotServed) {
  const auto says = [&](const std::string& words, const std::string& part) {
    const Ran ran = run(words);
    const std::string head = ran.out.substr(0, ran.out.find("\n\n"));
    EXPECT_NE(head.find(part), std::string::npos) << words << "\n" << ran.out;
    return head;
  };
  const std::string projection = "a projection: ";
  says("gpt2 --machine workstation", projection + "no step on a GPU has been compared");
  says("gpt2 --machine dgx-2", projection + "ranks have not run on several GPUs");
  const std::string on_cpus = "gpt2 --machine workstation --gpus 0";
  says(on_cpus + " --nodes 2", projection + "ranks have not run on several machines");
  for (const char* const ranks : {"", " --ranks 2"})
    EXPECT_EQ(says(on_cpus + ranks, "Fits: ").find(projection), std::string::npos) << ranks;
  const std::string machine = write("m.json", R"({"name": "node", "gpus": 1})");
  says("gpt2 --machine " + machine, "not checked: host memory, since node gives no host_bytes");
  says("gpt2 --machine " + machine, "not checked: GPU memory");
  says("gpt2 --machine " + machine, "not checked: free space of the drive");
  says("gpt2 --machine workstation --frozen '*'", "nothing is trained");
  const std::string settings = write("ds.json", R"({"steps_per_print": 8, "train_batch_size": 8})");
  says("gpt2 --machine workstation --settings " + settings, "steps_per_print = 8");
  EXPECT_NE(run("gpt2 --machine workstation --settings " + settings).out.find("of 8 x 1024 tokens"),
            std::string::npos);
}

TEST_F(PlanProgram, SaysWhatAStoreTakesWhatACommitCostsAndWhatAKillLoses) {
  const std::string json = file("plan.json");
  const std::string words = "gpt2-xl --machine workstation --json " + json;
  const std::string bare = run(words).out;
  EXPECT_EQ(bare.find("Store "), std::string::npos) << bare;
  EXPECT_EQ(bare.find("flush"), std::string::npos) << bare;
  const double free_of_it = read(json)["prediction_of_one_rank"]["step_seconds"];
  EXPECT_FALSE(read(json)["prediction_of_one_rank"].contains("store"));
  const std::string store = " --set headrace.store=run-1 --set headrace.durable=";
  const Ran each = run(words + store + "step");
  EXPECT_EQ(each.exit_code, 0) << each.out;
  for (const char* part :
       {"\nStore       ", "a commit of every step writes ", "a kill loses at most 1 step that had",
        "waiting for the commit", "the store's other slots", "headrace.durable=2, half as many"})
    EXPECT_NE(each.out.find(part), std::string::npos) << part << "\n" << each.out;
  std::stringstream doc;
  doc << std::ifstream(HEADRACE_TOOLS_DOC).rdbuf();
  const std::size_t line = each.out.find("Store  ");
  EXPECT_NE(doc.str().find(each.out.substr(line, each.out.find('\n', line) - line)),
            std::string::npos)
      << "docs/tools.md quotes another line";
  const auto prediction = read(json)["prediction_of_one_rank"];
  const double waited = prediction["store"]["waited_seconds_per_step"];
  EXPECT_GT(waited, 0);
  // The update seals as well.
  EXPECT_GE(prediction["step_seconds"].get<double>(), free_of_it + waited);
  EXPECT_EQ(prediction["store"]["kill_loses_seconds"], prediction["step_seconds"]);
  EXPECT_EQ(prediction["store"]["bytes"], read(json)["plan_of_one_rank"]["nvme_bytes"]);
  EXPECT_EQ(prediction["nvme_written_bytes_per_step"], prediction["store"]["commit_written_bytes"]);
  const Ran seldom = run(words + store + "50 --nvme-write 100GB --flush 0.5");
  EXPECT_NE(seldom.out.find("a commit every 50 steps writes"), std::string::npos) << seldom.out;
  EXPECT_NE(seldom.out.find("at most 50 steps that had returned"), std::string::npos);
  const double rare = read(json)["prediction_of_one_rank"]["store"]["waited_seconds_per_step"];
  EXPECT_GT(rare, (1 - 0.3) / 50);
  EXPECT_LT(rare, waited / 50);
  const Ran beside = run(words + store + "step --batch 16 --nvme-write 100GB");
  EXPECT_NE(beside.out.find("and no step waits for it"), std::string::npos) << beside.out;
}

TEST_F(PlanProgram, TakesTheSlowestFlushThatDoctorMeasured) {
  const std::string doctor = write("doctor.json", R"({"program": "headrace doctor", "sections": [
    {"rows": [{"name": "usable memory", "values": {"bytes": 34359738368}}]},
    {"rows": [{"name": "flush", "values": {"seconds": 0.004}}]},
    {"rows": [{"name": "flush", "values": {"seconds": 0.001}},
              {"name": "flush", "values": {}}]}]})");
  const std::string json = file("plan.json"),
                    words = "gpt2 --seq 64 --machine " + doctor + " --json " + json;
  ASSERT_EQ(run(words + " --set headrace.store=a --set headrace.durable=step").exit_code, 0);
  EXPECT_EQ(read(json)["machine"]["rates_of_one_node"]["flush"]["value"], 0.004);
  ASSERT_EQ(run(words).exit_code, 0);
  EXPECT_FALSE(read(json)["machine"]["rates_of_one_node"].contains("flush"));
}

TEST_F(PlanProgram, LooksAtTheFreeSpaceOfThisMachinesDrives) {
  const std::string json = file("plan.json");
  const std::string set = " --set zero_optimization.offload_param.nvme_path=" + folder_.string();
  const Ran ran = run("gpt2 --seq 64 --json " + json + set);
  EXPECT_EQ(ran.out.find("free space of the drive"), std::string::npos) << ran.out;
  EXPECT_GT(read(json)["machine"]["nvme_bytes"], 0u);
}

// What a run is told is what the plan was made with.
TEST_F(PlanProgram, GivesTheBudgetWithWhichARunKeepsRoomForActivations) {
  const std::string machine =
      write("m.json", R"({"name": "node", "host_bytes": 4000000000, "nvme_bytes": 100000000000})");
  const std::string words = "gpt2-xl --seq 128 --frozen 'h.*' --machine " + machine;
  const Ran ran = run(words);
  const std::string begin = "set headrace.host_budget_bytes=";
  const std::size_t at = ran.out.find(begin);
  ASSERT_NE(at, std::string::npos) << ran.out;
  const std::string setting = ran.out.substr(at + 4, ran.out.find(' ', at + 4) - at - 4);
  const Ran again = run(words + " --set " + setting);
  EXPECT_EQ(again.out.find(begin), std::string::npos) << again.out;
  const auto memory = [](const std::string& out) {
    const std::size_t from = out.find("Memory of one rank");
    return out.substr(from, out.find("\n\n", from) - from);
  };
  EXPECT_EQ(memory(again.out), memory(ran.out));
}

TEST_F(PlanProgram, SaysWhichUpdateModeAutoBecame) {
  const std::string json = file("plan.json");
  const Ran ran = run("llama-3-8b --machine workstation --json " + json);
  EXPECT_NE(ran.out.find("(headrace.update_mode defer, as auto has it)"), std::string::npos)
      << ran.out;
  EXPECT_EQ(read(json)["plan_of_one_rank"]["deferred_updates"], true);
}

TEST(Numbers, AreReadableAtAnySize) {
  EXPECT_EQ(number_text(0.0198), "0.0198");
  EXPECT_EQ(number_text(5.92), "5.92");
  EXPECT_EQ(number_text(24896.17), "24,896");
  EXPECT_EQ(seconds_text(0.0005), "0.5 ms");
  EXPECT_EQ(seconds_text(0.9997), "1 s");
  EXPECT_EQ(seconds_text(2210), "2210 s");
  EXPECT_EQ(seconds_text(5e6), "1,389 h");
}

TEST_F(PlanProgram, RefusesFiguresOfAMachineThatItWouldHaveToChange) {
  const auto refused = [&](const std::string& figure, const std::string& part) {
    const std::string words = "gpt2 --machine " + write("m.json", "{" + figure + "}");
    expect_refused(run(words), figure, part);
  };
  refused(R"("host_bytes": 1e24)", "\"host_bytes\" is 1e+24; it must be a number from 0 to");
  refused(R"("host_bytes": 0.5)", "\"host_bytes\" is 0.5; it must be a whole number");
  refused(R"("gpus": 1e20)", "a number from 0 to 1024");
  refused(R"("gpus": 1.5)", "\"gpus\" is 1.5");
  refused(R"("cpus": 0)", "a number from 1 to 65536");
  refused(R"("nvme_read": 0)", "\"nvme_read\" is 0; it must be a number from 1000000 to");
  refused(R"("nvme_read": 7)", "\"nvme_read\" is 7");
  refused(R"("program": "headrace doctor", "sections": [{"rows": [{"name": "usable memory",
             "values": {"bytes": 18446744073709551615}}]}])",
          "\"bytes\" is 18446744073709551615");
}

TEST_F(PlanProgram, TakesTheDrivesThatBenchMeasuredWithTheRestOfThisMachine) {
  const std::string bench = write("bench.json", R"({"program": "headrace bench",
      "drives": [{"path": "a"}, {"path": "b"}],
      "ceiling_bytes_per_second": {"read": 7e9, "write": 5e9, "rw": 8e9}})");
  const std::string json = file("plan.json");
  const Ran ran = run("gpt2 --seq 64 --machine " + bench + " --json " + json);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const auto machine = read(json)["machine"];
  EXPECT_EQ(machine["name"], "this machine");
  EXPECT_EQ(machine["drives"], 2);
  EXPECT_EQ(machine["rates_of_one_node"]["nvme_read"]["value"], 7e9);
  EXPECT_EQ(machine["rates_of_one_node"]["nvme_write"]["value"], 5e9);
  EXPECT_EQ(machine["rates_of_one_node"]["nvme_mixed"]["value"], 8e9);
  expect_refused(run("gpt2 --machine " + write("b.json", R"({"program": "headrace bench"})")),
                 "a bench report without ceilings", "no read, write or rw");
}

TEST_F(PlanProgram, WritesOneJsonDocumentToStdoutAlsoWhereItDoesNotFit) {
  for (const std::string words :
       {"gpt2 --machine workstation", "llama-3.1-405b --machine workstation", "no-such-model",
        "gpt2 --seq 0"}) {
    const Ran ran = run(words + " --json - 2>/dev/null #");
    // "#" hides that run_headrace() joins stderr to stdout.
    const auto json = nlohmann::json::parse(ran.out, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << words << "\n" << ran.out;
    EXPECT_EQ(json["program"], "headrace plan");
    EXPECT_EQ(json.contains("error"), ran.exit_code != 0) << words;
  }
}

TEST_F(PlanProgram, TheReportHasWhatPlotsAreMadeOf) {
  const std::string json = file("plan.json");
  const Ran ran = run("gpt2-xl --machine workstation --batch 4 --json " + json);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const auto report = read(json);
  const auto& prediction = report["prediction_of_one_rank"];
  std::map<std::string, double> ends;
  for (const auto& span : prediction["timeline"]) {
    double& end = ends[span["lane"]];
    EXPECT_GE(span["begin_seconds"], end) << span;
    EXPECT_GT(span["end_seconds"], span["begin_seconds"]) << span;
    end = span["end_seconds"];
  }
  EXPECT_GT(ends.size(), 1u);
  EXPECT_TRUE(ends.contains("compute")) << prediction["timeline"];
  bool has_itself = false;
  double last = 0;
  for (const auto& step : report["steps_by_batch"]) {
    EXPECT_GT(step["tokens_per_micro_batch"], last);
    last = step["tokens_per_micro_batch"];
    EXPECT_LE(step["compute_seconds"], step["step_seconds"]);
    has_itself |= step["step_seconds"] == prediction["step_seconds"];
  }
  EXPECT_TRUE(has_itself) << report["steps_by_batch"];
}

TEST_F(PlanProgram, RefusesWhatItCannotUseWithTheOneChangeThatHelps) {
  const auto refused = [&](const std::string& words, const std::string& part) {
    expect_refused(run(words), words, part);
  };
  refused("", "MODEL is missing");
  refused("gpt3", "did you mean gpt2?");
  refused("gpt2 --machine nowhere", "Give one of dgx-2");
  refused("gpt2 --machine workstation --gpus 2", "Give fewer, or another --machine");
  refused("gpt2 --machine workstation --frozen 'x*'", "Give a pattern of names");
  refused("gpt2 --machine workstation --set headrace.moments=4bit", "headrace.moments");
  refused("gpt2 --machine " + write("a.json", "{\"gpu\": 1}"), "\"gpu\" is no figure");
  refused("gpt2 --machine " + write("b.json", "{"), "line 1, column 2: not JSON: the text ends");
  refused("gpt2 --machine " + write("c.json", R"({"program": "headrace doctor", "sections": 3})"),
          "Wanted is what headrace doctor");
  refused("gpt2 --nvme-read 0", "--nvme-read");
  refused("gpt2 --nvme-read 7", "with its unit: 7GB");
  refused("gpt2 --network 10Gb", "may mean bits or bytes a second");
  refused("gpt2 --network 10Gb", "Give 10Gbit or 10GB");
  refused("gpt2 --network 1kbit", "is 125 bytes a second");
  refused("gpt2 --call 90sec", "--call 90sec is out of range");
  refused("gpt2 --report plan.html", "run `python3 scripts/report page FILE`");
}

TEST_F(PlanProgram, PlansTheDtypeThatTheSettingsAskFor) {
  const auto state_of = [](const std::string& more) {
    const std::string out = run("gpt2 --machine workstation " + more).out;
    const std::size_t line = out.find("optimizer state");
    return std::stoull(out.substr(out.rfind(' ', out.find('\n', line))));
  };
  // Beside bf16 weights 2 bytes and two moments of 4, beside fp16 ones an f32 master.
  EXPECT_NEAR(static_cast<double>(state_of("")) / 124439808, 10, 0.1);
  EXPECT_NEAR(static_cast<double>(state_of("--set fp16.enabled=true")) / 124439808, 12, 0.1);
}

TEST_F(PlanProgram, PlansNoLongerSequencesThanTheModelHasPositionsFor) {
  EXPECT_NE(run("gpt2 --machine workstation").out.find("of 1 x 1024 tokens"), std::string::npos);
  const Ran longer = run("gpt2 --machine workstation --seq 2048");
  EXPECT_NE(longer.out.find("gpt2 has 1024 positions, and sequences of 2048 tokens need more"),
            std::string::npos)
      << longer.out;
}

TEST_F(PlanProgram, TakesRepeatedOptionsBeforeTheModelAndBothNamesOfTheSettings) {
  EXPECT_EQ(run("--set headrace.moments=8bit --frozen '*.bias' gpt2").exit_code, 0);
  EXPECT_EQ(run("gpt2 --config " + write("empty.json", "{}")).exit_code, 0);
  EXPECT_EQ(run("gpt2 --machine workstation --nvme-read 7GB/s").exit_code, 0);
}

TEST_F(PlanProgram, TakesRatesInBitsAndTimesInMicroseconds) {
  const std::string json = file("rates.json");
  const auto rate = [&](const std::string& option, const char* name) {
    EXPECT_EQ(run("gpt2 --gpus 0 --nodes 2 " + option + " --json " + json).exit_code, 0) << option;
    return read(json)["machine"]["rates_of_one_node"][name]["value"].get<double>();
  };
  EXPECT_EQ(rate("--network 10Gbit/s", "network"), 1.25e9);
  EXPECT_EQ(rate("--network 200Mbit", "network"), 25e6);
  EXPECT_EQ(rate("--network 7gb", "network"), 7e9) << "as sizes: in lower case, too";
  EXPECT_EQ(rate("--network 1.25e9/s", "network"), 1.25e9);
  EXPECT_EQ(rate("--call 50us", "call"), 50e-6);
  EXPECT_EQ(rate("--call 5e-5", "call"), 50e-6);
  EXPECT_EQ(rate("--call 0.01", "call"), 0.01);
}

TEST_F(PlanProgram, FindsWhatHelpsWhereTwoChangesDoTogether) {
  const std::string settings =
      write("cpu.json",
            R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"},
                                "offload_param": {"device": "cpu"}}})");
  const std::string machine = write(
      "m.json", R"({"name": "node", "gpus": 0, "host_bytes": 20000000000, "nvme_bytes": 1e12})");
  const Ran ran = run("gpt2-xl --batch 16 --machine " + machine + " --settings " + settings);
  EXPECT_NE(ran.out.find("give --checkpointing"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("offload_optimizer.device=nvme"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("nvme_path=DIR"), std::string::npos) << ran.out;
}

TEST_F(PlanProgram, WarnsOfWhatItsReaderWroteAlone) {
  const std::string none =
      "gpt2 --machine workstation --set zero_optimization.offload_param.device=none"
      " --set zero_optimization.offload_optimizer.device=none";
  EXPECT_EQ(run(none).out.find("warning"), std::string::npos) << run(none).out;
  EXPECT_NE(run("gpt2 --machine workstation --set train_batch_size=8 --batch 2")
                .out.find("train_batch_size 8 is left aside"),
            std::string::npos);
}
}  // namespace
}  // namespace headrace::tools::plan_test
