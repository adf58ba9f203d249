// SPDX-License-Identifier: Apache-2.0
// bench_compare_test: a measurement as JSON and back, and what a comparison of two of them says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "bench/compare.hpp"
#include "bench/report_json.hpp"
#include "bench/unpaired_ratio.hpp"
#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"
#include "tools/bench_example.hpp"

namespace headrace::tools::bench_compare_test {
namespace {
using bench_example::cell_of;
using bench_example::example;

Json through_text(const Measurement& measurement) {
  return Json::parse(dump(to_json(measurement, nullptr)));
}

TEST(ReportJson, ComesBackAsCompareNeedsIt) {
  Measurement before = example();
  before.cells[0].workload.jobs = 3;
  before.cells[0].workload.queue = IoQueueKind::kThreads;
  before.cells[0].workload.register_buffers = false;
  before.cells[1].samples.clear();
  before.cells[7].samples[0].drive_bytes = {1, 2};
  before.warnings = {"one"};
  before.verification.mismatches = 2;
  const Measurement after = measurement_of(through_text(before), "x.json");
  EXPECT_EQ(after.command, before.command);
  EXPECT_EQ(after.machine[1].value, "Linux 6.1");
  EXPECT_EQ(after.drives[0].model, "ACME 990");
  EXPECT_EQ(after.drives[0].file_bytes, 4ull << 30);
  EXPECT_EQ(after.rounds, 6u);
  EXPECT_EQ(after.verification.mismatches, 2u);
  EXPECT_EQ(after.warnings, before.warnings);
  ASSERT_EQ(after.cells.size(), before.cells.size());
  for (std::size_t i = 0; i < after.cells.size(); ++i) {
    EXPECT_EQ(after.cells[i].workload, before.cells[i].workload) << i;
    EXPECT_EQ(after.cells[i].rates(), before.cells[i].rates()) << i;
  }
  EXPECT_EQ(after.cells[7].samples[0].drive_bytes, (std::vector<std::uint64_t>{1, 2}));
}

TEST(ReportJson, HasFiosNamesWhereTheThingIsTheSame) {
  const Json json = through_text(example());
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["program"], "headrace bench");
  const Json& both = json["jobs"][7];
  EXPECT_EQ(both["jobname"], "rw 4M x 4");
  EXPECT_EQ(both["job options"]["rw"], "rw");
  EXPECT_EQ(both["job options"]["bs"], "4M");
  EXPECT_EQ(both["job options"]["iodepth"], "4");
  EXPECT_EQ(json["jobs"][8]["job options"]["ioengine"], "io_uring");
  const Measurement m = example();
  for (const char* direction : {"read", "write"}) {
    const Json& half = both[direction];
    EXPECT_EQ(half["runtime"], 6000);
    EXPECT_EQ(half["total_ios"].get<std::uint64_t>() * (4 << 20), half["io_bytes"]);
    EXPECT_NEAR(half["bw_bytes"].get<double>(), half["io_bytes"].get<double>() / 6, 1);
    EXPECT_EQ(half["clat_ns"]["N"], half["total_ios"]);
    EXPECT_LE(half["clat_ns"]["percentile"]["50.000000"],
              half["clat_ns"]["percentile"]["99.900000"]);
    EXPECT_LE(half["clat_ns"]["percentile"]["99.990000"], half["clat_ns"]["max"]);
  }
  // Nothing was written: no latency, and no percentile that would be made up.
  EXPECT_EQ(json["jobs"][0]["write"]["total_ios"], 0);
  EXPECT_FALSE(json["jobs"][0]["write"]["clat_ns"].contains("percentile"));
  EXPECT_DOUBLE_EQ(both["bytes_per_second"]["median"], m.cells[7].rate().median);
  EXPECT_EQ(both["bytes_per_second"]["bounded"], true);
  EXPECT_EQ(json["jobs"][6]["bytes_per_second"]["bounded"], false);
  EXPECT_EQ(json["recommended"]["settings"]["headrace"]["io_block_bytes"], 4 << 20);
  EXPECT_EQ(json["comparisons"][0]["theirs"], "rw 4M x 4, fio io_uring");
}

TEST(ReportJson, HoldsSecondsCliffsAndRequirements) {
  Measurement m = example();
  m.cells[6].samples[0].seconds_of = {{1, 1, 0, 100}, {2, 1, 0, 50}};
  m.cliffs.push_back({"write 4M x 4", 1.5, 77, 2e9, 1e9});
  const Required required = judge(parse_thresholds("read=1GB/s,randread=1GB/s"), m);
  const Json json = to_json(m, &required);
  EXPECT_EQ(json["jobs"][6]["samples"][0]["seconds_of"][1]["written_bytes"], 50);
  EXPECT_EQ(json["cache_cliffs"][0]["after_bytes"], 77);
  EXPECT_EQ(json["thresholds"][0]["met"], true);
  EXPECT_EQ(json["thresholds"][1]["met"], false);
  EXPECT_TRUE(json["thresholds"][1]["found"].is_null());
}

TEST(ReportJson, BytesThatAreNoUtf8DoNotStopIt) {
  Measurement m = example();
  m.drives[0].path = "/mnt/\xff<&\"'\x01";
  const Measurement after = measurement_of(through_text(m), "x.json");
  EXPECT_EQ(after.drives[0].path, "/mnt/\xef\xbf\xbd<&\"'\x01");
}

std::string refusal(const Json& json) {
  try {
    measurement_of(json, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(ReportJson, WhatIsMissingOrWrongIsNamed) {
  const Json whole = through_text(example());
  const auto changed = [&](const std::string& pointer, Json value) {
    Json json = whole;
    const Json::json_pointer at(pointer);
    if (value.is_discarded()) {
      json[at.parent_pointer()].erase(at.back());
    } else {
      json[at] = std::move(value);
    }
    return refusal(json);
  };
  const Json gone(Json::value_t::discarded);
  EXPECT_EQ(refusal(whole), "");
  EXPECT_EQ(changed("/jobs/2/samples/1/seconds", gone),
            "x.json: jobs[2].samples[1].seconds is missing; nothing was compared. Give a file that "
            "headrace bench --json wrote.");
  for (const auto& [pointer, value, part] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"/schema_version", 2, "schema_version is 2 where this version reads 1"},
           {"/schema_version", gone, "schema_version is missing"},
           {"/program", "headrace tune", "program is 'headrace tune', not 'headrace bench'"},
           {"/jobs", 7, "jobs is number where an array is needed"},
           {"/jobs/0", nullptr, "jobs[0] is null where an object is needed"},
           {"/jobs/0/workload/pattern", "trim", "jobs[0].workload.pattern is no pattern"},
           {"/jobs/0/workload/queue", "x", "jobs[0].workload.queue is 'x', which is not known"},
           {"/jobs/0/workload/depth", 1ull << 40, "jobs[0].workload.depth is above"},
           {"/jobs/0/samples/0/seconds", 0, "seconds is 0"},
           {"/jobs/0/samples/0/seconds", 1e308, "seconds is 1e+308, as no sample takes"},
           {"/jobs/0/samples/0/seconds", 5e-324, "as no sample takes"},
           {"/jobs/0/samples/0/seconds", 1.8e19, "as no sample takes"},
           {"/jobs/0/samples/0/seconds", "1", "seconds is string where a number is needed"},
           {"/jobs/0/samples/0/read_bytes", -1, "read_bytes is not a whole number"},
           {"/jobs/0/samples/0/read_bytes", 0, "jobs[0].samples[0] moved no byte"},
           {"/machine/cpu", 3, "machine.cpu is number where text is needed"},
           {"/drives/0/direct", 1, "drives[0].direct is number where true or false is needed"}}) {
    EXPECT_NE(changed(pointer, value).find(part), std::string::npos)
        << pointer << ": " << changed(pointer, value);
  }
  EXPECT_NE(refusal(Json::array()).find("the document is array where an object is needed"),
            std::string::npos);
  Json failed = document("headrace bench");
  failed["error"] = {{"message", "the drive is gone"}};
  EXPECT_NE(refusal(failed).find("error says that the run failed: the drive is gone"),
            std::string::npos);
}

// ---- the interval ----

// Ratios that are all different, so that a rank is seen.
void expect_rank(std::size_t m, std::size_t n, std::size_t rank) {
  std::vector<double> a, b, ratios;
  for (std::size_t i = 0; i < m; ++i) a.push_back(1 + 0.001 * static_cast<double>(i));
  for (std::size_t j = 0; j < n; ++j) b.push_back(1 + 0.1 * static_cast<double>(j));
  for (const double of : b) {
    for (const double to : a) ratios.push_back(of / to);
  }
  std::ranges::sort(ratios);
  const MedianInterval interval = unpaired_ratio(a, b);
  EXPECT_EQ(interval.bounded, rank > 0) << m << " and " << n;
  EXPECT_EQ(interval.low, ratios[rank == 0 ? 0 : rank - 1]) << m << " and " << n;
  EXPECT_EQ(interval.high, ratios[ratios.size() - std::max<std::size_t>(rank, 1)]);
}

TEST(UnpairedRatio, HasTheRanksOfTheTablesOfTheRankSumTest) {
  expect_rank(1, 1, 0);
  expect_rank(3, 4, 0);
  expect_rank(4, 4, 1);  // critical value 0
  expect_rank(5, 5, 3);
  expect_rank(4, 10, 6);
  expect_rank(10, 10, 24);
  expect_rank(20, 20, 128);
}

TEST(UnpairedRatio, OfManyValuesIsThatOfTheNormalApproximation) {
  // 60 and 60 are counted out, 70 and 70 approximated.
  std::vector<double> a(60), b(70);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = 1 + 0.001 * static_cast<double>(i);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = 1 + 0.001 * static_cast<double>(i);
  const MedianInterval exact = unpaired_ratio(a, {b.begin(), b.begin() + 60});
  EXPECT_DOUBLE_EQ(exact.median, 1);
  const MedianInterval near = unpaired_ratio(b, b);
  EXPECT_DOUBLE_EQ(near.median, 1);
  EXPECT_TRUE(near.bounded);
  EXPECT_NEAR(near.half_width(), exact.half_width(), 0.0015);
}

// A seed is drawn anew each time: 2,000 intervals hold less than 93 % once in 10^4 runs.
TEST(UnpairedRatio, HoldsTheTrueRatioAtLeast95TimesIn100) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> noise(0, 0.2);
  int held = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> a(6), b(8);
    for (double& value : a) value = noise(random);
    for (double& value : b) value = 1.3 * noise(random);
    const MedianInterval interval = unpaired_ratio(a, b);
    if (interval.low <= 1.3 && 1.3 <= interval.high) ++held;
  }
  EXPECT_GE(held, 1860);
}

