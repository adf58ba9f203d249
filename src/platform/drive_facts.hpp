// SPDX-License-Identifier: Apache-2.0
// drive_facts.hpp: what a path lies on: file system, mount, and the drives beneath.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "platform/block_devices.hpp"

namespace headrace::platform {
// What could not be read is empty; nothing is guessed.
struct DriveFacts {
  std::string mount_point;
  std::string file_system;    // "ext4", as the kernel names the mounted type
  std::string mount_options;  // of the mount and of the file system, each once: "rw,relatime"
  std::string source;         // what was mounted: "/dev/nvme0n1p2", "server:/export"
  std::string device;         // the block device that holds the file system: "dm-0"
  std::string stack;          // from there down: "LVM, dm-crypt, partition"; "disk" if it is one
  std::vector<BlockDevice> chain;  // from `device` down
  std::vector<Disk> disks;         // at its bottom
};

// Reads /proc/self/mountinfo and /sys; opens nothing at `path` itself. Any user may. With `root`,
// which prefixes /proc and /sys, `path` is absolute and need not exist: for tests.
DriveFacts drive_facts(const std::string& path, const std::string& root = "");

// "Samsung SSD 990 PRO 2TB", "2 x KIOXIA CM7, Micron 7450"; a disk without a model goes by its
// name, "vda (no model given)". Empty where no disk is known.
std::string model_text(const DriveFacts& facts);
// Of all paths, each model once, in the order of the alphabet, so that two lists of the same drives
// are equal: "KIOXIA CM7; Samsung SSD 990 PRO 2TB".
std::string models_text(const std::vector<std::string>& paths, const std::string& root = "");
}  // namespace headrace::platform
