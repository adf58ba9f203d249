// SPDX-License-Identifier: Apache-2.0
// bench_program_test: `headrace bench` as a user runs it: what it refuses, reports and leaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/temporary_directory.hpp"
#include "tools/expect_part.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::bench_program_test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// A few dozen MiB, in about a second.
const std::string kSmall = " --size 64M --max-write 1G --runtime 10 --rounds 6 ";

class BenchProgram : public ::testing::Test {
 protected:
  std::string drive() const { return drive_.string(); }
  std::string in_results(const std::string& name) const { return results_.string() + "/" + name; }
  // Regular files below the drive's directory.
  std::vector<std::string> left() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(drive()))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    return files;
  }
  const testing::TemporaryDirectory drive_, results_;
};

TEST_F(BenchProgram, MeasuresReportsAndLeavesTheUsersFilesAlone) {
  const std::string mine = drive() + "/bench.data";
  std::ofstream(mine) << "mine";
  const std::string report = in_results("a.json");
  const Ran ran = run_headrace("bench --rw read,rw --bs 256k --iodepth 4,8" + kSmall + "--json " +
                               report + " " + drive());
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* words : {"at most about 10 s and writes at most 1 GiB", "verified: 16,384 pages",
                            "`headrace tune` finds them"})
    EXPECT_NE(ran.out.find(words), std::string::npos) << words << "\n" << ran.out;
  const json document = json::parse(std::ifstream(report));
  EXPECT_EQ(document["verification"]["mismatches"], 0);
  std::string content;
  std::getline(std::ifstream(mine), content);
  EXPECT_EQ(content, "mine");
  EXPECT_EQ(left(), std::vector<std::string>{mine});
}

TEST_F(BenchProgram, RefusesWhatItCannotMeasureBeforeItWritesAnything) {
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--rw trim " + drive(), "--rw 'trim' is not known"},
           {"--bs 3k " + drive(), "--bs 3k is out of range"},
           {"--bs 1M,,2M " + drive(), "has an empty item"},
           {"--iodepht 3 " + drive(), "Did you mean --iodepth?"},
           {"--queue urnig " + drive(), "uring"},
           {"--size 64M --bs 64M " + drive(), "fewer than two blocks"},
           {"--size 64M --bs 4M --rw rw --iodepth 32 " + drive(),
            "some would read and write one block at the same time"},
           {"--size 1G --max-write 128M " + drive(), "Give --max-write"},
           {"--engine " + drive(), "Run update_bench --nvme DIRECTORY"},
           {"--sustained " + drive(), "Give --rw write --size 16G --rounds 0"},
           {"--require read=6GB/s " + drive(), "jq -e '.ceiling_bytes_per_second.read"},
           {"--with-update-load 2 " + drive(), "Run `headrace bench optimizer` beside"},
           {"--cpus 0-3 " + drive(), "Run taskset -c LIST headrace bench"},
           {"--numa-node 0 " + drive(), "Run numactl --cpunodebind=NODE"},
           {"--runtime 1 " + drive(), "one round of 22 workloads needs at least"},
           {"--runtime 5 --compare fio " + drive(), "which has to start each time, needs at least"},
           {drive() + " " + drive() + "/.", "is the same directory as"},
           {"--until 0 " + drive(), "--until"},
           {"--verify maybe " + drive(), "stamps"},
           {"/nothing/here", "/nothing/here: ENOENT"},
           {"/proc/self/task", "takes no files"},
           {"--rw write " + std::string(HEADRACE_PROGRAM), "only read"},
           {"--rw read /dev/null", "neither a directory nor a block device"},
           {"--json /nothing/here.json " + drive(), "/nothing/here.json"},
           {"--report a.html " + drive(), "run `python3 scripts/report page FILE`"},
           {"compare a.json b.json", "Run `python3 scripts/report compare A.json B.json`"}}) {
    const Ran ran = run_headrace("bench " + words);
    EXPECT_EQ(ran.exit_code, 2) << words << ": " << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << words << ": " << ran.out;
    EXPECT_TRUE(left().empty()) << words;
  }
}

TEST_F(BenchProgram, TwoDirectoriesOfOneFileSystemShareADriveAndItsRoom) {
  fs::create_directory(drive() + "/a");
  fs::create_directory(drive() + "/b");
  const std::string both = drive() + "/a " + drive() + "/b";
  const Ran ran = run_headrace("bench --rw read" + kSmall + both);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  // Broken into lines by the length of the paths.
  const std::string flat = std::regex_replace(ran.out, std::regex("\\s+"), " ");
  EXPECT_NE(flat.find("are on one file system, so they"), std::string::npos) << ran.out;

  // One file of the size would fit, and two do not.
  const auto space = fs::space(drive());
  const std::uint64_t most = (space.available - space.capacity / 20) >> 20;
  if (space.available <= space.capacity / 20 || most < 256) GTEST_SKIP() << "no room here";
  const Ran full = run_headrace("bench --rw read --max-write 1000T --size " +
                                std::to_string(most * 2 / 3) + "M " + both);
  EXPECT_EQ(full.exit_code, 2) << full.out;
  EXPECT_NE(full.out.find("and 2 files of "), std::string::npos) << full.out;
  EXPECT_TRUE(left().empty());
}

