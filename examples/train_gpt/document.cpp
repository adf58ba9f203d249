// SPDX-License-Identifier: Apache-2.0
// document.cpp: where a report goes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "report.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

[[noreturn]] void fail_document(const std::string& path, int number) {
  fail(number == ENOENT ? Code::kNotFound : Code::kIo,
       "cannot write the report to '" + path + "': " + errno_text(number) +
           "; there would be no report. Give --json a file in a folder that exists and that you "
           "may write to.",
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
}  // namespace

void check_document_target(const std::string& target) {
  if (target.empty() || target == "-") return;
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
    fail_document(target, EISDIR);
  const std::string written = is_replaced(target) ? folder_of(target) : target;
  if (::access(written.c_str(), W_OK) != 0) fail_document(target, errno);
}

void write_document(const std::string& target, const std::string& document) {
  if (target.empty()) return;
  if (target == "-") {
    if (const int number = write_all(STDOUT_FILENO, document)) fail_document("stdout", number);
    return;
  }
  const bool replaced = is_replaced(target);
  const std::string path = replaced ? target + "." + std::to_string(::getpid()) : target;
  const int flags = replaced ? O_CREAT | O_EXCL : O_TRUNC;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) fail_document(path, errno);
  int number = write_all(descriptor, document);
  if (::close(descriptor) != 0 && number == 0) number = errno;
  if (number == 0 && replaced && ::rename(path.c_str(), target.c_str()) != 0) number = errno;
  if (number == 0) return;
  if (replaced) ::unlink(path.c_str());
  fail_document(target, number);
}
}  // namespace train_gpt
