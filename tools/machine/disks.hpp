// SPDX-License-Identifier: Apache-2.0
// disks.hpp: a disk's facts: its own, the kernel's queue for it, and its PCIe link.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "platform/block_devices.hpp"

namespace headrace::tools {
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

// The settings of the kernel's queue of a disk, and the disk's own facts. Serial numbers are left
// out.
struct Disk {
  std::string name;       // "nvme0n1"
  std::string model;      // empty: it has none, as virtual disks
  std::string transport;  // "pcie", "tcp", "virtio", "usb", ...; empty: not known
  std::optional<bool> rotational;
  std::string scheduler;  // the one in use: "none", "mq-deadline"; empty: not said
  // "write back": what is written may be lost until it is flushed. "write through": it is not, says
  // the disk, and the kernel flushes nothing. Empty: not said.
  std::string write_cache;
  std::optional<std::uint64_t> max_sectors_kb, max_hw_sectors_kb, size_bytes;
  std::optional<PcieLink> link;
};

// `root` prefixes all paths: for tests.
Disk read_disk(const platform::BlockDevice& device, const std::string& root = "");
}  // namespace headrace::tools
