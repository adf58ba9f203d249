// SPDX-License-Identifier: Apache-2.0
// tune_test: the program `headrace tune` on a small budget, and what it writes and refuses to
// overwrite.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "platform/machine.hpp"
#include "support/temporary_directory.hpp"
#include "swap/limits.hpp"
#include "tools/ran.hpp"
#include "tune/fragment.hpp"

namespace headrace::tools::tune_test {
namespace {
constexpr const char* kSmall = " --size 64M --runtime 10 --quick ";

Ran run(const std::string& words, const std::string& before = "env -u HEADRACE_IO_QUEUE") {
  return ran_by_shell(before + " " HEADRACE_PROGRAM " " + words);
}

nlohmann::json json_of(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path), nullptr, false);
}
class TuneTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content = "") const {
    const std::string path = results_.string() + "/" + name;
    if (!content.empty()) std::ofstream(path) << content;
    return path;
  }
  void expect_nothing_left() const { EXPECT_EQ(drive_.entries(), 0u); }
  const testing::TemporaryDirectory drive_, results_;
};

TEST_F(TuneTest, WritesSettingsThatAreAcceptedAsTheyAreAndMergedIntoADeepSpeedFile) {
  const std::string settings = file("settings.json"), json = file("r.json");
  const Ran ran =
      run("tune " + drive_.string() + kSmall + "--json " + json + " --write " + settings);
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  expect_nothing_left();
  for (const char* part : {"This takes at most about 10 s", "judged by the bytes of a step",
                           "fresh rounds", "result", "verified: "})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;

  const Settings alone = Settings::from_file(settings);
  EXPECT_TRUE(alone.warnings.empty());
  EXPECT_EQ(alone.tuned.kernel, platform::kernel_release());
  const nlohmann::json where = json_of(settings)["headrace"]["tuned"];
  EXPECT_EQ(where["pattern"], "step");
  EXPECT_GT(where["gb_per_second"], 0);
  EXPECT_LE(where["gb_per_second_low"], where["gb_per_second"]);
  EXPECT_GE(where["gb_per_second_high"], where["gb_per_second"]);

  nlohmann::json merged = nlohmann::json::parse(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
          "nvme_path": "/mnt/a"}}, "headrace": {"host_budget_bytes": "8GiB"}})");
  merged.merge_patch(json_of(settings));
  const Settings both = Settings::from_json(merged.dump());
  EXPECT_TRUE(both.warnings.empty());
  EXPECT_EQ(both.host_budget_bytes, 8ull << 30);
  EXPECT_EQ(both.io_block_bytes, alone.io_block_bytes);
  EXPECT_EQ(both.tuned, alone.tuned);

  const nlohmann::json report = json_of(json);
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["result"]["settings"], json_of(settings));
  EXPECT_EQ(report["verification"]["mismatches"], 0);
  EXPECT_GE(report["fresh_rounds"]["rounds"], 1);
  EXPECT_EQ(report["stages"].size(), 2u);

  // Its own file is replaced by the next run, with the values of that.
  EXPECT_NO_THROW(check_replaceable_settings(settings));
}

TEST_F(TuneTest, KeepsToTheQueueOfTheEnvironmentAndForReadsWritesTheFileAlone) {
  const std::string json = file("r.json"), settings = file("s.json");
  const Ran ran =
      run("tune --for read " + drive_.string() + kSmall + "--json " + json + " --write " + settings,
          "HEADRACE_IO_QUEUE=threads");
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(Settings::from_file(settings).io_queue, IoQueueKind::kThreads);
  EXPECT_EQ(json_of(settings)["headrace"]["tuned"]["queue"], "threads");
  EXPECT_EQ(json_of(settings)["headrace"]["tuned"]["pattern"], "read");
  EXPECT_EQ(json_of(json)["written_bytes"], 64 << 20);
  expect_nothing_left();
}

