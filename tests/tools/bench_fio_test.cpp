// SPDX-License-Identifier: Apache-2.0
// bench_fio_test: the words that fio is given, and what is made of its answer.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "bench/as_fio.hpp"
#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::tools::bench_fio_test {
namespace {
bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

TEST(FioArguments, SayTheSameWorkInFiosWords) {
  const std::vector<std::string> words =
      fio_arguments({.pattern = Pattern::kMixed, .block_bytes = 4 << 20, .depth = 8, .jobs = 2},
                    "/mnt/x", 1 << 20, 100 << 20);
  for (const char* word :
       {"--filename=/mnt/x", "--rw=rw", "--bs=4M", "--iodepth=8", "--ioengine=io_uring",
        "--direct=1", "--offset=1048576", "--numjobs=2", "--rwmixread=50", "--overwrite=1",
        "--scramble_buffers=0", "--thread", "--group_reporting", "--fixedbufs=1",
        "--output-format=json+", "--allow_file_create=0"})
    EXPECT_TRUE(has(words, word)) << word;
  // Whole blocks each: 12 of the 25 blocks.
  EXPECT_TRUE(has(words, "--size=50331648"));
  EXPECT_TRUE(has(words, "--offset_increment=50331648"));
  EXPECT_FALSE(has(words, "--readonly"));
}

TEST(FioArguments, ReadsMayNotWrite) {
  const std::vector<std::string> words =
      fio_arguments({.pattern = Pattern::kRandRead}, "/mnt/x", 0, 100 << 20);
  EXPECT_TRUE(has(words, "--readonly"));
  EXPECT_TRUE(has(words, "--randrepeat=0"));
  EXPECT_FALSE(has(words, "--overwrite=1"));
}

TEST(FioArguments, ASeedFixesTheMixAndWithoutOneItIsAnotherEachTime) {
  const Workload mixed{.pattern = Pattern::kMixed};
  EXPECT_TRUE(has(fio_arguments(mixed, "x", 0, 1 << 30, 7), "--randseed=7"));
  EXPECT_TRUE(has(fio_arguments(mixed, "x", 0, 1 << 30), "--randrepeat=0"));
  EXPECT_FALSE(has(fio_arguments({}, "x", 0, 1 << 30, 7), "--randseed=7")) << "nothing is drawn";
}

TEST(FioArguments, TheQueueDecidesTheEngine) {
  EXPECT_TRUE(
      has(fio_arguments({.queue = IoQueueKind::kAio}, "x", 0, 1 << 30), "--ioengine=libaio"));
  const auto threads =
      fio_arguments({.depth = 8, .jobs = 2, .queue = IoQueueKind::kThreads}, "x", 0, 1 << 30);
  EXPECT_TRUE(has(threads, "--ioengine=psync"));
  EXPECT_TRUE(has(threads, "--numjobs=16"));
  EXPECT_TRUE(has(threads, "--iodepth=1"));
  EXPECT_FALSE(has(fio_arguments({.register_buffers = false}, "x", 0, 1 << 30), "--fixedbufs=1"));
}

TEST(FioArguments, RefusesMoreJobsThanBlocks) {
  try {
    fio_arguments({.block_bytes = 1 << 20, .jobs = 5}, "x", 0, 4 << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "fio would share 4 MiB among 5 jobs, less than a block of 1M each; it was not "
                 "run. Give a larger --size, or fewer --jobs.");
  }
}

TEST(FioCommand, IsQuotedForAShellAndForFio) {
  const std::string line = fio_command({}, "/mnt/a b/it's:here", 0, 1 << 30);
  EXPECT_TRUE(line.starts_with("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=headrace "))
      << line;
  EXPECT_NE(line.find(R"( '--filename=/mnt/a b/it'\''s\:here' )"), std::string::npos) << line;
}

Json answer() {
  return Json::parse(R"({"fio version": "fio-3.33", "jobs": [{
    "error": 0, "usr_cpu": 10.0, "sys_cpu": 30.0, "job_runtime": 2000,
    "read": {"io_bytes": 3145728, "bw_bytes": 1572864, "total_ios": 3,
             "clat_ns": {"min": 1000, "max": 900000, "mean": 1.0, "N": 3,
                         "bins": {"1010": 1, "50000": 1, "910000": 1}}},
    "write": {"io_bytes": 1048576, "bw_bytes": 1048576, "total_ios": 1,
              "clat_ns": {"min": 7, "max": 7, "N": 1, "bins": {"8": 1}}}}]})");
}

TEST(SampleOfFio, TakesBytesTimesAndEveryRequestsLatency) {
  const TimedSample sample = sample_of_fio(answer(), 3);
  EXPECT_EQ(sample.round, 3u);
  EXPECT_EQ(sample.read_bytes, 3145728u);
  EXPECT_EQ(sample.written_bytes, 1048576u);
  EXPECT_EQ(sample.reads, 3u);
  EXPECT_EQ(sample.writes, 1u);
  EXPECT_DOUBLE_EQ(sample.seconds, 2);  // the longer direction's
  EXPECT_DOUBLE_EQ(sample.cpu_seconds, 0.8);
  EXPECT_EQ(sample.read_latency.count(), 3u);
  EXPECT_EQ(sample.read_latency.min_ns(), 1000u);
  EXPECT_EQ(sample.read_latency.max_ns(), 900000u);
  EXPECT_NEAR(static_cast<double>(sample.read_latency.quantile_ns(0.5)), 50000, 1700);
  EXPECT_EQ(sample.write_latency.count(), 1u);
  EXPECT_EQ(sample.write_latency.max_ns(), 7u);
}

