// SPDX-License-Identifier: Apache-2.0
// bench_optimizer_test: `headrace bench optimizer`: what it counts, measures, refuses and reports.
// How fast anything is, no test says.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bench_optimizer/contest.hpp"
#include "bench_optimizer/report.hpp"
#include "bench_optimizer/selection.hpp"
#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::bench_optimizer_test {
namespace {
using nlohmann::json;

constexpr std::uint64_t kElements = 131072 + 65536;  // a chunk and a half

// ---- which bytes must move ----

TEST(OptimizerCases, CountTheBytesThatMustMove) {
  const auto moved = [](const Case& of) {
    const Moved bytes = moved_per_parameter(of);
    return std::pair{bytes.read, bytes.written};
  };
  // Weight, residual, two moments, gradient.
  EXPECT_EQ(moved({}), std::pair(14.0, 12.0));
  // A bf16 weight beside its f32 master is only written.
  EXPECT_EQ(moved({.weight = MasterKind::kF32}), std::pair(14.0, 14.0));
  EXPECT_EQ(moved({.weight = MasterKind::kF32OfF16, .gradient = DType::kF32}),
            std::pair(16.0, 14.0));
  EXPECT_EQ(moved({.weight = MasterKind::kWeightItself, .gradient = DType::kF32}),
            std::pair(16.0, 12.0));
  // Two codes, and two bytes of scale per 256.
  EXPECT_EQ(moved({.moments = MomentCodec::kBlock8}), std::pair(8.0 + 2.0 / 256, 6.0 + 2.0 / 256));
  EXPECT_EQ(moved({.rule = OptimizerRule::kLion, .moments = MomentCodec::kBf16}),
            std::pair(8.0, 6.0));
  EXPECT_EQ(moved({.rule = OptimizerRule::kSgd}), std::pair(6.0, 4.0));
}

// ---- which cases ----

TEST(OptimizerCases, AllAreEveryCombinationOnce) {
  const std::vector<Case> cases =
      cases_of({.simd = {Simd::kScalar}, .threads = {1}, .all = true}, 1);
  // Five rules with moments in three codecs, one without; four weights, three gradients.
  EXPECT_EQ(cases.size(), (5u * 3 + 1) * 4 * 3);
  for (std::size_t i = 0; i < cases.size(); ++i)
    EXPECT_EQ(std::count(cases.begin(), cases.end(), cases[i]), 1) << text_of(cases[i]);
}

TEST(OptimizerCases, ThreadsAreAllCpusAndWithAllEveryPowerOfTwoBelow) {
  const auto threads = [](const CaseAxes& axes, std::uint32_t cpus) {
    std::set<std::uint32_t> found;
    for (const Case& of : cases_of(axes, cpus)) found.insert(of.threads);
    return found;
  };
  EXPECT_EQ(threads({}, 6), (std::set<std::uint32_t>{6}));
  EXPECT_EQ(threads({.all = true}, 6), (std::set<std::uint32_t>{1, 2, 4, 6}));
  EXPECT_EQ(threads({.threads = {3}, .all = true}, 6), (std::set<std::uint32_t>{3}));
}

TEST(OptimizerCases, ARuleWithoutMomentsIsOneCaseForAllCodecs) {
  const std::vector<Case> cases =
      cases_of({.rules = {OptimizerRule::kSgd},
                .moments = {MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8}},
               1);
  EXPECT_EQ(cases.size(), 1u);
}

// ---- measuring ----

UpdateContest tiny_contest(std::vector<Case> cases, std::uint32_t rounds) {
  return measure({.cases = std::move(cases),
                  .elements = kElements,
                  .rounds = rounds,
                  .most_seconds = 600,
                  .sample_seconds = 0},
                 [](const std::string&, double) {});
}

// Each is looked at after its first update: something was written, all of it finite.
TEST(OptimizerContest, EveryCombinationRunsWithAndWithoutChecksums) {
  const std::vector<Case> cases = cases_of({.threads = {1}, .all = true, .checksums = true}, 1);
  const UpdateContest contest = tiny_contest(cases, 1);
  ASSERT_EQ(contest.rows.size(), cases.size());
  EXPECT_EQ(contest.rounds, 1u);
  for (const UpdateRow& row : contest.rows) {
    EXPECT_EQ(row.seconds.size(), 1u) << text_of(row.of);
    EXPECT_GT(contest.share(row).median, 0) << text_of(row.of);
    EXPECT_EQ(contest.checksum_cost(row).has_value(), row.of.checksums) << text_of(row.of);
  }
}

TEST(OptimizerContest, RowsOverTheSameStreamsShareACeiling) {
  const UpdateContest contest = tiny_contest({{.rule = OptimizerRule::kAdamW},
                                              {.rule = OptimizerRule::kAdam},
                                              {.rule = OptimizerRule::kLion},
                                              {.rule = OptimizerRule::kAdamW, .threads = 2}},
                                             7);
  EXPECT_EQ(contest.rows[0].footprint, contest.rows[1].footprint);
  EXPECT_NE(contest.rows[0].footprint, contest.rows[2].footprint);
  EXPECT_NE(contest.rows[0].footprint, contest.rows[3].footprint);
  EXPECT_EQ(contest.footprints[0].bytes_per_parameter(), 14);
  for (const Footprint& footprint : contest.footprints) {
    for (const auto& seconds : footprint.seconds) EXPECT_EQ(seconds.size(), 7u);
  }
  EXPECT_TRUE(contest.share(contest.rows[0]).bounded);
}

TEST(OptimizerContest, TheCeilingIsTheKindWithTheHighestMedian) {
  UpdateContest contest;
  contest.elements = 1000;
  contest.kinds.resize(2);
  const Case of;
  contest.footprints.push_back({.streams = streams_of(of), .rows = {0}});
  contest.footprints[0].seconds = {{2e-6, 2e-6, 2e-6}, {1e-6, 1e-6, 5e-6}};
  contest.rows.push_back({.of = of, .seconds = {2e-6, 2e-6, 2e-6}});
  EXPECT_EQ(contest.best_kind(contest.footprints[0]), 1u);
  // 26 of 28 bytes in twice the time.
  EXPECT_DOUBLE_EQ(contest.share(contest.rows[0]).median, 26.0 / 28 / 2);
  EXPECT_DOUBLE_EQ(contest.ns_per_parameter(contest.rows[0]).median, 2);
  EXPECT_EQ(rows_below(contest, 0.5).size(), 1u);
  EXPECT_TRUE(rows_below(contest, 0.4).empty());
  EXPECT_TRUE(rows_below(contest, std::nullopt).empty());
}

TEST(OptimizerContest, ManyKindsOfCeilingTakeSeveralLines) {
  UpdateContest contest;
  contest.elements = 1000;
  for (const char* name : {"xor avx512", "multiply avx512", "xor avx512, abreast",
                           "multiply avx512, abreast", "xor avx2", "multiply avx2, abreast"})
    contest.kinds.push_back({.name = name});
  for (std::size_t best = 0; best < contest.kinds.size(); ++best) {
    Footprint footprint{.streams = streams_of(Case{}), .rows = {best}, .seconds = {}};
    for (std::size_t kind = 0; kind < contest.kinds.size(); ++kind)
      footprint.seconds.push_back({kind == best ? 1e-6 : 2e-6});
    contest.footprints.push_back(std::move(footprint));
    contest.rows.push_back({.of = {}, .footprint = best, .seconds = {2e-6}});
  }
  const std::string text = contest_text(contest, std::nullopt);
  EXPECT_NE(
      text.find("  the fastest of 6: xor avx512 (1), multiply avx512 (1), xor avx512, abreast "
                "(1),\n    multiply avx512, abreast (1), xor avx2 (1), multiply avx2, abreast "
                "(1)\n"),
      std::string::npos)
      << text;
}

TEST(OptimizerContest, APassInPlaceLeavesEveryByte) {
  const Case of{.moments = MomentCodec::kBlock8, .weight = MasterKind::kF32OfF16, .threads = 2};
  const std::vector<Stream> streams = streams_of(of);
  Gang gang;
  const StateMemory memory(streams, kElements, gang, 2);
  const auto bytes = [&] {
    std::vector<std::byte> all;
    for (const Stream& stream : streams)
      all.insert(all.end(), memory.data(stream), memory.data(stream) + stream.bytes(kElements));
    return all;
  };
  const std::vector<std::byte> before = bytes();
  for (const CeilingKind& kind : ceiling_kinds()) {
    // A multiplication keeps all numbers, and quiets codes that look like signalling NaNs.
    if (kind.name.starts_with("multiply")) continue;
    run_in_place(kind, streams, memory, gang, 2);
    EXPECT_TRUE(bytes() == before) << kind.name;
  }
}

TEST(OptimizerContest, TheGangCallsEachChunkOnceOnAnyNumberOfThreads) {
  Gang gang;
  for (const std::uint32_t threads : {1u, 2u, 4u}) {
    for (int pass = 0; pass < 200; ++pass) {
      std::vector<std::atomic<int>> calls(37);
      gang.run(threads, calls.size(), [&](std::uint64_t chunk) { ++calls[chunk]; });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1) << threads << " " << pass;
    }
  }
}

