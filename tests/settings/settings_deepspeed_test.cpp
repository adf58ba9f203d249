// SPDX-License-Identifier: Apache-2.0
// What DeepSpeed's own keys get: deepspeed_keys.txt, which deepspeed_keys.py makes from its code.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"

namespace headrace {
namespace {
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
  return fields;
}

// "accepted"; "told": accepted, and a warning names the key; "refused"; "unknown": refused as no
// key of DeepSpeed's.
std::string outcome_of(const std::string& file, const std::string& path) {
  try {
    const Settings settings = Settings::from_json(file, "f", ReadOptions{.leave_auto_open = true});
    for (const std::string& warning : settings.warnings)
      if (warning.find(path) != std::string::npos) return "told";
    return "accepted";
  } catch (const Error& error) {
    const bool unknown = std::string(error.what()).find("unknown key") != std::string::npos;
    return unknown ? "unknown" : "refused";
  }
}

// DeepSpeed's default of each key, alone in a file.
TEST(SettingsDeepSpeed, KnowsEveryKeyOfDeepSpeedAndTakesItsDefaults) {
  std::ifstream in(HEADRACE_SETTINGS_CORPUS "/../deepspeed_keys.txt");
  std::size_t keys = 0;
  for (std::string line; std::getline(in, line); ++keys) {
    const std::vector<std::string> fields = fields_of(line);
    ASSERT_EQ(fields.size(), 5u) << line;
    const std::string &path = fields[0], &file = fields[2];
    EXPECT_EQ(outcome_of(file, path), fields[4]) << line;
    EXPECT_NE(fields[4], "unknown") << line;
  }
  EXPECT_GE(keys, 380u);
}
}  // namespace
}  // namespace headrace
