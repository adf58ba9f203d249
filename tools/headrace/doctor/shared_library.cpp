// SPDX-License-Identifier: Apache-2.0
#include "doctor/shared_library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"

namespace headrace::tools {
namespace {
constexpr int kPatienceMs = 10'000;

struct Answer {
  int loads = 0, version = 0;
  char error[200] = {};
};

Answer load(const std::string& library, const std::string& version_function) {
  Answer answer;
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const text = ::dlerror();
    std::strncpy(answer.error, text == nullptr ? "" : text, sizeof answer.error - 1);
    return answer;
  }
  answer.loads = 1;
  if (void* const symbol = ::dlsym(handle, version_function.c_str()))
    reinterpret_cast<int (*)(int*)>(symbol)(&answer.version);
  return answer;
}

[[noreturn]] void run_child(int to, const std::string& library, const std::string& function) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
  // The output of a library is not this program's result.
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) {
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
  }
  const Answer answer = load(library, function);
  const ssize_t written = ::write(to, &answer, sizeof answer);
  ::_exit(written == sizeof answer ? 0 : 1);
}

bool read_answer(int from, Answer& answer) {
  pollfd waiting{from, POLLIN, 0};
  const int ready = ::poll(&waiting, 1, kPatienceMs);  // ended early by Ctrl-C
  // Smaller than a pipe's atomic write: it comes whole or not at all.
  return ready > 0 && ::read(from, &answer, sizeof answer) == sizeof answer;
}

// One that is stuck in a driver cannot be ended: it is left behind.
void end_child(pid_t child) {
  ::kill(child, SIGKILL);
  for (int i = 0; i < 100 && ::waitpid(child, nullptr, WNOHANG) == 0; ++i) ::usleep(10'000);
}
}  // namespace

LibraryTrial try_library(const std::string& library, const std::string& version_function) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {.error = base::errno_text(errno)};
  const base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) run_child(to.get(), library, version_function);
  to = {};
  if (child < 0) return {.error = base::errno_text(errno)};
  Answer answer;
  if (!read_answer(from.get(), answer)) {
    end_child(child);
    return {.harmful = true, .error = library + " ended or stalled the process that loaded it"};
  }
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {.loads = answer.loads != 0, .version = answer.version, .error = answer.error};
}
}  // namespace headrace::tools