TEST(OptimizerContest, AChangedByteBetweenTwoUpdatesIsFound) {
  const Case of{.checksums = true};
  Gang gang;
  const StateMemory memory(streams_of(of), kElements, gang, 1);
  UpdatePass pass(of, memory);
  pass.prepare(gang);
  pass.run(gang);
  memory.data(streams_of(of)[1])[kElements] ^= std::byte{1};
  EXPECT_THROW(pass.run(gang), Error);
}

// ---- the program ----

const std::string kTiny = " --parameters 64k --rounds 6 --runtime 60s ";

TEST(BenchOptimizerProgram, ReportsItsRowsAsTextAndAsJson) {
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/report.json";
  const Ran ran = run_headrace(
      "bench optimizer --rule adamw,sgd --moments f32,8bit --weight bf16-split,f32 --gradient "
      "bf16 --simd scalar --threads 1 --checksum --json " +
      file + kTiny);
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* words :
       {"This takes at most about 60 s", "scalar, 1 thread\n", "with checksums of weight and state",
        "bf16-split bf16", "26.00", "share [95 %]", "times as long as without",
        "6 rounds of 65,536 parameters"})
    EXPECT_NE(ran.out.find(words), std::string::npos) << words << "\n" << ran.out;
  const json report = json::parse(std::ifstream(file));
  EXPECT_EQ(report["schema_version"], 1);
  EXPECT_EQ(report["program"], "headrace bench optimizer");
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_TRUE(report["command"].get<std::string>().starts_with("headrace bench optimizer --rule"))
      << report["command"];
  EXPECT_TRUE(report["machine"].contains("cpu"));
  EXPECT_TRUE(report["build"].contains("compiler"));
  EXPECT_EQ(report["parameters"], 65536);
  EXPECT_EQ(report["rounds"], 6);
  // AdamW in two codecs, SGD in none; two weights; with and without checksums.
  ASSERT_EQ(report["rows"].size(), 3u * 2 * 2);
  const json& row = report["rows"][0];
  EXPECT_EQ(row["rule"], "adamw");
  EXPECT_EQ(row["bytes_per_parameter"]["moved"], 26);
  EXPECT_EQ(row["seconds"].size(), 6u);
  EXPECT_TRUE(row["share"]["bounded"]);
  EXPECT_EQ(row["ceiling"]["footprint_bytes_per_parameter"], 14);
  EXPECT_GE(row["ceiling"]["passes"].size(), 3u);
  EXPECT_TRUE(report["rows"][11]["checksums"]);
  EXPECT_TRUE(report["rows"][11]["moments"].is_null());
  EXPECT_TRUE(report["rows"][11].contains("checksum_cost"));
}

