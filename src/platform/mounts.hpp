// SPDX-License-Identifier: Apache-2.0
// mounts.hpp: what is mounted where, as this process sees it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::platform {
// A line of /proc/self/mountinfo.
struct Mount {
  std::uint64_t id = 0;
  std::uint32_t major = 0, minor = 0;  // the device; major 0: none that is a block device
  std::string shown;  // the folder of the file system that is mounted: "/" unless bind-mounted
  std::string point;
  std::string options;        // of this mount: "rw,relatime"
  std::string file_system;    // "ext4"
  std::string source;         // "/dev/sda1"; what the file system was told, not always a device
  std::string super_options;  // of the file system: "rw,discard"
};

// In the kernel's order, so a later one hides an earlier one at the same place; empty when the file
// cannot be read. `root` prefixes the path: for tests.
std::vector<Mount> mounts(const std::string& root = "");

// The mount that `path` is in. Without `root` the kernel is asked; with one, or where it does not
// say (before 5.8), it is the last of those with the longest mount point above `path`, which is
// absolute then.
std::optional<Mount> mount_of(const std::string& path, const std::string& root = "");

// True if `word` is one of "a,b,c".
bool lists_word(std::string_view comma_separated, std::string_view word);
}  // namespace headrace::platform
