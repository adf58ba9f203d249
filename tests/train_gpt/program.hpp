// SPDX-License-Identifier: Apache-2.0
// program.hpp: runs the built train_gpt in a process of its own.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "scratch_folder.hpp"

namespace train_gpt {
struct Outcome {
  int exit_code = -1;  // -n: killed by signal n
  std::string out, err;
};

// Threads: one at a time.
class Program {
 public:
  Program(const ScratchFolder& folder, const std::vector<std::string>& words)
      : out_(folder / "stdout"), err_(folder / "stderr") {
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::unlink(err_.c_str());  // wait_for() must not see what an earlier run left there
    process_ = ::fork();
    if (process_ != 0) return;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    ::dup2(::open(out_.c_str(), kFlags, 0600), STDOUT_FILENO);
    ::dup2(::open(err_.c_str(), kFlags, 0600), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }

  void signal(int number) const { ::kill(process_, number); }

  // Waits until `words` stand on its stderr; false if it ended before.
  bool wait_for(std::string_view words) {
    while (ScratchFolder::read(err_).find(words) == std::string::npos) {
      siginfo_t state{};
      ::waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT);
      if (state.si_pid != 0) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  Outcome finish() {
    int status = 0;
    if (::waitpid(process_, &status, 0) != process_) return {};
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ScratchFolder::read(out_),
            ScratchFolder::read(err_)};
  }

 private:
  std::string out_, err_;
  pid_t process_ = -1;
};
}  // namespace train_gpt