TEST(BenchOptimizerProgram, NoLineOfItsTablesIsLongerThanAHundredColumns) {
  const Ran ran = run_headrace(
      "bench optimizer --rule adamw,sgd_momentum --moments f32,8bit --checksum --threads 2 "
      "--require share=10 --parameters 64k --rounds 1");
  ASSERT_EQ(ran.exit_code, 4) << ran.out;
  std::istringstream lines(ran.out.substr(ran.out.find(", 2 threads")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("WARNING")) continue;
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(BenchOptimizerProgram, TheReportOnStdoutIsAllThatIsThere) {
  const Ran ran = run_headrace("bench optimizer --rule sgd --json -" + kTiny + "2>/dev/null | cat");
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(json::parse(ran.out)["rows"].size(), 1u);
}

TEST(BenchOptimizerProgram, AMissedShareEndsWithFourAndNamesTheRow) {
  const Ran missed = run_headrace("bench optimizer --rule lion --require share=10" + kTiny);
  EXPECT_EQ(missed.exit_code, 4) << missed.out;
  EXPECT_NE(missed.out.find("MISSED  share=10: found"), std::string::npos) << missed.out;
  const Ran met = run_headrace("bench optimizer --rule lion --require share=0.1%" + kTiny);
  EXPECT_EQ(met.exit_code, 0) << met.out;
}

TEST(BenchOptimizerProgram, RefusesWhatItCannotMeasure) {
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--rule adamx",
            "--rule 'adamx' is not known; nothing was measured. Give one of: adamw"},
           {"--moments f16", "--moments 'f16' is not known"},
           {"--weight bf16,,f32", "has an empty item"},
           {"--gradient int8", "bf16, fp16, f32"},
           {"--simd sse", "scalar, avx2, avx512"},
           {"--threads 0", "--threads 0"},
           {"--parameters 64X", "Give something like 64M"},
           {"--parameters 1k", "Give from 64k to 1024G"},
           {"--parameters 1024G", "1,099,511,627,776 parameters of these rows need"},
           {"--rounds 0", "--rounds 0"},
           {"--runtime 0", "--runtime"},
           {"--require speed=1", "Give share=0.9"},
           {"--require share=x", "share"},
           {"--json /nothing/here.json", "/nothing/here.json"},
           {"--thraeds 1", "Did you mean --threads?"}}) {
    const Ran ran = run_headrace("bench optimizer " + words);
    EXPECT_EQ(ran.exit_code, 2) << words << ": " << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << words << ": " << ran.out;
  }
}

