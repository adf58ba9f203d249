// SPDX-License-Identifier: Apache-2.0
// block_devices.hpp: what a block device is made of, down to the disks, as /sys tells it.
#pragma once
#include <cstdint>
#include <optional>
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
const char* name_of(BlockDeviceKind kind) noexcept;  // "RAID", "dm-crypt", ...

struct BlockDevice {
  std::string name;    // the kernel's: "nvme0n1p2", "dm-0", "md127"
  std::string folder;  // under /sys, without links and without `root`
  std::string number;  // "259:2"
  BlockDeviceKind kind = BlockDeviceKind::kDisk;
  std::string detail;  // "raid0", a volume's name, a loop's file; else empty
};

// A slower link than device and slot could have costs bandwidth. 0: not said.
struct PcieLink {
  std::string address;                                           // "0000:01:00.0"
  double speed_gt = 0, max_speed_gt = 0, slot_max_speed_gt = 0;  // GT/s per lane
  std::uint32_t width = 0, max_width = 0, slot_max_width = 0;    // lanes
};
// GB/s (10^9) of payload that such a link carries at most; 0 if not known.
double link_gb_per_second(double speed_gt, std::uint32_t width) noexcept;
// Of the PCI device at `folder` or the nearest one above it; nothing without one.
std::optional<PcieLink> pcie_link(const std::string& folder, const std::string& root = "");

// What the kernel's queue of a disk is set to, and what the disk says of itself. Serial numbers are
// left out.
struct Disk {
  std::string name;       // "nvme0n1"
  std::string model;      // empty: it has none, as virtual disks
  std::string transport;  // "pcie", "tcp", "virtio", "usb", ...; empty: not known
  std::optional<bool> rotational;
  std::string scheduler;  // the one in use: "none", "mq-deadline"; empty: not said
  std::optional<std::uint64_t> max_sectors_kb, max_hw_sectors_kb, size_bytes;
  std::optional<PcieLink> link;
};

// The device `major`:`minor` and all that it stands on, itself first, each once; the last ones are
// disks. Empty when /sys does not know it. `root` prefixes all paths: for tests.
std::vector<BlockDevice> block_device_chain(std::uint32_t major, std::uint32_t minor,
                                            const std::string& root = "");
// The device of that name.
std::vector<BlockDevice> block_device_chain(const std::string& name, const std::string& root = "");

Disk read_disk(const BlockDevice& device, const std::string& root = "");
}  // namespace headrace::platform
