// SPDX-License-Identifier: Apache-2.0
#include "command_line/report_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::command_line {
namespace {
Error unwritable(const std::string& target, const std::string& option, int number) {
  const std::string what = option == "--json" ? "the report" : "the file of " + option;
  const bool full = number == ENOSPC || number == EDQUOT;
  const Code code = number == ENOENT ? Code::kNotFound : full ? Code::kNoSpace : Code::kIo;
  return Error(code,
               "cannot write " + what + " to '" + target + "': " + base::errno_text(number) +
                   "; there would be none. Give " + option +
                   " a file in a folder that exists and that you may write to.",
               number);
}

// 0 or an errno.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR) return errno;
    if (done > 0) bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return 0;
}

// A pipe or a terminal is written to; a file is replaced, so that it is never half there.
bool is_replaced(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

// What becomes the file when it is whole.
std::string temporary_for(const std::string& target) {
  return target + "." + std::to_string(::getpid());
}
int open_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
}
}  // namespace

void check_report_target(const std::string& target, const std::string& option) {
  if (target.empty() || target == "-") return;
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
    throw unwritable(target, option, EISDIR);
  if (!is_replaced(target)) {
    if (::access(target.c_str(), W_OK) != 0) throw unwritable(target, option, errno);
    return;
  }
  // Tried and not asked: the name may be too long, the file system read-only.
  const std::string path = temporary_for(target);
  const int descriptor = open_new(path);
  if (descriptor < 0) throw unwritable(target, option, errno);
  ::close(descriptor);
  ::unlink(path.c_str());
}

void write_report(const std::string& target, const std::string& document,
                  const std::string& option) {
  if (target.empty()) return;
  if (target == "-") {
    if (const int number = write_all(STDOUT_FILENO, document))
      throw unwritable("stdout", option, number);
    return;
  }
  const bool replaced = is_replaced(target);
  const std::string path = replaced ? temporary_for(target) : target;
  const int descriptor =
      replaced ? open_new(path) : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_TRUNC);
  if (descriptor < 0) throw unwritable(target, option, errno);
  int number = write_all(descriptor, document);
  if (::close(descriptor) != 0 && number == 0) number = errno;
  if (number == 0 && replaced && ::rename(path.c_str(), target.c_str()) != 0) number = errno;
  if (number == 0) return;
  if (replaced) ::unlink(path.c_str());
  throw unwritable(target, option, number);
}
}  // namespace headrace::command_line
