// SPDX-License-Identifier: Apache-2.0
#include "machine/drive_facts.hpp"

#include <optional>
#include <string_view>

#include "platform/mounts.hpp"
#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::BlockDevice;
using platform::BlockDeviceKind;
using platform::lists_word;
using platform::Mount;
using platform::mount_of;
using platform::split;

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

DriveFacts drive_facts(const std::string& path, const std::string& root) {
  DriveFacts facts;
  if (const std::optional<Mount> mount = mount_of(path, root)) {
    facts.mount_point = mount->point;
    facts.file_system = mount->file_system;
    facts.mount_options = merged_options(*mount);
    facts.source = mount->source;
  }
  facts.chain = platform::devices_below(path, root);
  if (facts.chain.empty()) return facts;
  facts.device = facts.chain.front().name;
  facts.stack = stack_text(facts.chain);
  for (const BlockDevice& device : facts.chain) {
    if (device.kind == BlockDeviceKind::kDisk) facts.disks.push_back(read_disk(device, root));
  }
  return facts;
}
}  // namespace headrace::tools
