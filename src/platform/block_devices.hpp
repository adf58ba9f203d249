// SPDX-License-Identifier: Apache-2.0
// block_devices.hpp: the drives below a path and the layers between, according to /sys.
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
  kMultipath,      // a target of device mapper
  kMapped,         // another target of device mapper
  kLoop,           // a file
  kMemory,         // zram, brd
};

struct BlockDevice {
  std::string name;    // the kernel's: "nvme0n1p2", "dm-0", "md127"
  std::string folder;  // under /sys, without links and without `root`
  std::string number;  // "259:2"
  BlockDeviceKind kind = BlockDeviceKind::kDisk;
  std::string detail;  // "raid0", a volume's name, a loop device's file; else empty
};

// The target of a link under /sys, without `root`; empty if there is none.
std::string resolved(const std::string& path, const std::string& root = "");

// The devices below `path`, each once: first the one that holds the file system, last the disks.
// Empty if /sys does not know the path. Any user may call it; it opens nothing at `path`. `root`,
// for tests, prefixes /proc and /sys; `path` is then absolute and need not exist.
std::vector<BlockDevice> devices_below(const std::string& path, const std::string& root = "");

// Empty if it has none, as with virtual disks.
std::string model_of(const BlockDevice& disk, const std::string& root = "");
// "Samsung SSD 990 PRO 2TB", "2 x KIOXIA CM7, Micron 7450". A disk without a model appears under
// its name, "vda (no model given)". Empty if no disk is known.
std::string model_text(const std::vector<BlockDevice>& devices, const std::string& root = "");
// For all paths, each model once, in alphabetical order, so that two lists of the same drives are
// equal: "KIOXIA CM7; Samsung SSD 990 PRO 2TB".
std::string models_text(const std::vector<std::string>& paths, const std::string& root = "");
}  // namespace headrace::platform
