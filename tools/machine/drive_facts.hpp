// SPDX-License-Identifier: Apache-2.0
// drive_facts.hpp: the file system and mount of a path, and the drives beneath them.
#pragma once
#include <string>
#include <vector>

#include "machine/disks.hpp"
#include "platform/block_devices.hpp"

namespace headrace::tools {
const char* name_of(platform::BlockDeviceKind kind) noexcept;  // "RAID", "dm-crypt", ...

// A fact that could not be read is empty; nothing is guessed.
struct DriveFacts {
  std::string mount_point;
  std::string file_system;    // "ext4", as the kernel names the mounted type
  std::string mount_options;  // of the mount and of the file system, each once: "rw,relatime"
  std::string source;         // what was mounted: "/dev/nvme0n1p2", "server:/export"
  std::string device;         // the block device that holds the file system: "dm-0"
  std::string stack;          // from there down: "LVM, dm-crypt, partition"; "disk" if it is one
  std::vector<platform::BlockDevice> chain;  // from `device` down
  std::vector<Disk> disks;                   // at its bottom
};

// Reads /proc/self/mountinfo and /sys; opens nothing at `path` itself. Any user may. With `root`,
// which prefixes /proc and /sys, `path` is absolute and need not exist: for tests.
DriveFacts drive_facts(const std::string& path, const std::string& root = "");
}  // namespace headrace::tools
