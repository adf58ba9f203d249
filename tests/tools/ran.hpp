// SPDX-License-Identifier: Apache-2.0
// ran.hpp: the program `headrace` run to its end.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace headrace::tools {
struct Ran {
  int exit_code = -1;
  std::string out;  // with what it says on stderr
};

inline Ran ran_by_shell(const std::string& command) {
  Ran ran;
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) ran.out += static_cast<char>(byte);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}
// `words` as a shell reads them.
inline Ran run_headrace(const std::string& words) {
  return ran_by_shell(HEADRACE_PROGRAM " " + words);
}
// Its exit code where it gets `signal` once `ready` says so; its output is the caller's to place.
template <class Ready>
int exit_code_after(int signal, const std::string& words, const Ready& ready) {
  const std::string command = "exec " HEADRACE_PROGRAM " " + words;
  const char* const argv[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(::posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(argv), environ),
            0);
  while (!ready() && ::waitpid(child, nullptr, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, signal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
// That it was refused, naming `part`.
inline void expect_refused(const Ran& ran, const std::string& words, const std::string& part) {
  EXPECT_EQ(ran.exit_code, 2) << words << "\n" << ran.out;
  EXPECT_NE(ran.out.find(part), std::string::npos) << words << "\n" << ran.out;
}
}  // namespace headrace::tools
