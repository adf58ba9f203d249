// SPDX-License-Identifier: Apache-2.0
#include "support/child_processes.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace headrace::testing {
namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenLooks(5);
constexpr std::size_t kSaidBytesMax = 4000;  // of a description

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// One of a name: programs differ in which of two they take.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string inherited = *variable;
    const std::string name = inherited.substr(0, inherited.find('=') + 1);
    if (std::ranges::none_of(variables, [&](const auto& own) { return own.starts_with(name); }))
      all.push_back(inherited);
  }
  return all;
}
}  // namespace

std::string ChildProcesses::path_of(std::size_t child) const {
  return folder_.string() + "/said-" + std::to_string(child);
}

std::size_t ChildProcesses::start(const std::vector<std::string>& words,
                                  const std::vector<std::string>& variables) {
  const std::size_t number = children_.size();
  const std::vector<std::string> all = environment_with(variables);
  const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(all);
  const int said = ::open(path_of(number).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (said < 0) throw std::runtime_error("no file for what " + words[0] + " says");
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) {  // other threads' locks may be held for ever: system calls alone
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(said, STDOUT_FILENO);
    ::dup2(said, STDERR_FILENO);
    ::execve(arguments[0], arguments.data(), environment.data());
    ::_exit(127);
  }
  ::close(said);
  if (process < 0) throw std::runtime_error("fork() failed for " + words[0]);
  children_.push_back({.process = process, .running = true, .end = {}});
  return number;
}

// True: it has ended, and its end is known.
bool ChildProcesses::look(Child& child, int flags) {
  int status = 0;
  if (!child.running || ::waitpid(child.process, &status, flags) != child.process)
    return !child.running;
  child.running = false;
  child.end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return true;
}

bool ChildProcesses::wait_for(std::size_t child, const std::string& words,
                              std::chrono::milliseconds most) {
  const Clock::time_point end = Clock::now() + most;
  for (;;) {
    const bool over = look(children_.at(child), WNOHANG) || Clock::now() >= end;
    if (read(path_of(child)).find(words) != std::string::npos) return true;
    if (over) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

void ChildProcesses::signal(std::size_t child, int number) {
  if (!look(children_.at(child), WNOHANG)) ::kill(children_.at(child).process, number);
}

std::vector<ChildEnd> ChildProcesses::wait(std::chrono::milliseconds most) {
  const Clock::time_point end = Clock::now() + most;
  std::vector<ChildEnd> ends;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    while (!look(child, WNOHANG) && Clock::now() < end) std::this_thread::sleep_for(kBetweenLooks);
    if (child.running) {
      child.end.killed = true;
      ::kill(child.process, SIGKILL);
      look(child, 0);
    }
    child.end.said = read(path_of(i));
    ends.push_back(child.end);
  }
  return ends;
}

ChildProcesses::~ChildProcesses() {
  for (Child& child : children_) {
    if (look(child, WNOHANG)) continue;
    ::kill(child.process, SIGKILL);
    look(child, 0);
  }
}

// Bound until this process ends, and never listened on: no other program is given the port by
// chance, and a server that sets SO_REUSEADDR can listen there.
std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

std::string describe(const std::vector<ChildEnd>& ends) {
  std::string text;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const ChildEnd& end = ends[i];
    const std::size_t skipped =
        end.said.size() > kSaidBytesMax ? end.said.size() - kSaidBytesMax : 0;
    text += "process " + std::to_string(i) +
            (end.killed          ? " did not end in time and was killed"
             : end.exit_code < 0 ? " was ended by signal " + std::to_string(-end.exit_code)
                                 : " ended " + std::to_string(end.exit_code)) +
            "; it last said:\n" + end.said.substr(skipped) + "\n";
  }
  return text;
}
}  // namespace headrace::testing