// ---- the comparison ----

Measurement scaled(Measurement m, Pattern pattern, double by) {
  for (Cell& cell : m.cells) {
    if (cell.workload.pattern != pattern) continue;
    for (Sample& sample : cell.samples) sample.seconds /= by;
  }
  return m;
}

TEST(Compare, TellsWhatIsSlowerBeyondNoise) {
  const Measurement a = example();
  const ComparedRuns runs = compare_runs(a, scaled(a, Pattern::kRead, 0.9));
  ASSERT_EQ(runs.cells.size(), 9u);
  EXPECT_EQ(runs.cells[0].workload, "read 1M x 1");
  EXPECT_TRUE(runs.cells[0].told_apart());
  EXPECT_NEAR(runs.cells[0].ratio.median, 0.9, 0.001);
  EXPECT_FALSE(runs.cells[7].told_apart()) << "of the same values";
  EXPECT_EQ(cells_below(runs, 0.05).size(), 6u);
  EXPECT_TRUE(cells_below(runs, 0.15).empty());
  EXPECT_TRUE(cells_below(runs, std::nullopt).empty());
  EXPECT_TRUE(runs.cautions.empty());
  const std::string text = compared_text(runs, std::nullopt);
  EXPECT_TRUE(text.starts_with(
      "  GB/s, median of rounds                  A       B   B / A [95 %]\n"
      "  read 1M x 1                          2.02    1.82   0.900 [0.887, 0.913]   slower by 10.0 "
      "%\n"))
      << text;
}

