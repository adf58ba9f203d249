// SPDX-License-Identifier: Apache-2.0
// child_processes.hpp: programs that a test runs beside each other. None outlives the test, whoever
// ends it; each has a deadline, and what it last said is kept.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

namespace headrace::testing {
// How one ended.
struct ChildEnd {
  int exit_code = -1;   // -n: by signal n
  bool killed = false;  // by wait(), at its deadline
  std::string said;     // on stdout and stderr
};

// Threads: the test's one. A child is killed when the thread that started it ends.
class ChildProcesses {
 public:
  ChildProcesses() = default;
  ~ChildProcesses();  // kills those that run
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Starts words[0] with these variables ("NAME=value") beside this process's. The how manieth it
  // is, from 0.
  std::size_t start(const std::vector<std::string>& words,
                    const std::vector<std::string>& variables = {});
  // Waits until `words` stand in what it has said; false: it ended, or the time was over.
  bool wait_for(std::size_t child, const std::string& words, std::chrono::milliseconds most);
  void signal(std::size_t child, int number);
  // All of them, each ended by itself or, once the time is over, killed.
  std::vector<ChildEnd> wait(std::chrono::milliseconds most);
  // A folder that they may share; gone with this object.
  const TemporaryDirectory& folder() const noexcept { return folder_; }

 private:
  struct Child {
    pid_t process = -1;
    bool running = true;
    ChildEnd end;
  };
  std::string path_of(std::size_t child) const;
  bool look(Child& child, int flags);

  const TemporaryDirectory folder_;
  std::vector<Child> children_;
};

// One of this machine's that nobody listens on, for processes to meet at.
std::uint16_t free_port();

// "rank 0 ended 1 and said: ...", a line for each: why a test failed.
std::string describe(const std::vector<ChildEnd>& ends);
}  // namespace headrace::testing
