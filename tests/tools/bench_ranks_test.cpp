// SPDX-License-Identifier: Apache-2.0
// bench_ranks_test: `headrace bench ranks`: what it measures, compares, refuses, and how it ends
// where a rank does. How fast anything is, no test says.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "bench_ranks/rank_contest.hpp"
#include "bench_ranks/rank_report.hpp"
#include "bench_ranks/raw_threads.hpp"
#include "headrace/error.hpp"
#include "headrace/transport.hpp"
#include "support/child_processes.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::bench_ranks_test {
namespace {
using nlohmann::json;
using std::chrono::seconds;
constexpr seconds kWatchdog(60);

// ---- worlds of threads ----

// Raw calls that go wrong on one rank.
class DamagedCalls final : public RawCalls {
 public:
  enum class Damage { kNone, kByte, kFailure };
  DamagedCalls(std::unique_ptr<RawCalls> to, Damage damage) : to_(std::move(to)), damage_(damage) {}
  Names names() const noexcept override { return to_->names(); }
  std::string all_gather(void* whole, std::uint64_t bytes) noexcept override {
    return to_->all_gather(whole, bytes);
  }
  std::string all_to_all(const void* give, void* take, std::uint64_t bytes) noexcept override {
    if (damage_ == Damage::kFailure) return "the cable is cut";
    const std::string error = to_->all_to_all(give, take, bytes);
    if (damage_ == Damage::kByte) static_cast<unsigned char*>(take)[bytes - 1] ^= 1;
    return error;
  }
  std::string exchange(const void* mine, void* all, std::uint64_t bytes) noexcept override {
    return to_->exchange(mine, all, bytes);
  }

