// SPDX-License-Identifier: Apache-2.0
#include "platform/drive_facts.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <set>
#include <utility>

#include "platform/mounts.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
std::string merged_options(const Mount& mount) {
  std::string merged;
  for (const std::string* options : {&mount.options, &mount.super_options}) {
    for (const std::string_view word : split(*options, ',')) {
      if (lists_word(merged, word)) continue;
      merged += (merged.empty() ? "" : ",") + std::string(word);
    }
  }
  return merged;
}

// btrfs has a device number of its own; what was mounted then says which device it is.
std::vector<BlockDevice> chain_of(const Mount& mount, const std::string& root) {
  if (mount.major != 0) return block_device_chain(mount.major, mount.minor, root);
  if (!mount.source.starts_with("/dev/")) return {};
  struct stat status {};
  if (root.empty() && ::stat(mount.source.c_str(), &status) == 0 && S_ISBLK(status.st_mode))
    return block_device_chain(major(status.st_rdev), minor(status.st_rdev));
  return block_device_chain(mount.source.substr(mount.source.rfind('/') + 1), root);
}

// In a chroot the mount may not be listed; the device's number is there still.
std::vector<BlockDevice> chain_by_number(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return block_device_chain(major(status.st_dev), minor(status.st_dev));
}

std::string stack_text(const std::vector<BlockDevice>& chain) {
  std::string text;
  for (const BlockDevice& device : chain) {
    if (device.kind == BlockDeviceKind::kDisk && chain.size() > 1) continue;
    std::string name = name_of(device.kind);
    if (device.kind == BlockDeviceKind::kRaid && !device.detail.empty())
      name += " (" + device.detail + ")";
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}
}  // namespace

DriveFacts drive_facts(const std::string& path, const std::string& root) {
  DriveFacts facts;
  if (const std::optional<Mount> mount = mount_of(path, root)) {
    facts.mount_point = mount->point;
    facts.file_system = mount->file_system;
    facts.mount_options = merged_options(*mount);
    facts.source = mount->source;
    facts.chain = chain_of(*mount, root);
  } else if (root.empty()) {
    facts.chain = chain_by_number(path);
  }
  if (facts.chain.empty()) return facts;
  facts.device = facts.chain.front().name;
  facts.stack = stack_text(facts.chain);
  for (const BlockDevice& device : facts.chain) {
    if (device.kind == BlockDeviceKind::kDisk) facts.disks.push_back(read_disk(device, root));
  }
  return facts;
}

std::string model_text(const DriveFacts& facts) {
  std::vector<std::pair<std::string, int>> models;
  for (const Disk& disk : facts.disks) {
    const std::string model = disk.model.empty() ? disk.name + " (no model given)" : disk.model;
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
  for (const std::string& path : paths) models.insert(model_text(drive_facts(path, root)));
  models.erase("");
  std::string text;
  for (const std::string& model : models) text += (text.empty() ? "" : "; ") + model;
  return text;
}
}  // namespace headrace::platform
