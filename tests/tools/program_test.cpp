// SPDX-License-Identifier: Apache-2.0
// program_test: what every subcommand of `headrace` has in common: where its output goes, and what
// happens where it cannot go there.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <system_error>

#include "program/engine_words.hpp"
#include "program/failing.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::program_test {
namespace {
namespace fs = std::filesystem;

class ProgramTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.string() + "/" + name; }
  std::string doctor() const { return "doctor " + folder_.string() + " "; }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const testing::TemporaryDirectory folder_;
};

// In a shell: `sh -c '...'` has the redirections of `words` before those that join both streams.
Ran in_shell(const std::string& before, const std::string& words) {
  Ran ran;
  const std::string line = before + " " HEADRACE_PROGRAM " " + words;
  std::FILE* const pipe = ::popen(line.c_str(), "r");
  for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) ran.out += static_cast<char>(byte);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}

TEST_F(ProgramTest, StderrThatCannotBeWrittenChangesNoExitCode) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const char* const lost : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(in_shell("", std::string("bogus ") + lost).exit_code, 2) << lost;
    EXPECT_EQ(in_shell("", doctor() + "--require free=1P " + lost).exit_code, 3) << lost;
    EXPECT_EQ(in_shell("", "inspect /nothing/here " + std::string(lost)).exit_code, 2) << lost;
  }
}

TEST_F(ProgramTest, StdoutThatCannotBeWrittenIsAFailureThatIsTold) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const std::string& words : {doctor(), std::string("--help"), std::string("--version"),
                                   std::string("bench --help"), doctor() + "--json -"}) {
    for (const auto& [lost, expected] :
         {std::pair{"2>&1 >/dev/full", "ENOSPC"}, std::pair{"2>&1 >&-", "EBADF"}}) {
      const Ran ran = in_shell("", words + " " + lost);
      EXPECT_EQ(ran.exit_code, 1) << words << lost;
      EXPECT_NE(ran.out.find(expected), std::string::npos) << words << lost << ran.out;
    }
  }
  EXPECT_EQ(in_shell("", doctor() + "--require free=1P 2>/dev/null >/dev/full").exit_code, 3);
}

TEST_F(ProgramTest, AReaderThatLeavesIsNoFailure) {
  const Ran ran = in_shell("{", doctor() + "--json -; echo $? >" + path("code") + "; } | true");
  EXPECT_EQ(content(path("code")), "0\n") << ran.out;
}

TEST_F(ProgramTest, AClosedDescriptorIsNotTakenByAFile) {
  const std::string report = path("r.json");
  EXPECT_EQ(in_shell("", doctor() + "--json " + report + " <&- >&- 2>&-").exit_code, 1);
  const std::string text = content(report);
  EXPECT_TRUE(text.starts_with("{\n")) << text;
  EXPECT_TRUE(text.ends_with("}\n")) << text;
  EXPECT_EQ(text.find("cannot write to stdout"), std::string::npos) << text;
}

TEST_F(ProgramTest, ALimitOnFileSizesIsARowOfDoctorsAndAFailureOfTheReport) {
  const Ran ran = in_shell("ulimit -f 0;", doctor() + "2>&1");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_NE(ran.out.find("EFBIG"), std::string::npos) << ran.out;
  const Ran report = in_shell("ulimit -f 0;", doctor() + "--json " + path("r.json") + " 2>&1");
  EXPECT_EQ(report.exit_code, 1) << report.out;
  EXPECT_FALSE(fs::exists(path("r.json")));
}

// What is refused is told once, and the error document takes nobody's file either.
TEST_F(ProgramTest, NoSubcommandWritesOverAUsersFileOrIntoAPipe) {
  std::ofstream(path("mine")) << "mine";
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string folder = folder_.string();
  for (const std::string& words :
       {"doctor " + folder + " --json ", "inspect " + folder + " --json ",
        "bench " + folder + " --json ", "tune " + folder + " --json ",
        "tune " + folder + " --write ", "bench " + folder + " --bogus --json ",
        std::string("doctor --bogus --json ")}) {
    for (const char* const target : {"mine", "pipe", "none/r"}) {
      const Ran ran = in_shell("timeout 20", words + path(target) + " 2>&1 </dev/null");
      EXPECT_EQ(ran.exit_code, 2) << words << target << ": " << ran.out;
      const std::size_t told = ran.out.find(path(target));
      EXPECT_NE(told, std::string::npos) << words << ran.out;
      EXPECT_EQ(ran.out.find(path(target), told + 1), std::string::npos) << words << ran.out;
      EXPECT_EQ(content(path("mine")), "mine");
    }
  }
}