 private:
  const std::unique_ptr<RawCalls> to_;
  const Damage damage_;
};
using Damage = DamagedCalls::Damage;

RankContestOptions small() {
  return {.sizes = {1, 5000}, .rounds = 3, .sample_seconds = 0.001, .idle_seconds = 0.1};
}

struct OfRank {
  std::optional<RankContest> contest;
  std::string error;
};
// All of them measure; rank 1 by its own options and damage.
std::vector<OfRank> measured(std::uint32_t world_size, Damage damage = Damage::kNone,
                             const RankContestOptions& of_rank_1 = small()) {
  const auto transports = make_thread_transports(world_size);
  auto raw = make_raw_thread_calls(world_size);
  std::vector<OfRank> all(world_size);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      DamagedCalls calls(std::move(raw[r]), r == 1 ? damage : Damage::kNone);
      const auto collective = make_collective({.transport = transports[r], .deadline = kWatchdog});
      try {
        all[r].contest = measure_ranks(*collective, calls, r == 1 ? of_rank_1 : small(),
                                       [](const std::string&, double) {});
      } catch (const Error& error) {
        all[r].error = error.what();
        collective->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

TEST(RankContest, MeasuresEveryCallAndSizeInEveryRoundAlikeOnAllRanks) {
  for (const std::uint32_t world_size : {2u, 3u}) {
    const auto all = measured(world_size);
    for (const OfRank& one : all) {
      ASSERT_TRUE(one.contest) << one.error;
      EXPECT_EQ(one.contest->mismatch, "");
      EXPECT_EQ(one.contest->idle_shares.size(), world_size);
      EXPECT_EQ(ranks_json(*one.contest)["rows"], ranks_json(*all[0].contest)["rows"]);
    }
    ASSERT_EQ(all[0].contest->rows.size(), 3u * 2);
    for (const RankRow& row : all[0].contest->rows) {
      EXPECT_EQ(row.ours.size(), 3u) << name_of(row.call);
      EXPECT_EQ(row.cpu.size(), 3u) << name_of(row.call);
      for (const double seconds : row.cpu) EXPECT_GT(seconds, 0) << name_of(row.call);
      EXPECT_EQ(row.raw.size(), 3u) << name_of(row.call);
      EXPECT_GE(row.count, 1u) << name_of(row.call);
    }
  }
}

TEST(RankContest, NamesTheFirstRowWhoseBytesDidNotArrive) {
  for (const OfRank& one : measured(3, Damage::kByte)) {
    ASSERT_TRUE(one.contest) << one.error;
    EXPECT_EQ(one.contest->mismatch, "all_to_all of 1 B, raw");
    EXPECT_NE(ranks_text(*one.contest).find("MISMATCH: after all_to_all of 1 B, raw"),
              std::string::npos);
  }
}

TEST(RankContest, ARawCallThatFailsEndsAllRanksWithItsCause) {
  const auto all = measured(3, Damage::kFailure);
  EXPECT_EQ(all[1].error.find("a raw call failed: the cable is cut"), 0u) << all[1].error;
  for (const std::size_t r : {0u, 2u}) EXPECT_NE(all[r].error, "") << r;
}

TEST(RankContest, RefusesARankWithOtherOptions) {
  RankContestOptions other = small();
  other.rounds = 4;
  for (const OfRank& one : measured(2, Damage::kNone, other)) {
    EXPECT_EQ(one.error.find("rank 1 was started with other options than rank 0"), 0u) << one.error;
  }
}

RankContest example() {
  RankContest contest{.raw_names = {"MPI_Allgather", "MPI_Alltoallv", "MPI_Allgather"},
                      .world_size = 3,
                      .rounds = 3,
                      .seconds = 2,
                      .idle_shares = {0.01, 0.029, 0.02},
                      .idle_seconds = 2};
  for (const RankCall call : kRankCalls) {
    contest.rows.push_back({.call = call,
                            .piece_bytes = 1 << 20,
                            .count = 4,
                            .ours = {2e-3, 2e-3, 4e-3},
                            .raw = {1e-3, 2e-3, 3e-3},
                            .cpu = {5e-4, 6e-4, 7e-4}});
  }
  return contest;
}

TEST(RankReport, TellsRatiosOfTheSameRoundAndWhatArrivesAtARank) {
  const std::string text = ranks_text(example());
  for (const char* words :
       {"all_to_all, beside MPI_Alltoallv", "1 MiB       2000     1.05", "2000     1.05",
        "0.75  [0.50, 1.00]", "idle: 2.90 % of a core", "3 rounds in 2"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const json report = json::parse(ranks_json(example()).dump());
  EXPECT_EQ(report["rows"][1]["raw_call"], "MPI_Alltoallv");
  EXPECT_DOUBLE_EQ(report["rows"][1]["ratio"]["median"], 0.75);
  EXPECT_EQ(report["rows"][1]["bytes"], 1 << 20);
  EXPECT_EQ(report["idle"]["shares"].size(), 3u);
}

TEST(RankReport, WarnsWhereAnIdleRankTakesMoreThanThreePercentOfACore) {
  RankContest contest = example();
  EXPECT_TRUE(rank_doubts(contest).empty());
  contest.idle_shares[2] = 0.2;
  ASSERT_EQ(rank_doubts(contest).size(), 1u);
  EXPECT_EQ(rank_doubts(contest)[0].find("idle, a rank takes 20.0 % of a core"), 0u);
}

// ---- the program ----

const std::string kFew = " --sizes 1k,300k --rounds 2 --seconds 0.005 ";

json report_of(const std::string& file) { return json::parse(std::ifstream(file)); }

void expect_measured(const json& report, std::uint32_t world_size, const std::string& transport) {
  EXPECT_EQ(report["schema_version"], 1);
  EXPECT_EQ(report["program"], "headrace bench ranks");
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["ranks"]["world_size"], world_size);
  EXPECT_EQ(report["ranks"]["transport"], transport);
  EXPECT_EQ(report["ranks"]["of_machine"], world_size);
  EXPECT_EQ(report["rows"].size(), 3u * 2);
  EXPECT_EQ(report["mismatch"], "");
  EXPECT_EQ(report["idle"]["shares"].size(), world_size);
}

TEST(BenchRanksProgram, MeasuresThreadsOfOneProcess) {
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/report.json";
  const Ran ran = run_headrace("bench ranks --threads 3" + kFew + "--json " + file);
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("3 by threads of one process, over threads"), std::string::npos)
      << ran.out;
  expect_measured(report_of(file), 3, "threads");
}

TEST(BenchRanksProgram, RefusesWhatItCannotMeasure) {
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"",
            "this is one process, and ranks are at least two; nothing was measured. Run mpirun "
            "-n 2 headrace bench ranks, or torchrun"},
           {"--threads 1", "--threads 1"},
           {"--threads 2 --sizes 0", "--sizes 0"},
           {"--threads 2 --sizes 1G", "--sizes 1G"},
           {"--threads 2 --rounds 0", "--rounds 0"},
           {"--threads 2 --seconds 0", "--seconds 0"},
           {"--threads 2 --json /nothing/here.json", "/nothing/here.json"},
           {"--ranks all", "--ranks 'all' is not known"},
           {"--ranks mpi", "no variable of a launcher of MPI programs is set"},
           {"--thread 2", "Did you mean --threads?"}})
    expect_refused(run_headrace("bench ranks " + words), words, expected);
}

