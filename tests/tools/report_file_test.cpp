// SPDX-License-Identifier: Apache-2.0
// report_file_test: which files a report may take the place of, and what a command line's sizes and
// times are.
#include "command_line/report_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "command_line/quantities.hpp"
#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::command_line {
namespace {
namespace fs = std::filesystem;
constexpr const char* kOurs =
    "{\n  \"schema_version\": 1,\n  \"program\": \"headrace doctor\"\n}\n";

class ReportFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.string() + "/" + name; }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder_.string()), fs::directory_iterator());
  }
  // Both refuse it, with `words`.
  static void expect_refused(const std::string& target, const std::string& words) {
    for (const bool write : {false, true}) {
      try {
        write ? write_report(target, "new") : check_report_target(target);
        ADD_FAILURE() << target << " is written to";
      } catch (const Error& error) {
        EXPECT_TRUE(is_refusal(error.code())) << error.what();
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("Give --json"), std::string::npos);
      }
    }
  }
  const testing::TemporaryDirectory folder_;
};

TEST_F(ReportFileTest, ANewAnEmptyAndAnEarlierReportAreReplacedWhole) {
  for (const std::string& target :
       {path("new"), file("empty", ""), file("json", kOurs),
        file("compact", R"({"schema_version":1,"program":"update_bench"})")}) {
    check_report_target(target);
    write_report(target, kOurs);
    EXPECT_EQ(content(target), kOurs);
  }
  EXPECT_EQ(entries(), 4) << "nothing else is left";
}

TEST_F(ReportFileTest, WhatIsNoReportOfOursIsLeftAlone) {
  for (const char* const theirs :
       {"mine", "{}", "[]", "{\"schema_version\": 1}", "{\"program\": \"headrace bench\"}",
        "{\"schema_version\": 1, \"program\": \"another\"}",
        "{\"schema_version\": 1, \"program\": \"headracer\"}", "<!DOCTYPE html><head>"}) {
    const std::string target = file("theirs", theirs);
    expect_refused(target, "what it holds would be lost");
    EXPECT_EQ(content(target), theirs);
  }
  EXPECT_EQ(entries(), 1);
}

TEST_F(ReportFileTest, SpecialFilesAndLinksAreNeverOpened) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(path("pipe"), "it is a pipe");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = path("socket");
  if (name.size() < sizeof address.sun_path) {
    name.copy(address.sun_path, name.size());
    ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    expect_refused(name, "it is a socket");
  }
  ::close(socket);
  expect_refused("/dev/full", "it is a device");
  expect_refused("/dev/stdout", "it is a symbolic link");
  fs::create_symlink(file("mine", "mine"), path("link"));
  fs::create_symlink(path("nowhere"), path("dangling"));
  expect_refused(path("link"), "it is a symbolic link");
  expect_refused(path("dangling"), "it is a symbolic link");
  EXPECT_EQ(content(path("mine")), "mine");
  EXPECT_FALSE(fs::exists(path("nowhere")));
  // A block device, where one may be made.
  if (::mknod(path("drive").c_str(), S_IFBLK | 0600, 0) == 0)
    expect_refused(path("drive"), "it is a block device");
}

TEST_F(ReportFileTest, PlacesThatCannotBeWrittenToAreRefusedBefore) {
  expect_refused(folder_.string(), "EISDIR");
  expect_refused(path("none/r.json"), "ENOENT");
  expect_refused(file("file", "") + "/r.json", "ENOTDIR");
  expect_refused(path(std::string(300, 'x')), "ENAMETOOLONG");
  expect_refused(std::string(5000, '/') + "x", "ENAMETOOLONG");
  EXPECT_EQ(entries(), 1);
}

TEST_F(ReportFileTest, AWriteThatFailsLeavesTheOldReportAndIsNoRefusal) {
  const std::string target = file("r.json", kOurs);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string text;
  Code code = Code::kOk;
  try {
    check_report_target(target);
    write_report(target, std::string(100, 'x'));
  } catch (const Error& error) {
    code = error.code();
    text = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(code, Code::kIo);
  EXPECT_NE(text.find("EFBIG"), std::string::npos) << text;
  EXPECT_EQ(content(target), kOurs);
  EXPECT_EQ(entries(), 1);
}

TEST_F(ReportFileTest, TwoOptionsDoNotNameOneFile) {
  const std::string a = path("a");
  const auto check = [](const std::string& one, const std::string& other) {
    check_targets_differ({{"--json", one}, {"--write", ""}, {"--report", other}});
  };
  EXPECT_NO_THROW(check(a, path("b")));
  EXPECT_NO_THROW(check("-", a));
  EXPECT_NO_THROW(check("", ""));
  EXPECT_NO_THROW(check("/dev/null", "/dev/null"));
  EXPECT_THROW(check("-", "-"), Error);
  EXPECT_THROW(check(a, a), Error);
  EXPECT_THROW(check(a, folder_.string() + "/./a"), Error);
  EXPECT_THROW(check("not-there", "./not-there"), Error);
  file("a", "");
  fs::create_hard_link(a, path("b"));
  EXPECT_THROW(check(a, path("b")), Error);
}

TEST(Quantities, SizesAreReadInAnyCaseAndUpToPebibytes) {
  const auto bytes = [](const char* word) { return to_bytes("--size", word, {0, 1ull << 60}); };
  for (const char* word : {"1m", "1M", "1MiB", "1mib", "1 MiB", "1048576", "1048576b"})
    EXPECT_EQ(bytes(word), 1u << 20) << word;
  EXPECT_EQ(bytes("2P"), 2ull << 50);
  EXPECT_EQ(bytes("3GB"), 3'000'000'000u);
  EXPECT_EQ(bytes("1.1k"), 1126u) << "rounded down";
  for (const char* word : {"", "m", "1x", "1Mi", "1M2", "1e3", "-1", "nan", "0x10"})
    EXPECT_THROW(bytes(word), Fault) << word;
  try {
    bytes("4Q");
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.cause, "--size '4Q': 'Q' is no unit");
  }
}

TEST(Quantities, TimesMayHaveSeveralUnitsAndRangesNameTheirs) {
  const auto seconds = [](const char* word) { return to_seconds("--runtime", word, {1, 86400}); };
  EXPECT_EQ(seconds("2m30s"), 150);
  EXPECT_EQ(seconds("1h 30m"), 5400);
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("1d"), 86400);
  EXPECT_EQ(to_seconds("--call", "50us", {1e-7, 60}), 50e-6);
  for (const char* word : {"", "s", "2m30x", "0.5s", "2d"})
    EXPECT_THROW(seconds(word), Fault) << word;
  try {
    seconds("0.5s");
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.fix, "Give from 1 s to 86400 s");
  }
}
}  // namespace
}  // namespace headrace::command_line