TEST_F(TuneTest, EndsWithThreeWhereTheQueueOfTheEnvironmentIsNotToBeHad) {
  const std::string words = "exec env HEADRACE_IO_QUEUE=uring " HEADRACE_PROGRAM " tune " +
                            drive_.string() + kSmall + ">" + file("out.txt") + " 2>&1";
  const pid_t child = ::fork();
  if (child == 0) {
    if (!swap::test::forbid(SYS_io_uring_setup, EPERM)) ::_exit(77);
    ::execl("/bin/sh", "sh", "-c", words.c_str(), nullptr);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  std::ifstream in(file("out.txt"));
  const std::string out{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(WEXITSTATUS(status), 3) << out;
  EXPECT_NE(out.find("io_uring"), std::string::npos) << out;
  expect_nothing_left();
}

TEST_F(TuneTest, ASignalEndsItWithItsFilesGone) {
  const std::string settings = file("s.json");
  const Ran ran = run("tune " + drive_.string() + " --size 64M --runtime 600 --write " + settings,
                      "timeout --preserve-status --signal=INT 2");
  EXPECT_EQ(ran.exit_code, 130) << ran.out;
  EXPECT_NE(ran.out.find("ended by SIGINT"), std::string::npos) << ran.out;
  EXPECT_FALSE(std::filesystem::exists(settings));
  expect_nothing_left();
}

// How far it gets hangs on the drive: 2 GiB take over half a second on most.
TEST_F(TuneTest, WithHardlyAnyTimeItFailsInWordsOrSaysHowFarItGotAndLeavesNothing) {
  for (const std::string& size : {std::string("64M"), std::string("2G")}) {
    const std::string json = file("r.json");
    const Ran ran = run("tune " + drive_.string() + " --size " + size +
                        " --runtime 1 --max-write 100G --json " + json);
    ASSERT_TRUE(ran.exit_code == 0 || ran.exit_code == 1) << ran.exit_code << ran.out;
    const nlohmann::json report = json_of(json);
    if (ran.exit_code == 0) {
      EXPECT_TRUE(report["result"]["resolved"].is_boolean());
    } else {
      EXPECT_EQ(report["error"]["code"], "kNothingMeasured");
      EXPECT_NE(ran.out.find("Give --runtime "), std::string::npos) << ran.out;
    }
    expect_nothing_left();
  }
}

TEST_F(TuneTest, RefusesWhatItCannotDoBeforeItWritesAnything) {
  const std::string users = file("users.json", R"({"headrace": {"update_slots": 3, "tuned": {}}})");
  const std::string drive = drive_.string();
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"/nothing/here", "/nothing/here"},
           {"/dev/null", "/dev/null is no directory"},
           {"/sys", "/sys"},
           {drive + " " + drive + "/.", "is the same directory as"},
           {drive + " --for sleep", "Give one of: step, read, rw"},
           {drive + " --size 1M", "--size 1M is out of range"},
           {drive + " --max-write 64M", "Give --max-write "},
           {drive + " --runtim 5", "Did you mean --runtime?"},
           {drive + " --write - --json -", "stdout cannot take two documents"},
           {drive + " --write " + results_.string() + "/no/s.json", "Give --write a file"},
           {drive + " --write " + results_.string(), "EISDIR"},
           {drive + " --write " + users, "it holds \"headrace.update_slots\""},
           {drive + " --write-deepspeed a.json", "Run DeepSpeed's own ds_nvme_tune"}}) {
    const Ran ran = run("tune " + words);
    EXPECT_EQ(ran.exit_code, 2) << words << ": " << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << words << ": " << ran.out;
  }
  EXPECT_EQ(run("tune", "HEADRACE_IO_QUEUE=nonsense").exit_code, 2);
  const Ran json = run("tune /nothing/here --json - 2>/dev/null");
  EXPECT_NE(json.out.find("\"kNotFound\""), std::string::npos) << json.out;
  EXPECT_EQ(run("tune --help").exit_code, 0);
  EXPECT_EQ(json_of(users)["headrace"]["update_slots"], 3);
  expect_nothing_left();
}

TEST_F(TuneTest, ReplacesNothingButItsOwnFragments) {
  const Candidate candidate = default_candidate(IoQueueKind::kAuto);
  const std::string ours = dump(settings_fragment(candidate, {.drive_model = "x"}));
  EXPECT_NO_THROW(check_replaceable_settings(file("ours.json", ours)));
  EXPECT_NO_THROW(check_replaceable_settings(file("none.json")));
  for (const char* target : {"", "-", "/dev/null"})
    EXPECT_NO_THROW(check_replaceable_settings(target));
  for (const std::string& content :
       {std::string("{}"), std::string("[1]"), std::string("{\"headrace\": 1}"),
        std::string("// a note\n{\"headrace\": {\"tuned\": {}}}"), std::string("text"),
        std::string(R"({"headrace": {"queue_depth": 4}})"),
        std::string(R"({"headrace": {"tuned": {}}, "bf16": {"enabled": true}})")}) {
    SCOPED_TRACE(content);
    EXPECT_THROW(check_replaceable_settings(file("users.json", content)), Error);
  }
}
}  // namespace
}  // namespace headrace::tools::tune_test
