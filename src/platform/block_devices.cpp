// SPDX-License-Identifier: Apache-2.0
#include "platform/block_devices.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace fs = std::filesystem;
namespace {
constexpr std::uint64_t kSectorBytes = 512;  // of every count in /sys/block, whatever the disk has
constexpr std::size_t kMostDevices = 64;     // a chain is followed no further

// Where a link under /sys leads, without `root`; empty: nowhere.
std::string resolved(const std::string& path, const std::string& root) {
  std::error_code error;
  const fs::path real = fs::canonical(root + path, error);
  if (error) return "";
  const fs::path real_root = root.empty() ? fs::path() : fs::canonical(root, error);
  return real.string().substr(root.empty() ? 0 : real_root.string().size());
}

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string line_of(const std::string& path) { return read_line(path).value_or(""); }

void classify_mapped(BlockDevice& device, const std::string& folder) {
  const std::string uuid = line_of(folder + "/dm/uuid");
  device.detail = line_of(folder + "/dm/name");
  device.kind = uuid.starts_with("LVM-")     ? BlockDeviceKind::kLogicalVolume
                : uuid.starts_with("CRYPT-") ? BlockDeviceKind::kCrypt
                : uuid.starts_with("mpath-") ? BlockDeviceKind::kMultipath
                                             : BlockDeviceKind::kMapped;
}

void classify(BlockDevice& device, const std::string& root) {
  const std::string folder = root + device.folder;
  if (is_there(folder + "/partition")) {
    device.kind = BlockDeviceKind::kPartition;
  } else if (is_there(folder + "/dm")) {
    classify_mapped(device, folder);
  } else if (is_there(folder + "/md")) {
    device.kind = BlockDeviceKind::kRaid;
    device.detail = line_of(folder + "/md/level");
  } else if (device.name.starts_with("loop")) {
    device.kind = BlockDeviceKind::kLoop;
    device.detail = line_of(folder + "/loop/backing_file");
  } else if (device.name.starts_with("zram") || device.name.starts_with("ram")) {
    device.kind = BlockDeviceKind::kMemory;
  }
}

// Depth first: what a device stands on comes right after it.
void add_device(std::vector<BlockDevice>& chain, const std::string& folder,
                const std::string& root) {
  const auto known = std::ranges::find(chain, folder, &BlockDevice::folder);
  if (folder.empty() || known != chain.end() || chain.size() >= kMostDevices) return;
  BlockDevice device;
  device.folder = folder;
  device.name = fs::path(folder).filename().string();
  device.number = line_of(root + folder + "/dev");
  classify(device, root);
  chain.push_back(device);
  if (device.kind == BlockDeviceKind::kPartition) {
    add_device(chain, fs::path(folder).parent_path().string(), root);
    return;
  }
  for (const std::string& name : names_in(root + folder + "/slaves"))
    add_device(chain, resolved(folder + "/slaves/" + name, root), root);
}

// The controller of an NVMe namespace: its parent; with several paths one of the subsystem's.
std::string nvme_controller(const std::string& folder, const std::string& root) {
  const std::string parent = fs::path(folder).parent_path().string();
  if (is_there(root + parent + "/transport")) return parent;
  for (const std::string& name : names_in(root + parent)) {
    const std::string controller = resolved(parent + "/" + name, root);
    if (name.starts_with("nvme") && is_there(root + controller + "/transport")) return controller;
  }
  return "";
}

std::string transport_of(const BlockDevice& device, const std::string& root) {
  if (device.name.starts_with("nvme")) {
    return line_of(root + nvme_controller(device.folder, root) + "/transport");
  }
  if (device.folder.find("/virtio") != std::string::npos) return "virtio";
  if (device.folder.find("/usb") != std::string::npos) return "usb";
  if (device.folder.find("/ata") != std::string::npos) return "sata";
  if (device.name.starts_with("mmcblk")) return "mmc";
  return "";
}

// "16.0 GT/s PCIe"; 0 for "Unknown".
double speed_of(const std::string& path) {
  const std::string line = line_of(path);
  double value = 0;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}
std::uint32_t width_of(const std::string& path) {
  const std::uint64_t lanes = read_number(path).value_or(0);
  return lanes > 32 ? 0 : static_cast<std::uint32_t>(lanes);  // 255 where it is not known
}
}  // namespace

