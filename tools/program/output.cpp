// SPDX-License-Identifier: Apache-2.0
#include "program/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/error_text.hpp"
#include "program/exit_codes.hpp"

namespace headrace::tools {
namespace {
int stdout_errno = 0;  // of the first write that failed
}

void put(std::FILE* to, std::string_view text) noexcept {
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), to) == text.size() && std::fflush(to) == 0;
  if (!written && to == stdout && stdout_errno == 0) stdout_errno = errno == 0 ? EIO : errno;
}

int finish_output(const char* program, int exit_code) noexcept {
  put(stdout, "");
  if (stdout_errno == 0 || stdout_errno == EPIPE) return exit_code;
  tell(
      "{}: cannot write to stdout: {}; what it had to say there is not whole. Give it another "
      "stdout, or the report a file with --json.\n",
      program, base::errno_text(stdout_errno));
  return exit_code == kDone ? int{kFailed} : exit_code;
}

void hold_standard_descriptors() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // It takes the lowest free number, which is this one. The other way round than it is used, so
    // that what is printed to a closed stdout still counts as lost.
    const int flags = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", flags) < 0) ::open("/", O_RDONLY | O_DIRECTORY);
  }
}
}  // namespace headrace::tools
