// SPDX-License-Identifier: Apache-2.0
// ran.hpp: the program `headrace` run to its end.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace headrace::tools {
struct Ran {
  int exit_code = -1;
  std::string out;  // with what it says on stderr
};

// `words` as a shell reads them.
inline Ran run_headrace(const std::string& words) {
  Ran ran;
  std::FILE* const pipe = ::popen((HEADRACE_PROGRAM " " + words + " 2>&1").c_str(), "r");
  for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) ran.out += static_cast<char>(byte);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}
// That it was refused, naming `part`.
inline void expect_refused(const Ran& ran, const std::string& words, const std::string& part) {
  EXPECT_EQ(ran.exit_code, 2) << words << "\n" << ran.out;
  EXPECT_NE(ran.out.find(part), std::string::npos) << words << "\n" << ran.out;
}
}  // namespace headrace::tools
