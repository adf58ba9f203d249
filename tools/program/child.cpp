// SPDX-License-Identifier: Apache-2.0
#include "program/child.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "headrace/error.hpp"
#include "program/signals.hpp"

extern char** environ;

namespace headrace::tools {
namespace {
constexpr int kBetweenLooksMs = 100;

struct Pipe {
  base::UniqueFd read_end, write_end;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(Code::kIo, "a pipe could not be created: " + base::errno_text(errno), errno);
    read_end = base::UniqueFd(ends[0]);
    write_end = base::UniqueFd(ends[1]);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  return result;
}

pid_t start(const std::vector<std::string>& words, const std::vector<std::string>& environment,
            const Pipe& out, const Pipe& err) {
  std::vector<char*> argv = pointers(words), env = pointers(environment);
  argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) env.push_back(*entry);
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.write_end.get(), STDERR_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), env.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return child;
  throw Error(error == ENOENT ? Code::kNotFound : Code::kIo,
              fmt::format("{} cannot be run: {}", words[0], base::errno_text(error)), error);
}

// Appends what is there; false at the end.
bool drain(const base::UniqueFd& from, std::string& to) {
  std::array<char, 65536> buffer;
  const ssize_t got = TEMP_FAILURE_RETRY(::read(from.get(), buffer.data(), buffer.size()));
  if (got > 0) to.append(buffer.data(), static_cast<std::size_t>(got));
  return got > 0;
}
}  // namespace

ChildResult run_child(const std::vector<std::string>& words,
                      const std::vector<std::string>& environment) {
  Pipe out, err;
  const pid_t child = start(words, environment, out, err);
  out.write_end.reset();
  err.write_end.reset();
  ChildResult result;
  bool told = false, out_open = true, err_open = true;
  while (out_open || err_open) {
    std::array<pollfd, 2> ends{pollfd{out_open ? out.read_end.get() : -1, POLLIN, 0},
                               pollfd{err_open ? err.read_end.get() : -1, POLLIN, 0}};
    const int ready = ::poll(ends.data(), ends.size(), kBetweenLooksMs);
    if (signal_received() != 0 && !told) {
      told = true;
      ::kill(child, SIGTERM);
    }
    if (ready <= 0) continue;
    if (ends[0].revents != 0) out_open = drain(out.read_end, result.out);
    if (ends[1].revents != 0) err_open = drain(err.read_end, result.err);
  }
  int status = 0;
  TEMP_FAILURE_RETRY(::waitpid(child, &status, 0));
  check_signal();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}
}  // namespace headrace::tools
