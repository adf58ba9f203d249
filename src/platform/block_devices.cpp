// SPDX-License-Identifier: Apache-2.0
#include "platform/block_devices.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "platform/mounts.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace fs = std::filesystem;
namespace {
constexpr std::size_t kMostDevices = 64;  // a chain is followed no further

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

// Of a link in /sys to a device.
std::vector<BlockDevice> chain_of(const std::string& link, const std::string& root) {
  std::vector<BlockDevice> chain;
  add_device(chain, resolved(link, root), root);
  return chain;
}

std::string link_of(std::uint64_t major, std::uint64_t minor) {
  return "/sys/dev/block/" + std::to_string(major) + ":" + std::to_string(minor);
}

// btrfs has a device number of its own; what was mounted then says which device it is.
std::vector<BlockDevice> devices_below_mount(const Mount& mount, const std::string& root) {
  if (mount.major != 0) return chain_of(link_of(mount.major, mount.minor), root);
  if (!mount.source.starts_with("/dev/")) return {};
  struct stat status {};
  if (root.empty() && ::stat(mount.source.c_str(), &status) == 0 && S_ISBLK(status.st_mode))
    return chain_of(link_of(major(status.st_rdev), minor(status.st_rdev)), root);
  return chain_of("/sys/class/block/" + mount.source.substr(mount.source.rfind('/') + 1), root);
}
}  // namespace

std::string resolved(const std::string& path, const std::string& root) {
  std::error_code error;
  const fs::path real = fs::canonical(root + path, error);
  if (error) return "";
  const fs::path real_root = root.empty() ? fs::path() : fs::canonical(root, error);
  return real.string().substr(root.empty() ? 0 : real_root.string().size());
}

// In a chroot the mount may not be listed; the device's number is there still.
std::vector<BlockDevice> devices_below(const std::string& path, const std::string& root) {
  if (const std::optional<Mount> mount = mount_of(path, root))
    return devices_below_mount(*mount, root);
  struct stat status {};
  if (!root.empty() || ::stat(path.c_str(), &status) != 0) return {};
  return chain_of(link_of(major(status.st_dev), minor(status.st_dev)), root);
}

std::string model_of(const BlockDevice& disk, const std::string& root) {
  return line_of(root + disk.folder + "/device/model");
}

std::string model_text(const std::vector<BlockDevice>& devices, const std::string& root) {
  std::vector<std::pair<std::string, int>> models;
  for (const BlockDevice& device : devices) {
    if (device.kind != BlockDeviceKind::kDisk) continue;
    std::string model = model_of(device, root);
    if (model.empty()) model = device.name + " (no model given)";
    const auto known = std::ranges::find(models, model, &std::pair<std::string, int>::first);
    if (known == models.end()) {
      models.emplace_back(model, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [model, count] : models) {
    text += (text.empty() ? "" : ", ") + (count > 1 ? std::to_string(count) + " x " : "") + model;
  }
  return text;
}

std::string models_text(const std::vector<std::string>& paths, const std::string& root) {
  std::set<std::string> models;
  for (const std::string& path : paths) models.insert(model_text(devices_below(path, root), root));
  models.erase("");
  std::string text;
  for (const std::string& model : models) text += (text.empty() ? "" : "; ") + model;
  return text;
}
}  // namespace headrace::platform
