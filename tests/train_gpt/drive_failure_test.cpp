// SPDX-License-Identifier: Apache-2.0
// A drive that fails in the middle of a run of the built train_gpt: what is said, what is reported,
// what is left. The drive is real but for the library that is preloaded (failing_drive.cpp).
#include <algorithm>
#include <cerrno>
#include <regex>

#include "program.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;

struct Case {
  const char* call;
  int number;
  const char* name;  // of the errno
  const char* code;
  bool parameters;  // on the drive as well
};

void PrintTo(const Case& failure, std::ostream* out) { *out << failure.call << failure.name; }

class DriveFailure : public ::testing::TestWithParam<Case> {
 protected:
  DriveFailure() { std::filesystem::create_directory(drive()); }

  std::string drive() const { return folder_ / "drive"; }
  std::string trigger() const { return folder_ / "trigger"; }

  std::vector<std::string> words(const Case& failure) const {
    std::vector<std::string> all{"/usr/bin/env",
                                 std::string("LD_PRELOAD=") + FAILING_DRIVE,
                                 std::string("FAILING_DRIVE_CALL=") + failure.call,
                                 "FAILING_DRIVE_ERRNO=" + std::to_string(failure.number),
                                 "FAILING_DRIVE_AFTER=3",
                                 "FAILING_DRIVE_TRIGGER=" + trigger(),
                                 "HEADRACE_IO_QUEUE=threads",
                                 TRAIN_GPT_PROGRAM};
    const std::string optimizer = "zero_optimization.offload_optimizer.";
    const std::string parameter = "zero_optimization.offload_param.";
    const std::vector<std::string> options{"--layers",  "2",
                                           "--hidden",  "64",
                                           "--heads",   "2",
                                           "--seq",     "16",
                                           "--batch",   "1",
                                           "--steps",   "100000",
                                           "--threads", "1",
                                           "--text",    text_,
                                           "--json",    folder_ / "report.json",
                                           "--save",    folder_ / "saved"};
    all.insert(all.end(), options.begin(), options.end());
    std::vector<std::string> settings{optimizer + "device=nvme", optimizer + "nvme_path=" + drive(),
                                      "headrace.allow_memory_backed=true"};
    if (failure.parameters) {
      settings.insert(settings.end(), {"zero_optimization.stage=3", parameter + "device=nvme",
                                       parameter + "nvme_path=" + drive()});
    }
    for (const std::string& setting : settings) all.insert(all.end(), {"--set", setting});
    return all;
  }

  ScratchFolder folder_;
  std::string text_ = folder_.write("text.txt", std::string(3000, 'x') + std::string(3000, 'y'));
};

TEST_P(DriveFailure, EndsTheRunNamingFileOffsetAndCause) {
  const Case failure = GetParam();
  Program program(folder_, words(failure));
  ASSERT_TRUE(program.wait_for("step 1/")) << program.finish().err;
  folder_.write("trigger", "");
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const std::string said =
      outcome.err.substr(std::min(outcome.err.find("train_gpt: error: "), outcome.err.size()));
  const bool reads = std::string_view(failure.call) == "pread";
  const std::regex words("step [0-9]+: swap (in|out) .*'[a-z0-9._]+' \\(tile [0-9]+\\): " +
                         std::string(reads ? "read" : "write") + " [0-9]+ bytes of " + drive() +
                         "/headrace-[^ ]+\\.swap at [0-9]+: got 0, " + failure.name +
                         " .*steps? done, nothing was saved, the swap files are gone");
  EXPECT_TRUE(std::regex_search(said, words)) << outcome.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(drive())) {
    EXPECT_EQ(entry.path().parent_path(), drive()) << entry.path() << " was left behind";
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saved"));
  const json report = json::parse(ScratchFolder::read(folder_ / "report.json"), nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  EXPECT_EQ(report["error"]["code"], failure.code);
  EXPECT_EQ(report["error"]["exit_code"], 1);
  EXPECT_NE(report["error"]["message"].get<std::string>().find(failure.name), std::string::npos);
  EXPECT_GE(report["steps_completed"], 1);
  EXPECT_EQ(report["steps"].size(), report["steps_completed"]);
  EXPECT_GT(report["steps"][0]["loss"], 0);
}

INSTANTIATE_TEST_SUITE_P(Calls, DriveFailure,
                         ::testing::Values(Case{"pread", EIO, "EIO", "kIo", false},
                                           Case{"pwrite", EIO, "EIO", "kIo", false},
                                           Case{"pwrite", ENOSPC, "ENOSPC", "kNoSpace", false},
                                           Case{"pread", EIO, "EIO", "kIo", true}));
}  // namespace
}  // namespace train_gpt