TEST(BenchRanksProgram, RefusesALaunchThatItCannotServe) {
  for (const auto& [variables, words, expected] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"RANK=0", "", "RANK is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"},
           {"PMI_RANK=0 PMI_SIZE=1", "", "PMI started one rank, which has no other to measure"},
           {"PMI_RANK=0 PMI_SIZE=2", "--threads 2", "--threads makes ranks of one process"}}) {
    const Ran ran = ran_by_shell(variables + " " HEADRACE_PROGRAM " bench ranks " + words);
    expect_refused(ran, variables, expected);
  }
}

// A copy of the program with no module beside it.
TEST(BenchRanksProgram, SaysWhatToInstallWhereAModuleIsMissing) {
  const testing::TemporaryDirectory folder;
  const std::string program = folder.string() + "/headrace";
  std::filesystem::copy_file(HEADRACE_PROGRAM, program);
  for (const auto& [variables, expected] :
       {std::pair<std::string, std::string>{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2",
                                            "apt install openmpi-bin libopenmpi-dev"},
        {"PMI_RANK=0 PMI_SIZE=2", "apt install mpich libmpich-dev"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1", "./quickstart"}}) {
    const Ran ran = ran_by_shell(variables + " " + program + " bench ranks");
    expect_refused(ran, variables, expected);
    expect_refused(ran, variables, "can be loaded: " + folder.string() + "/headrace_");
  }
}

TEST(BenchRanksProgram, HelpSaysWhatItTakes) {
  const Ran ran = run_headrace("bench ranks --help");
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* option :
       {"--sizes", "--rounds", "--seconds", "--ranks", "--threads", "--json", "mpirun -n 2"})
    EXPECT_NE(ran.out.find(option), std::string::npos) << option;
  EXPECT_NE(run_headrace("bench --help").out.find("headrace bench ranks"), std::string::npos);
}

TEST(BenchRanksProgram, ASignalEndsThreadsWith128AndTheSignal) {
  const testing::TemporaryDirectory folder;
  const std::string said = folder.string() + "/said";
  const auto measures = [&] {
    std::ostringstream text;
    text << std::ifstream(said).rdbuf();
    return text.str().find("This takes about") != std::string::npos;
  };
  EXPECT_EQ(
      exit_code_after(
          SIGINT, "bench ranks --threads 2 --sizes 1k --rounds 10000 >" + said + " 2>&1", measures),
      128 + SIGINT);
}

// ---- worlds of processes ----

class BenchRanksProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef HEADRACE_WITH_GLOO
    GTEST_SKIP() << "built without LibTorch, so there is no Gloo";
#endif
  }
  void start(std::uint32_t world_size, const std::string& words) {
    const std::string port = std::to_string(testing::free_port());
    for (std::uint32_t r = 0; r < world_size; ++r) {
      ranks_.start({"/bin/sh", "-c", "exec " HEADRACE_PROGRAM " bench ranks " + words},
                   {"RANK=" + std::to_string(r), "WORLD_SIZE=" + std::to_string(world_size),
                    "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, "GLOO_SOCKET_IFNAME=lo",
                    "OMP_NUM_THREADS=1"});
    }
  }
  std::string file() const { return ranks_.folder().string() + "/report.json"; }
  void start_endless() {
    start(2, "--sizes 1k --rounds 10000");
    ASSERT_TRUE(ranks_.wait_for(0, "This takes about", kWatchdog)) << describe(ranks_.wait({}));
  }
  testing::ChildProcesses ranks_;
};