// Warming up so many rows of the scalar build takes longer than that on any machine.
TEST(BenchOptimizerProgram, ARunWithoutASingleMeasurementFails) {
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/report.json";
  const Ran ran = run_headrace(
      "bench optimizer --all --simd scalar --threads 1 --parameters 4M --runtime 1s --json " +
      file);
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  EXPECT_NE(ran.out.find("192 of 192 rows were not measured"), std::string::npos) << ran.out;
  EXPECT_EQ(json::parse(std::ifstream(file))["exit_code"], 1);
}

TEST(BenchOptimizerProgram, HelpSaysWhatItTakes) {
  const Ran ran = run_headrace("bench optimizer --help");
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* option :
       {"--rule", "--moments", "--weight", "--gradient", "--simd", "--threads", "--parameters",
        "--rounds", "--runtime", "--json", "--require", "--checksum", "--all", "--quick"})
    EXPECT_NE(ran.out.find(option), std::string::npos) << option;
}

TEST(BenchOptimizerProgram, ASignalEndsItWith128AndTheSignal) {
  const testing::TemporaryDirectory folder;
  const std::string started = folder.string() + "/started";
  const auto announced = [&] {
    std::ifstream file(started);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("at most about") != std::string::npos;
  };
  const int exit_code =
      exit_code_after(SIGINT,
                      "bench optimizer --rule sgd --parameters 64k --rounds 10000 --runtime 10m >" +
                          started + " 2>&1",
                      announced);
  EXPECT_EQ(exit_code, 128 + SIGINT);
}
}  // namespace
}  // namespace headrace::tools::bench_optimizer_test
