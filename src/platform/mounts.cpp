// SPDX-License-Identifier: Apache-2.0
#include "platform/mounts.hpp"

#include <fcntl.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
// mountinfo writes blanks and backslashes as \040 and so on.
std::string unescape_octal(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 3);
    if (text[i] == '\\' && digits.size() == 3 &&
        digits.find_first_not_of("01234567") == std::string_view::npos) {
      plain.push_back(
          static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0')));
      i += 3;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// "36 35 0:30 SHOWN POINT OPTIONS [FIELDS] - TYPE SOURCE SUPER_OPTIONS"
std::optional<Mount> parse_mount(std::string_view line) {
  const std::size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  const auto before = split(line.substr(0, dash), ' ');
  const auto after = split(line.substr(dash + 3), ' ');
  if (before.size() < 6 || after.empty()) return std::nullopt;
  Mount mount;
  mount.id = parse_number(before[0]).value_or(0);
  const auto device = split(before[2], ':');
  if (device.size() == 2) {
    mount.major = static_cast<std::uint32_t>(parse_number(device[0]).value_or(0));
    mount.minor = static_cast<std::uint32_t>(parse_number(device[1]).value_or(0));
  }
  mount.shown = unescape_octal(before[3]);
  mount.point = unescape_octal(before[4]);
  mount.options = before[5];
  mount.file_system = after[0];
  if (after.size() > 1) mount.source = unescape_octal(after[1]);
  if (after.size() > 2) mount.super_options = after[2];
  return mount;
}

// Nothing before Linux 5.8, which does not say.
std::optional<std::uint64_t> mount_id_of(const std::string& path) {
  struct statx status {};
  if (::syscall(SYS_statx, AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &status) != 0)
    return std::nullopt;
  if ((status.stx_mask & STATX_MNT_ID) == 0) return std::nullopt;
  return status.stx_mnt_id;
}

bool lies_below(std::string_view path, std::string_view point) {
  if (point == "/") return path.starts_with('/');
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

std::string canonical_or_same(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real == nullptr ? path : std::string(real.get());
}
}  // namespace

std::vector<Mount> mounts(const std::string& root) {
  std::vector<Mount> found;
  const std::string text = read_text(root + "/proc/self/mountinfo").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    if (auto mount = parse_mount(line)) found.push_back(*std::move(mount));
  }
  return found;
}

std::optional<Mount> mount_of(const std::string& path, const std::string& root) {
  const std::vector<Mount> all = mounts(root);
  if (root.empty()) {
    if (const auto id = mount_id_of(path)) {
      const auto same = std::ranges::find(all, *id, &Mount::id);
      if (same != all.end()) return *same;
    }
  }
  const std::string real = root.empty() ? canonical_or_same(path) : path;
  const Mount* longest = nullptr;
  for (const Mount& mount : all) {
    if (!lies_below(real, mount.point)) continue;
    if (longest == nullptr || mount.point.size() >= longest->point.size()) longest = &mount;
  }
  return longest == nullptr ? std::nullopt : std::optional(*longest);
}

bool lists_word(std::string_view comma_separated, std::string_view word) {
  const auto words = split(comma_separated, ',');
  return std::ranges::find(words, word) != words.end();
}
}  // namespace headrace::platform
