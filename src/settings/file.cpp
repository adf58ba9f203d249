// SPDX-License-Identifier: Apache-2.0
// Settings::from_file: the bytes of a settings file.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "settings/given.hpp"

namespace headrace {
namespace {
// Far above any settings file; keeps /dev/zero and model files out.
constexpr std::size_t kMostBytes = 4 * base::kMiB;

[[noreturn]] void fail(const std::string& path, int sys_errno) {
  const bool missing = sys_errno == ENOENT || sys_errno == ENOTDIR;
  const char* fix = missing               ? "; check the path"
                    : sys_errno == EISDIR ? "; name a file in it"
                                          : "; make it readable for this user";
  throw Error(missing ? Code::kNotFound : Code::kIo,
              "settings file '" + path + "' cannot be read: " + base::errno_text(sys_errno) + fix,
              sys_errno);
}
}  // namespace

Settings Settings::from_file(const std::string& path, const std::vector<std::string>& overrides) {
  return from_file(path, ReadOptions{.overrides = overrides});
}

Settings Settings::from_file(const std::string& path, const ReadOptions& options) {
  return from_json(settings::read_settings_file(path), path, options);
}
}  // namespace headrace

namespace headrace::settings {
std::string read_settings_file(const std::string& path) {
  // Not blocking: a pipe without a writer would hold the program until it is killed.
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail(path, errno);
  std::string text;
  char piece[16384];
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece, sizeof piece);
    if (got == 0) break;
    if (got < 0 && errno == EAGAIN) {
      pollfd readable{fd.get(), POLLIN, 0};
      if (::poll(&readable, 1, -1) < 0 && errno != EINTR) fail(path, errno);
      continue;
    }
    if (got < 0 && errno != EINTR) fail(path, errno);
    if (got > 0) text.append(piece, static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) {
      throw Error(Code::kSettings, "settings file '" + path + "' is larger than " +
                                       base::format_bytes(kMostBytes) +
                                       "; it is not a settings file");
    }
  }
  return text;
}
}  // namespace headrace::settings
