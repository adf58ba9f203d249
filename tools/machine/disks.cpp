// SPDX-License-Identifier: Apache-2.0
#include "machine/disks.hpp"

#include <charconv>
#include <filesystem>
#include <system_error>

#include "platform/proc_files.hpp"

namespace headrace::tools {
namespace fs = std::filesystem;
using platform::BlockDevice;
using platform::bracketed;
using platform::names_in;
using platform::read_line;
using platform::read_number;
using platform::resolved;

namespace {
constexpr std::uint64_t kSectorBytes = 512;  // of every count in /sys/block, whatever the disk has

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string line_of(const std::string& path) { return read_line(path).value_or(""); }

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

Disk read_disk(const BlockDevice& device, const std::string& root) {
  Disk disk;
  disk.name = device.name;
  const std::string folder = root + device.folder;
  disk.model = platform::model_of(device, root);
  disk.transport = transport_of(device, root);
  if (const auto rotational = read_number(folder + "/queue/rotational"))
    disk.rotational = *rotational != 0;
  disk.scheduler = bracketed(line_of(folder + "/queue/scheduler"));
  disk.write_cache = line_of(folder + "/queue/write_cache");
  disk.max_sectors_kb = read_number(folder + "/queue/max_sectors_kb");
  disk.max_hw_sectors_kb = read_number(folder + "/queue/max_hw_sectors_kb");
  if (const auto sectors = read_number(folder + "/size")) disk.size_bytes = *sectors * kSectorBytes;
  const std::string controller = device.name.starts_with("nvme")
                                     ? nvme_controller(device.folder, root)
                                     : resolved(device.folder + "/device", root);
  if (!controller.empty()) disk.link = pcie_link(controller, root);
  return disk;
}
}  // namespace headrace::tools