TEST(Compare, FewRoundsNeverFail) {
  const Measurement a = example();
  const ComparedRuns runs = compare_runs(a, scaled(a, Pattern::kWrite, 0.3));
  EXPECT_TRUE(cells_below(runs, 0.05).empty());
  EXPECT_NE(compared_text(runs, 0.05).find("too few rounds to tell"), std::string::npos);
  EXPECT_NE(compared_text(runs, 0.05).find("no cell is more than 5 % slower in B"),
            std::string::npos);
}

TEST(Compare, NoiseAsWideAsTheDifferenceDoesNotFail) {
  Measurement a, b;
  a.cells.push_back(cell_of({}, {1.0, 2.0, 1.5, 0.8, 2.2, 1.4}));
  b.cells.push_back(cell_of({}, {0.9, 1.8, 1.3, 0.7, 1.9, 1.2}));
  const ComparedRuns runs = compare_runs(a, b);
  EXPECT_LT(runs.cells[0].ratio.median, 0.95);
  EXPECT_TRUE(cells_below(runs, 0.05).empty());
  EXPECT_NE(compared_text(runs, 0.05).find("not told from noise"), std::string::npos);
}

TEST(Compare, NamesWhatOneRunAloneHasAndWhatElseDiffers) {
  const Measurement a = example();
  Measurement b = a;
  b.cells[0].samples.clear();
  b.cells[1].workload.depth = 5;
  b.machine[1].value = "Linux 6.2";
  b.drives[0].model = "ACME 991";
  b.verification.mismatches = 1;
  b.cells[2].queue = b.cells[3].queue = "threads";
  const ComparedRuns runs = compare_runs(a, b);
  EXPECT_EQ(runs.only_in_a, (std::vector<std::string>{"read 1M x 1", "read 1M x 4"}));
  EXPECT_EQ(runs.only_in_b, (std::vector<std::string>{"read 1M x 5"}));
  EXPECT_EQ(
      runs.cautions,
      (std::vector<std::string>{
          "not the same kernel: 'Linux 6.1' in A, 'Linux 6.2' in B",
          "not the same drives: '/mnt/nvme0 (ACME 990, ext4)' in A, '/mnt/nvme0 (ACME 991, ext4)' "
          "in B",
          "B had data that came back other than written",
          "not the same queue: 'uring' in A, 'threads' in B"}));
}