// Skipped where fio is not installed.
TEST_F(BenchProgram, AComparisonWithFioMixesAlikeInEveryRoundAndSaysWhatARoundMoved) {
  if (std::system("fio --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no fio here";
  const std::string report = in_results("a.json");
  const Ran ran = run_headrace(
      "bench --rw rw --bs 1M --iodepth 4 --compare fio --size 64M --runtime 15 "
      "--rounds 2 --json " +
      report + " " + drive());
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find(" per round, in "), std::string::npos) << ran.out;
  const json jobs = json::parse(std::ifstream(report))["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  ASSERT_EQ(jobs[1]["samples"].size(), 2u);
  EXPECT_EQ(jobs[1]["samples"][0]["reads"], jobs[1]["samples"][1]["reads"]);
}

TEST_F(BenchProgram, AFileThatTakesAllTheTimeLeavesNothingMeasuredAndNoFile) {
  const std::string report = in_results("a.json");
  const Ran ran =
      run_headrace("bench --rw read --size 2G --runtime 1 --json " + report + " " + drive());
  // 2 GiB take more than half a second on most drives.
  ASSERT_TRUE(ran.exit_code == 0 || ran.exit_code == 1) << ran.exit_code << ran.out;
  const json document = json::parse(std::ifstream(report));
  if (ran.exit_code == 1) {
    EXPECT_EQ(document["error"]["code"], "kNothingMeasured");
    EXPECT_NE(ran.out.find("Give --runtime "), std::string::npos) << ran.out;
  } else {
    EXPECT_GE(document["rounds"], 1);
  }
  EXPECT_TRUE(left().empty());
}

TEST_F(BenchProgram, ReadsAFileOfTheUsersAndSaysWhatThatMeans) {
  const std::string file = in_results("large.bin");
  std::ofstream(file) << std::string(64 << 20, 'x');
  const Ran ran = run_headrace("bench --rw read,randread" + kSmall + file);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const std::string said = in_one_line(ran.out);
  EXPECT_NE(said.find("is only read"), std::string::npos) << ran.out;
  EXPECT_NE(said.find("writes nothing"), std::string::npos) << ran.out;
}

TEST_F(BenchProgram, WarnsOfAFileSystemThatIsMemory) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const std::string folder = "/dev/shm/headrace-bench-test-" + std::to_string(::getpid());
  fs::create_directory(folder);
  const Ran ran = run_headrace("bench --rw read" + kSmall + folder);
  fs::remove_all(folder);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("which is memory"), std::string::npos) << ran.out;
}

TEST_F(BenchProgram, PrintsTheSameWorkInFiosWords) {
  const Ran ran = run_headrace("bench --as-fio --rw rw --bs 4M --iodepth 8 " + drive());
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* words : {"--rw=rw", "--bs=4M", "--iodepth=8", "--ioengine=io_uring"})
    EXPECT_NE(ran.out.find(words), std::string::npos) << ran.out;
  EXPECT_TRUE(left().empty());
}

// fio makes a file anew that is shorter than --size, so that it would be lost.
TEST_F(BenchProgram, KeepsAFileOfTheUsersInFiosWords) {
  const std::string file = in_results("model.bin");
  std::ofstream(file) << "x";
  fs::resize_file(file, 5 << 20);
  const Ran ran = run_headrace("bench --as-fio --rw read --bs 1M " + file);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* words : {"--readonly", "--allow_file_create=0", "--size=4194304"})
    EXPECT_NE(ran.out.find(words), std::string::npos) << ran.out;
}

TEST_F(BenchProgram, RefusesAFileThatHoldsLessThanABlockPerJob) {
  const std::string file = in_results("model.bin");
  std::ofstream(file) << "x";
  fs::resize_file(file, 8 << 20);
  for (const char* words : {"--bs 16M ", "--bs 1M --jobs 64 "}) {
    const Ran ran = run_headrace("bench --rw read " + (words + file));
    EXPECT_EQ(ran.exit_code, 2) << ran.out;
    EXPECT_NE(ran.out.find(file + " holds 8 MiB, less than a block for each job; nothing was "
                                  "measured. Give a smaller --bs or fewer --jobs"),
              std::string::npos)
        << ran.out;
  }
}

// Where it is in the middle of its rounds, by its file.
TEST_F(BenchProgram, ASignalEndsItWith128AndTheSignalAndNoFileIsLeft) {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) {
    const int exit_code = exit_code_after(
        signal,
        "bench --rw read --size 64M --runtime 60 --rounds 0 " + drive() + " >/dev/null 2>&1",
        [this] { return !left().empty(); });
    EXPECT_EQ(exit_code, 128 + signal);
    EXPECT_TRUE(left().empty());
  }
}
}  // namespace
}  // namespace headrace::tools::bench_program_test
