// SPDX-License-Identifier: Apache-2.0
// called.hpp: a subcommand of `headrace` called in the test's own process.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::tools {
struct Called {
  int exit_code = -1;
  std::string out, err;
};

inline Called call(int (*subcommand)(int, const char* const*),
                   const std::vector<std::string>& words) {
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Called called;
  called.exit_code = subcommand(static_cast<int>(arguments.size()), arguments.data());
  called.out = ::testing::internal::GetCapturedStdout();
  called.err = ::testing::internal::GetCapturedStderr();
  return called;
}
}  // namespace headrace::tools