// ---- the command ----

struct Ran {
  int exit_code;
  std::string out, err;
};
Ran run(std::vector<std::string> words) {
  words.insert(words.begin(), "compare");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = compare(static_cast<int>(argv.size()), argv.data());
  std::string out = ::testing::internal::GetCapturedStdout();
  return {exit_code, out, ::testing::internal::GetCapturedStderr()};
}

class CompareCommand : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return (folder_.path() / name).string();
  }
  const headrace::testing::TemporaryDirectory folder_;
  const std::string a_ = write("a.json", dump(to_json(example(), nullptr)));
  const std::string slower_ =
      write("b.json", dump(to_json(scaled(example(), Pattern::kRead, 0.9), nullptr)));
};

TEST_F(CompareCommand, EndsWithFourWhereACellIsBelowAndNamesIt) {
  const Ran passed = run({a_, slower_});
  EXPECT_EQ(passed.exit_code, 0) << passed.err;
  const std::string report = folder_.string() + "/report.json";
  const Ran missed = run({a_, slower_, "--fail-below", "5%", "--json", report});
  EXPECT_EQ(missed.exit_code, 4) << missed.err;
  EXPECT_NE(missed.out.find("BELOW: read 4M x 16 is 10.0 % slower in B, beyond noise; 5 % were "
                            "allowed"),
            std::string::npos)
      << missed.out;
  const Json json = Json::parse(std::ifstream(report));
  EXPECT_EQ(json["exit_code"], 4);
  EXPECT_EQ(json["program"], "headrace bench compare");
  EXPECT_EQ(json["jobs"][0]["below"], true);
  EXPECT_EQ(json["jobs"][7]["below"], false);
  EXPECT_EQ(run({slower_, a_, "--fail-below=5%"}).exit_code, 0) << "faster";
  EXPECT_EQ(run({a_, slower_, "--fail-below=12%"}).exit_code, 0);
  EXPECT_EQ(Json::parse(run({a_, a_, "--json", "-"}).out)["exit_code"], 0);
}

TEST_F(CompareCommand, RefusesWithCauseConsequenceAndFix) {
  Measurement other = example();
  for (Cell& cell : other.cells) cell.workload.depth = 99;
  const std::string nothing_alike = write("c.json", dump(to_json(other, nullptr)));
  const std::string cut = write("cut.json", dump(to_json(example(), nullptr)).substr(0, 999));
  for (const auto& [words, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{a_}, "B is required; nothing was compared."},
           {{a_, slower_, "--fail-below", "5"}, "--fail-below '5' is no share"},
           {{a_, slower_, "--fail-below", "x%"}, "--fail-below 'x' is not a number"},
           {{a_, slower_, "--fail-bellow", "5%"}, "Did you mean --fail-below?"},
           {{a_, "/nothing/here"}, "/nothing/here: cannot be read: ENOENT"},
           {{a_, folder_.string()}, "is a directory; nothing was compared."},
           {{a_, cut}, "cut.json: is no JSON: wrong at byte "},
           {{write("d.json", "{}"), a_},
            "d.json: schema_version is missing; nothing was compared. "
            "Give a file that headrace bench --json wrote."},
           {{a_, nothing_alike}, "have no workload in common; nothing was compared. Run"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << part << "\n" << ran.err;
    EXPECT_TRUE(ran.err.starts_with("headrace bench compare: ")) << ran.err;
  }
  EXPECT_EQ(run({"--help"}).exit_code, 0);
}
}  // namespace
}  // namespace headrace::tools::bench_compare_test
