// SPDX-License-Identifier: Apache-2.0
// block_devices.hpp: the drives below a path, and what lies between, as /sys tells it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::platform {
enum class BlockDeviceKind : std::uint8_t {
  kDisk,
  kPartition,
  kRaid,           // md
  kLogicalVolume,  // LVM
  kCrypt,          // dm-crypt
  kMultipath,      // of device mapper
  kMapped,         // another target of device mapper
  kLoop,           // a file
  kMemory,         // zram, brd
};

struct BlockDevice {
  std::string name;    // the kernel's: "nvme0n1p2", "dm-0", "md127"
  std::string folder;  // under /sys, without links and without `root`
  std::string number;  // "259:2"
  BlockDeviceKind kind = BlockDeviceKind::kDisk;
  std::string detail;  // "raid0", a volume's name, a loop's file; else empty
};

// Where a link under /sys leads, without `root`; empty: nowhere.
std::string resolved(const std::string& path, const std::string& root = "");

// What `path` lies on, the device that holds the file system first, each once; the last ones are
// disks. Empty where /sys does not know it. Any user may ask, and nothing at `path` is opened. With
// `root`, which prefixes /proc and /sys, `path` is absolute and need not exist: for tests.
std::vector<BlockDevice> devices_below(const std::string& path, const std::string& root = "");

// Empty: it has none, as virtual disks.
std::string model_of(const BlockDevice& disk, const std::string& root = "");
// "Samsung SSD 990 PRO 2TB", "2 x KIOXIA CM7, Micron 7450"; a disk without a model goes by its
// name, "vda (no model given)". Empty where no disk is known.
std::string model_text(const std::vector<BlockDevice>& devices, const std::string& root = "");
// Of all paths, each model once, in the order of the alphabet, so that two lists of the same drives
// are equal: "KIOXIA CM7; Samsung SSD 990 PRO 2TB".
std::string models_text(const std::vector<std::string>& paths, const std::string& root = "");
}  // namespace headrace::platform
