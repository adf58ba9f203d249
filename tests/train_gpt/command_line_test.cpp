// SPDX-License-Identifier: Apache-2.0
// What the programs share: numbers of a command line, and the file of a report. The options of
// train_gpt are in options_test.cpp.
#include "command_line/words.hpp"

#include "command_line/report_file.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::command_line::check_report_target;
using headrace::command_line::to_real;
using headrace::command_line::to_whole;
using headrace::command_line::write_report;

TEST(Numbers, HaveBothEndsOfTheirRange) {
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_EQ(to_whole("--n", "0", {0, most}), 0u);
  EXPECT_EQ(to_whole("--n", "18446744073709551615", {0, most}), most);
  EXPECT_EQ(to_whole("--n", "010", {1, 10}), 10u) << "decimal, whatever it starts with";
  EXPECT_EQ(to_real("--x", "1e-3", {0, 1}), 1e-3);
  EXPECT_EQ(to_real("--x", "1", {0, 1}), 1.0);
  EXPECT_THROW(to_real("--x", "1.001", {0, 1}), headrace::command_line::Fault);
  EXPECT_THROW(to_whole("--n", "11", {1, 10}), headrace::command_line::Fault);
  EXPECT_THROW(to_whole("--n", "6", {4, 12, 4}), headrace::command_line::Fault);
}

TEST(ReportFile, ReplacesAFileWhole) {
  ScratchFolder folder;
  const std::string path =
      folder.write("r.json", R"({"schema_version": 1, "program": "train_gpt", "older": 1})");
  check_report_target(path);
  write_report(path, "{}\n");
  EXPECT_EQ(ScratchFolder::read(path), "{}\n");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(ReportFile, WritesToADeviceWithoutReplacingIt) {
  check_report_target("/dev/null");
  write_report("/dev/null", "{}");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(ReportFile, RefusesAPlaceItCannotWriteTo) {
  ScratchFolder folder;
  using headrace::Code;
  expect_error([&] { check_report_target(folder / "none/r.json"); }, Code::kNotFound,
               {"ENOENT", "--json"});
  expect_error([&] { check_report_target(folder.path()); }, Code::kInvalidArgument, {"EISDIR"});
  expect_error([&] { write_report(folder / "none/r.json", "{}"); }, Code::kNotFound,
               {"none/r.json'", "ENOENT"});
  expect_error([&] { check_report_target(folder / std::string(254, 'x')); }, Code::kInvalidArgument,
               {"ENAMETOOLONG"});
  EXPECT_EQ(folder.entries(), 0u) << "a check leaves nothing";
}
}  // namespace
}  // namespace train_gpt
