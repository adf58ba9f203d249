// SPDX-License-Identifier: Apache-2.0
// run_part.cpp: main() of a program that has the tests of a folder. CTest runs a part of them at a
// time, which is the tests of a few sources, each part in a process of its own:
//
//   swap_tests --part=drive_test     those of drive_test.cpp
//   swap_tests --gtest_filter=...    any, as in every program of GoogleTest
//
// Which sources a part has lies beside the program, in <program>.parts: a line each, its name and
// its sources. A test that no part has would never run, so that is an error of every part.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

namespace {
using Parts = std::map<std::string, std::string>;  // source -> part

std::string parts_file() {
  return std::filesystem::read_symlink("/proc/self/exe").string() + ".parts";
}

Parts read_parts(const std::string& path) {
  Parts parts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string part, source;
    words >> part;
    while (words >> source) parts[source] = part;
  }
  return parts;
}

std::string part_of(const testing::TestInfo& test, const Parts& parts) {
  const auto found = parts.find(std::filesystem::path(test.file()).filename().string());
  return found == parts.end() ? std::string() : found->second;
}

// A filter of exactly the part's tests; empty where something is wrong, which it says.
std::string filter_of(const std::string& part, const Parts& parts) {
  std::string filter;
  bool whole = true;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string its = part_of(test, parts);
      if (its == part) filter += std::string(suite.name()) + "." + test.name() + ":";
      if (!its.empty()) continue;
      whole = false;
      std::printf(
          "no part has %s.%s of %s: name that file among the SOURCES of a headrace_test()\n",
          suite.name(), test.name(), test.file());
    }
  }
  if (filter.empty()) std::printf("no test is in the part %s\n", part.c_str());
  return whole ? filter : std::string();
}
}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kPart = "--part=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kPart)) {
      std::printf("unknown: %s; --part=NAME and GoogleTest's own flags are taken\n", argv[i]);
      return 2;
    }
    const std::string part(word.substr(kPart.size()));
    const std::string filter = filter_of(part, read_parts(parts_file()));
    if (filter.empty()) return 1;
    // A death test runs this program again, with a filter for itself.
    if (testing::GTEST_FLAG(filter) == "*") testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
