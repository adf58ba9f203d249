// SPDX-License-Identifier: Apache-2.0
#include "command_line/report_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::command_line {
namespace {
constexpr std::size_t kBeginBytes = 1024;

std::string what_of(const std::string& option) {
  if (option == "--json") return "the report";
  return "the file of " + option;
}

Error unwritable(const std::string& target, const std::string& option, Code code, int number) {
  return Error(code,
               "cannot write " + what_of(option) + " to '" + target +
                   "': " + base::errno_text(number) + "; there would be none. Give " + option +
                   " a file in a folder that exists and that you may write to.",
               number);
}

// Before there is anything to write.
Error refused(const std::string& target, const std::string& option, int number) {
  const bool missing = number == ENOENT || number == ENOTDIR;
  const bool full = number == ENOSPC || number == EDQUOT;
  return unwritable(target, option,
                    missing ? Code::kNotFound
                    : full  ? Code::kNoSpace
                            : Code::kInvalidArgument,
                    number);
}

Error refused(const std::string& target, const std::string& option, const std::string& cause,
              const std::string& fix) {
  return Error(Code::kInvalidArgument, "cannot write " + what_of(option) + " to '" + target +
                                           "': it is " + cause + ". Give " + option + " " + fix +
                                           ".");
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

bool is_null_device(const struct stat& status) {
  return S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3);
}

// "" where it may be written as a file.
std::string special_kind(mode_t mode) {
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISCHR(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a symbolic link";
  return "";
}

// The first bytes of a regular file; nothing where it is empty. Throws where they cannot be seen.
std::optional<std::string> begin_of(const std::string& target, const std::string& option) {
  const int descriptor =
      ::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) throw refused(target, option, errno);
  std::array<char, kBeginBytes> bytes;
  const ssize_t got = TEMP_FAILURE_RETRY(::read(descriptor, bytes.data(), bytes.size()));
  const int number = errno;
  ::close(descriptor);
  if (got < 0) throw refused(target, option, number);
  if (got == 0) return std::nullopt;
  return std::string(bytes.data(), static_cast<std::size_t>(got));
}

// True where the target takes anything and keeps nothing. Throws for what is not ours to write.
bool check_what_is_there(const std::string& target, const std::string& option,
                         MayReplace may_replace) {
  struct stat status {};
  if (::lstat(target.c_str(), &status) != 0) {
    if (errno != ENOENT) throw refused(target, option, errno);
    return false;
  }
  if (S_ISDIR(status.st_mode)) throw refused(target, option, EISDIR);
  if (is_null_device(status)) return true;
  const std::string kind = special_kind(status.st_mode);
  if (!kind.empty()) {
    throw refused(
        target, option, kind + ", and only files are written",
        option == "--trace" ? "the name of a file" : "the name of a file, or - for stdout");
  }
  const auto begin = begin_of(target, option);
  if (begin && !may_replace(*begin)) {
    throw refused(target, option, "not a report of ours, and what it holds would be lost",
                  "another name, or remove it first");
  }
  return false;
}

// Creates the new file beside the target that becomes the target when it is whole. Returns its
// descriptor, or -1 and errno.
int open_temporary(const std::string& target, std::string& path) {
  for (int i = 0; i < 100; ++i) {
    path = target + "." + std::to_string(::getpid()) + (i == 0 ? "" : "." + std::to_string(i));
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
  return -1;
}

// Over blanks, then `word`; false where something else is there.
bool take(std::string_view& text, std::string_view word) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat one {
  }, other{};
  if (::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0)
    return !is_null_device(one) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  const auto whole = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  };
  return a == b || whole(a) == whole(b);
}
}  // namespace

bool is_own_report(std::string_view begin) {
  if (!take(begin, "{") || !take(begin, "\"schema_version\"") || !take(begin, ":") ||
      !take(begin, "1") || !take(begin, ",") || !take(begin, "\"program\"") || !take(begin, ":") ||
      !take(begin, "\""))
    return false;
  const std::string_view program = begin.substr(0, begin.find('"'));
  constexpr std::array<std::string_view, 4> kOthers = {"adapter_bench", "drives_bench", "train_gpt",
                                                       "update_bench"};
  return program.starts_with("headrace ") || std::ranges::count(kOthers, program) > 0;
}

bool is_checked_before(std::string_view) { return true; }

void check_report_target(const std::string& target, const std::string& option,
                         MayReplace may_replace) {
  if (target.empty() || target == "-") return;
  if (check_what_is_there(target, option, may_replace)) return;
  // Tried and not asked: the name may be too long, the file system read-only.
  std::string path;
  const int descriptor = open_temporary(target, path);
  if (descriptor < 0) throw refused(target, option, errno);
  ::close(descriptor);
  ::unlink(path.c_str());
}

void check_targets_differ(const std::vector<std::pair<std::string, std::string>>& named) {
  for (auto one = named.begin(); one != named.end(); ++one) {
    for (auto other = named.begin(); other != one; ++other) {
      if (one->second.empty() || other->second.empty()) continue;
      if ((one->second == "-") != (other->second == "-")) continue;
      if (one->second != "-" && !same_file(one->second, other->second)) continue;
      throw Error(Code::kInvalidArgument, other->first + " and " + one->first + " both name " +
                                              (one->second == "-" ? "stdout" : one->second) +
                                              "; one would be lost. Give each a file of its own.");
    }
  }
}

void write_report(const std::string& target, const std::string& document, const std::string& option,
                  MayReplace may_replace) {
  if (target.empty()) return;
  if (target == "-") {
    const int number = write_all(STDOUT_FILENO, document);
    if (number == 0 || number == EPIPE) return;
    throw unwritable("stdout", option, Code::kIo, number);
  }
  // Again: it may have changed while there was something to do.
  if (check_what_is_there(target, option, may_replace)) return;
  std::string path;
  const int descriptor = open_temporary(target, path);
  if (descriptor < 0) throw refused(target, option, errno);
  int number = write_all(descriptor, document);
  if (::close(descriptor) != 0 && number == 0) number = errno;
  if (number == 0 && ::rename(path.c_str(), target.c_str()) != 0) number = errno;
  if (number == 0) return;
  ::unlink(path.c_str());
  throw unwritable(target, option, Code::kIo, number);
}
}  // namespace headrace::command_line