TEST_F(ProgramTest, TwoOptionsForOneFileAreRefused) {
  const std::string folder = folder_.string(), x = path("x"), same = folder + "/./x";
  for (const std::string& words : {"tune --json " + x + " --write " + x + " " + folder,
                                   "tune --write " + x + " --json " + same + " " + folder}) {
    const Ran ran = run_headrace(words);
    EXPECT_EQ(ran.exit_code, 2) << words << ran.out;
    EXPECT_NE(ran.out.find("both name"), std::string::npos) << words << ran.out;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need it themselves
TEST_F(ProgramTest, MemoryThatIsRefusedIsToldWithoutKeysOfSettings) {
  const Ran ran = in_shell("ulimit -v 30000;",
                           "bench --quick --rw read --size 64M " + folder_.string() + " 2>&1");
  EXPECT_TRUE(ran.exit_code == 1 || ran.exit_code == 2) << ran.exit_code << ran.out;
  EXPECT_NE(ran.out.find("ulimit -v"), std::string::npos) << ran.out;
  for (const char* const bare : {"bad_alloc", "zero_optimization", "nvme_path"})
    EXPECT_EQ(ran.out.find(bare), std::string::npos) << ran.out;
}
#endif

TEST(UnexpectedText, HasCauseConsequenceAndHelpOfWhatWasRefused) {
  const std::string memory = unexpected_text(std::bad_alloc(), "all is lost");
  EXPECT_TRUE(memory.starts_with("memory was refused")) << memory;
  EXPECT_NE(memory.find("; all is lost. "), std::string::npos) << memory;
  const std::system_error refused(std::make_error_code(std::errc::resource_unavailable_try_again));
  const std::string thread = unexpected_text(refused, "all is lost");
  EXPECT_TRUE(thread.starts_with("no thread could be started: EAGAIN")) << thread;
  EXPECT_NE(thread.find("; all is lost. Raise the limit on processes"), std::string::npos)
      << thread;
}

TEST(UnexpectedText, NamesOptionsOnlyWhereTheProgramHasThem) {
  const std::system_error refused(std::make_error_code(std::errc::resource_unavailable_try_again));
  for (const auto& text :
       {unexpected_text(std::bad_alloc(), "lost"), unexpected_text(refused, "lost")})
    EXPECT_EQ(text.find("--"), std::string::npos) << text;
  const AskLess less{"a smaller --bs", "fewer --jobs"};
  EXPECT_TRUE(unexpected_text(std::bad_alloc(), "lost", less).ends_with("a smaller --bs"));
  EXPECT_TRUE(unexpected_text(refused, "lost", less).ends_with("fewer --jobs"));
}

TEST_F(ProgramTest, OptionsSayWhatTheyTake) {
  const std::string at = " " + folder_.string();
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"bench --ioengine libaio" + at, "Give --queue aio"},
           {"bench --ioengine io_uring" + at, "Give --queue uring"},
           {"bench --jobs -1" + at, "--jobs -1 is out of range"},
           {"bench --quick --sustained" + at, "--sustained: where a drive's cache ends"},
           {"bench --runtime 0.5s" + at, "from 1 s to"},
           {"bench /proc", "bench: '/proc' is on a file system that takes no files"},
           {"doctor --require free=1Q" + at, "'Q' is no unit"},
           {"doctor --require free" + at, "has no size"},
           {"inspect ''", "PATH is empty"},
           {"inspect a b", "'b' is one word too many"}}) {
    const Ran ran = run_headrace(words);
    EXPECT_EQ(ran.exit_code, 2) << words << ": " << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << words << ": " << ran.out;
  }
  const Ran tune = in_shell("HEADRACE_IO_QUEUE=bogus", "tune" + at + " 2>&1");
  EXPECT_EQ(tune.exit_code, 2);
  EXPECT_NE(tune.out.find("HEADRACE_IO_QUEUE 'bogus' is not known; nothing was measured. Give"),
            std::string::npos)
      << tune.out;
  EXPECT_EQ(run_headrace("doctor --require free=1m,memory=1MB" + at).exit_code, 0);
  const Ran fio = run_headrace("bench --as-fio --rw read --queue libaio --bs 1m" + at);
  EXPECT_EQ(fio.exit_code, 0) << fio.out;
  EXPECT_NE(fio.out.find("--ioengine=libaio"), std::string::npos) << fio.out;
}

TEST(EngineWords, NameNoKeyOfASettingsFile) {
  EXPECT_EQ(without_settings("nvme_path '/a' has no room; name another nvme_path"),
            "'/a' has no room; name another directory");
  EXPECT_EQ(without_settings("all is well"), "all is well");
}
}  // namespace
}  // namespace headrace::tools::program_test
