// SPDX-License-Identifier: Apache-2.0
// What DeepSpeed's own keys get (deepspeed_keys.txt, which deepspeed_keys.py makes from its code),
// and files in the style of public ones (deepspeed_cases.txt, with DeepSpeed's verdict by
// deepspeed_oracle.py).
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
// "accepts BF16, 3 warnings", "refuses fp16.opt_level": the first key at fault.
std::string verdict_of(const std::string& file) {
  try {
    const Settings settings = Settings::from_json(file, "f", ReadOptions{.leave_auto_open = true});
    const auto dtype = settings.parameter_dtype();
    return std::string("accepts ") + (dtype ? name_of(*dtype) : "dtype the trainer's") + ", " +
           std::to_string(settings.warnings.size()) + " warnings";
  } catch (const Error& error) {
    const std::string fault = error.what();
    const std::size_t key = fault.find(": ") + 2;
    return "refuses " + fault.substr(key, fault.find(": ", key) - key);
  }
}

// "BF16" of "takes, BF16" and of "accepts BF16, 3 warnings".
std::string dtype_in(std::string verdict) {
  verdict = verdict.substr(verdict.find(' ') + 1);
  return verdict.substr(0, verdict.find(','));
}

TEST(SettingsDeepSpeed, FilesInTheStyleOfPublicOnesGetWhatIsWrittenDownAndDeepSpeedsDtype) {
  std::ifstream in(HEADRACE_SETTINGS_CORPUS "/../deepspeed_cases.txt");
  std::size_t cases = 0, f32 = 0;
  std::string head, file;
  for (; std::getline(in, head) && std::getline(in, file); ++cases) {
    const std::vector<std::string> fields = fields_of(head);
    ASSERT_EQ(fields.size(), 3u) << head;
    const std::string& deepspeed = fields[1];
    const std::string ours = verdict_of(file);
    EXPECT_EQ(ours, fields[2]) << head;
    if (!deepspeed.starts_with("takes") || !ours.starts_with("accepts")) continue;
    EXPECT_EQ(dtype_in(ours), dtype_in(deepspeed)) << head;
    f32 += dtype_in(ours) == "F32" ? 1 : 0;
  }
  EXPECT_GE(cases, 190u);
  EXPECT_GE(f32, 15u);
}
}  // namespace
}  // namespace headrace