const char* name_of(BlockDeviceKind kind) noexcept {
  switch (kind) {
    case BlockDeviceKind::kDisk:
      return "disk";
    case BlockDeviceKind::kPartition:
      return "partition";
    case BlockDeviceKind::kRaid:
      return "RAID";
    case BlockDeviceKind::kLogicalVolume:
      return "LVM";
    case BlockDeviceKind::kCrypt:
      return "dm-crypt";
    case BlockDeviceKind::kMultipath:
      return "multipath";
    case BlockDeviceKind::kMapped:
      return "device mapper";
    case BlockDeviceKind::kLoop:
      return "loop";
    case BlockDeviceKind::kMemory:
      return "memory";
  }
  return "disk";
}

double link_gb_per_second(double speed_gt, std::uint32_t width) noexcept {
  // Lanes below 8 GT/s send 8 bits as 10, those above 128 as 130.
  const double coding = speed_gt < 8 ? 0.8 : 128.0 / 130;
  return speed_gt * coding * width / 8;
}

std::optional<PcieLink> pcie_link(const std::string& folder, const std::string& root) {
  fs::path at = folder;
  while (at.has_relative_path() && !is_there(root + at.string() + "/current_link_speed"))
    at = at.parent_path();
  if (!at.has_relative_path()) return std::nullopt;
  const std::string device = root + at.string(), slot = root + at.parent_path().string();
  PcieLink link;
  link.address = at.filename().string();
  link.speed_gt = speed_of(device + "/current_link_speed");
  link.width = width_of(device + "/current_link_width");
  link.max_speed_gt = speed_of(device + "/max_link_speed");
  link.max_width = width_of(device + "/max_link_width");
  link.slot_max_speed_gt = speed_of(slot + "/max_link_speed");
  link.slot_max_width = width_of(slot + "/max_link_width");
  return link;
}

std::vector<BlockDevice> block_device_chain(std::uint32_t major, std::uint32_t minor,
                                            const std::string& root) {
  std::vector<BlockDevice> chain;
  const std::string number = std::to_string(major) + ":" + std::to_string(minor);
  add_device(chain, resolved("/sys/dev/block/" + number, root), root);
  return chain;
}

std::vector<BlockDevice> block_device_chain(const std::string& name, const std::string& root) {
  std::vector<BlockDevice> chain;
  add_device(chain, resolved("/sys/class/block/" + name, root), root);
  return chain;
}

Disk read_disk(const BlockDevice& device, const std::string& root) {
  Disk disk;
  disk.name = device.name;
  const std::string folder = root + device.folder;
  disk.model = line_of(folder + "/device/model");
  disk.transport = transport_of(device, root);
  if (const auto rotational = read_number(folder + "/queue/rotational"))
    disk.rotational = *rotational != 0;
  disk.scheduler = bracketed(line_of(folder + "/queue/scheduler"));
  disk.max_sectors_kb = read_number(folder + "/queue/max_sectors_kb");
  disk.max_hw_sectors_kb = read_number(folder + "/queue/max_hw_sectors_kb");
  if (const auto sectors = read_number(folder + "/size")) disk.size_bytes = *sectors * kSectorBytes;
  const std::string controller = device.name.starts_with("nvme")
                                     ? nvme_controller(device.folder, root)
                                     : resolved(device.folder + "/device", root);
  if (!controller.empty()) disk.link = pcie_link(controller, root);
  return disk;
}
}  // namespace headrace::platform