TEST_F(BenchRanksProcesses, MeasureBesideTorchAndRankZeroAlonePrints) {
  start(3, kFew + "--json " + file());
  const auto ends = ranks_.wait(kWatchdog);
  for (const auto& end : ends) ASSERT_EQ(end.exit_code, 0) << describe(ends);
  expect_measured(report_of(file()), 3, "gloo");
  EXPECT_NE(ends[0].said.find("all_to_all, beside alltoall_base"), std::string::npos);
  EXPECT_EQ(ends[1].said + ends[2].said, "");
}

TEST_F(BenchRanksProcesses, ASignalToOneEndsTheOtherWithItsName) {
  start_endless();
  ranks_.signal(1, SIGTERM);
  const auto ends = ranks_.wait(kWatchdog);
  EXPECT_EQ(ends[1].exit_code, 128 + SIGTERM) << describe(ends);
  EXPECT_EQ(ends[0].exit_code, 1) << describe(ends);
  EXPECT_NE(ends[0].said.find("rank 1"), std::string::npos) << describe(ends);
  EXPECT_NE(ends[0].said.find("ended by SIGTERM"), std::string::npos) << describe(ends);
}

TEST_F(BenchRanksProcesses, ARankThatIsKilledEndsTheOther) {
  start_endless();
  ranks_.signal(1, SIGKILL);
  const auto ends = ranks_.wait(kWatchdog);
  EXPECT_FALSE(ends[0].killed) << describe(ends);
  EXPECT_EQ(ends[0].exit_code, 1) << describe(ends);
}

void expect_mpi(const char* mpirun, const std::vector<std::string>& options,
                const std::string& raw_call) {
  if (*mpirun == 0) GTEST_SKIP() << "this MPI is not installed, or the build has sanitizers";
  testing::ChildProcesses job;
  const std::string file = job.folder().string() + "/report.json";
  std::vector<std::string> words = {mpirun};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"-n", "2", HEADRACE_PROGRAM, "bench", "ranks", "--sizes", "1k,300k",
                             "--rounds", "2", "--seconds", "0.005", "--json", file});
  job.start(words);
  const auto ends = job.wait(kWatchdog);
  ASSERT_EQ(ends[0].exit_code, 0) << describe(ends);
  expect_measured(report_of(file), 2, "mpi");
  EXPECT_EQ(report_of(file)["rows"][0]["raw_call"], raw_call);
}

TEST(BenchRanksMpi, MeasuresBesideOpenMpi) {
  expect_mpi(HEADRACE_MPIRUN_OPENMPI,
             {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
              "mpi_yield_when_idle", "1"},
             "MPI_Allgather");
}
TEST(BenchRanksMpi, MeasuresBesideMpich) { expect_mpi(HEADRACE_MPIRUN_MPICH, {}, "MPI_Allgather"); }
}  // namespace
}  // namespace headrace::tools::bench_ranks_test
