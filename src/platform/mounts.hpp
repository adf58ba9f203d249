// SPDX-License-Identifier: Apache-2.0
// mounts.hpp: the mounted file systems, as this process sees them.
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
  std::uint32_t major = 0, minor = 0;  // the device; major 0: not a block device
  std::string shown;  // the mounted folder of the file system: "/" unless bind-mounted
  std::string point;
  std::string options;        // of this mount: "rw,relatime"
  std::string file_system;    // "ext4"
  std::string source;         // "/dev/sda1"; as given to mount, not always a device
  std::string super_options;  // of the file system: "rw,discard"
};

// In the kernel's order: a later mount hides an earlier one at the same place. Empty if the file
// cannot be read. `root`, for tests, prefixes the path.
std::vector<Mount> mounts(const std::string& root = "");

// The mount that holds `path`. Without `root`, it asks the kernel. With `root`, or if the kernel
// cannot tell (before 5.8), it takes the last of the mounts with the longest mount point above
// `path`, which is then absolute.
std::optional<Mount> mount_of(const std::string& path, const std::string& root = "");

// True if `word` is one of "a,b,c".
bool lists_word(std::string_view comma_separated, std::string_view word);
}  // namespace headrace::platform