template <class Call>
void expect_error(Code code, const std::string& part, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown, wanted: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(SampleOfFio, TellsWhatIsMissingAndWhatFailed) {
  const auto with = [](const auto& change) {
    return [change] {
      Json json = answer();
      change(json["jobs"][0]);
      sample_of_fio(json, 0);
    };
  };
  expect_error(Code::kInvalidArgument,
               "fio's output: jobs[0].read.clat_ns.N is missing; its sample",
               with([](Json& job) { job["read"]["clat_ns"].erase("N"); }));
  expect_error(Code::kInvalidArgument, "jobs[0].read.clat_ns.bins is missing",
               with([](Json& job) { job["read"]["clat_ns"].erase("bins"); }));
  expect_error(Code::kInvalidArgument, "jobs[0].usr_cpu is string where a number",
               with([](Json& job) { job["usr_cpu"] = "10 %"; }));
  expect_error(Code::kInvalidArgument, "the key 'x', which is no number",
               with([](Json& job) { job["read"]["clat_ns"]["bins"]["x"] = 1; }));
  expect_error(Code::kIo, "ENOSPC", with([](Json& job) { job["error"] = ENOSPC; }));
  expect_error(Code::kIo, "fio moved nothing",
               with([](Json& job) { job["read"]["io_bytes"] = job["write"]["io_bytes"] = 0; }));
  expect_error(Code::kInvalidArgument, "jobs is missing", [] { sample_of_fio(Json::object(), 0); });
}

TEST(FioJson, IsFoundBehindWarningsAndElseFiosWordsAreTold) {
  EXPECT_EQ(fio_json("fio: a {warning}\n{\"jobs\": []}\n", "", 0), Json::parse(R"({"jobs": []})"));
  expect_error(Code::kIo,
               "fio ended with 1; its sample is missing. Run what headrace bench "
               "--as-fio prints to see what fio says, or leave out --compare fio. It "
               "said: fio: engine libaio not loadable",
               [] { fio_json("{}", "fio: engine libaio not loadable\n", 1); });
  expect_error(Code::kIo, "fio printed no JSON document", [] { fio_json("hello", "", 0); });
  expect_error(Code::kIo, "It said: nothing", [] { fio_json("", "", 0); });
}

// Skipped where fio is not installed. What the pilot relies on to find a seed that mixes evenly.
TEST(FioArguments, OneSeedGivesOneMixInFioItself) {
  if (std::system("fio --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no fio here";
  const headrace::testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/file";
  std::ofstream(path) << std::string(4 << 20, 'x');
  const Workload workload{.pattern = Pattern::kMixed,
                          .block_bytes = 1 << 16,
                          .depth = 4,
                          .queue = IoQueueKind::kThreads};
  const auto reads_of = [&](std::uint32_t seed) {
    std::string line;
    for (const std::string& word : fio_arguments(workload, path, 0, 4 << 20, seed))
      line += word + " ";
    std::FILE* const pipe = ::popen(line.c_str(), "r");
    std::string output;
    for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) output += static_cast<char>(byte);
    const int status = ::pclose(pipe);
    return sample_of_fio(fio_json(output, "", WEXITSTATUS(status)), 0).reads;
  };
  std::set<std::uint64_t> mixes;
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const std::uint64_t reads = reads_of(seed);
    EXPECT_EQ(reads_of(seed), reads) << "seed " << seed;
    mixes.insert(reads);
  }
  EXPECT_GT(mixes.size(), 1u) << "another seed, another mix";
}

// Skipped where fio is not installed.
TEST(FioCommand, FioItselfTakesItAndItsAnswerIsASample) {
  if (std::system("fio --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no fio here";
  const headrace::testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/with space:and colon";
  std::ofstream(path) << std::string(8 << 20, 'x');
  for (const Workload& workload : {Workload{.pattern = Pattern::kRandRead,
                                  .block_bytes = 1 << 16,
                                  .depth = 4,
                                  .jobs = 2,
                                  .queue = IoQueueKind::kThreads},
                                   Workload{.pattern = Pattern::kMixed,
                                   .block_bytes = 1 << 16,
                                   .depth = 4,
                                   .queue = IoQueueKind::kAio}}) {
    std::string line = fio_command(workload, path, 0, 8 << 20);
    line += " --allow_file_create=0 --output-format=json+ 2>/dev/null";
    std::FILE* const pipe = ::popen(line.c_str(), "r");
    std::string output;
    for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) output += static_cast<char>(byte);
    const int status = ::pclose(pipe);
    const Json json = fio_json(output, "", WEXITSTATUS(status));
    const TimedSample sample = sample_of_fio(json, 0);
    const std::uint64_t blocks = workload.pattern == Pattern::kMixed ? 256 : 128;  // of 64 KiB
    EXPECT_EQ(sample.bytes(), blocks << 16) << line;
    EXPECT_EQ(sample.read_latency.count() + sample.write_latency.count(), blocks) << line;
    EXPECT_EQ(json["jobs"][0]["job options"]["rw"], name_of(workload.pattern));
  }
}
}  // namespace
}  // namespace headrace::tools::bench_fio_test
