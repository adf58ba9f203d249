// SPDX-License-Identifier: Apache-2.0
// ran.hpp: the program `headrace` run to its end.
#pragma once
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
}  // namespace headrace::tools
