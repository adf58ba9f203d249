// SPDX-License-Identifier: Apache-2.0
// The devices between a path's file system and its disks, each disk's queue and link, and the
// limits of control groups.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "machine/process_limits.hpp"
#include "platform/cgroups.hpp"

namespace headrace::tools {
namespace {
using platform::BlockDevice;
using platform::BlockDeviceKind;

void note(Row& row, const std::string& consequence, const std::string& fix) {
  row.mark = Mark::kNote;
  row.consequence = consequence;
  row.fix = fix;
}

// Judges the row by the worst device in the chain.
void judge_stack(Row& row, const std::vector<BlockDevice>& chain) {
  const auto find = [&](BlockDeviceKind kind) {
    const auto found = std::ranges::find(chain, kind, &BlockDevice::kind);
    return found == chain.end() ? nullptr : &*found;
  };
  if (find(BlockDeviceKind::kMemory) != nullptr) {
    row.mark = Mark::kGap;
    row.consequence = "what is swapped there stays in the memory that it is meant to free";
    row.fix = "name a directory on a drive";
  } else if (const BlockDevice* crypt = find(BlockDeviceKind::kCrypt)) {
    note(row, "the CPU encrypts every byte, beside the updates that it has to do",
         fmt::format("cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue {}, or "
                     "a file system that is not encrypted",
                     crypt->detail));
  } else if (find(BlockDeviceKind::kLoop) != nullptr) {
    note(row, "every byte goes through a file of another file system",
         "name a directory on that one");
  } else if (const BlockDevice* array = find(BlockDeviceKind::kRaid)) {
    if (array->detail == "raid5" || array->detail == "raid6" || array->detail == "raid4")
      note(row, "writes read and compute parity first; swapped state is scratch and needs none",
           "one nvme_path per drive, or a raid0");
  }
}

Row stack_row(const DriveFacts& facts) {
  Row row{.name = "block device",
          .value = facts.stack == "disk" ? facts.device
                                         : fmt::format("{}: {}", facts.device, facts.stack)};
  row.values["devices"] = Json::array();
  for (const BlockDevice& device : facts.chain) {
    row.values["devices"].push_back({{"name", device.name},
                                     {"number", device.number},
                                     {"kind", name_of(device.kind)},
                                     {"detail", device.detail}});
  }
  judge_stack(row, facts.chain);
  return row;
}

// Virtual disks report what their host is configured to report.
bool is_virtual(const Disk& disk) { return disk.transport == "virtio"; }

Row disk_row(const Disk& disk) {
  Row row{.name = "drive", .value = disk.model.empty() ? "no model given" : disk.model};
  if (disk.size_bytes) row.value += fmt::format(", {}", base::format_bytes(*disk.size_bytes));
  if (!disk.transport.empty()) row.value += fmt::format(", {}", disk.transport);
  row.values = {{"name", disk.name},
                {"model", disk.model},
                {"transport", disk.transport},
                {"size_bytes", or_null(disk.size_bytes)},
                {"rotational", or_null(disk.rotational)}};
  if (disk.rotational.value_or(false) && !is_virtual(disk)) {
    note(row, "a spinning disk: 0.1 to 0.3 GB/s, so steps wait for it",
         "name a directory on an NVMe drive");
  } else if (disk.transport == "usb") {
    note(row, "USB: often below 1 GB/s", "name a directory on an NVMe drive");
  }
  return row;
}

Row queue_settings_row(const Disk& disk) {
  constexpr std::uint64_t kSmallRequestKib = 512;
  Row row{.name = "its queue", .value = ""};
  const auto add = [&](const std::string& text) {
    row.value += (row.value.empty() ? "" : ", ") + text;
  };
  if (!disk.scheduler.empty()) add("scheduler " + disk.scheduler);
  if (disk.max_sectors_kb) add(fmt::format("requests up to {} KiB", *disk.max_sectors_kb));
  row.values = {{"scheduler", disk.scheduler},
                {"max_sectors_kb", or_null(disk.max_sectors_kb)},
                {"max_hw_sectors_kb", or_null(disk.max_hw_sectors_kb)}};
  if (row.value.empty()) row.mark = Mark::kUnknown;
  const std::string folder = "/sys/block/" + disk.name + "/queue/";
  const std::uint64_t most = disk.max_hw_sectors_kb.value_or(0);
  if (disk.scheduler == "bfq" && !disk.rotational.value_or(true)) {
    note(row, "bfq shares a drive fairly at the cost of its bandwidth",
         fmt::format("echo none | sudo tee {}scheduler", folder));
  } else if (disk.max_sectors_kb.value_or(kSmallRequestKib) < kSmallRequestKib &&
             most > *disk.max_sectors_kb) {
    note(row, "larger requests are split, which costs CPU time",
         fmt::format("echo {} | sudo tee {}max_sectors_kb", most, folder));
  }
  return row;
}

std::string link_text(double speed_gt, std::uint32_t width) {
  return fmt::format("{} GT/s x{}", speed_gt, width);
}

Row link_row(const PcieLink& link) {
  Row row{.name = "its PCIe link", .value = link_text(link.speed_gt, link.width)};
  row.values = {{"address", link.address},
                {"speed_gt", link.speed_gt},
                {"width", link.width},
                {"max_speed_gt", link.max_speed_gt},
                {"max_width", link.max_width},
                {"slot_max_speed_gt", link.slot_max_speed_gt},
                {"slot_max_width", link.slot_max_width}};
  const double now = link_gb_per_second(link.speed_gt, link.width);
  const double drive = link_gb_per_second(link.max_speed_gt, link.max_width);
  if (now == 0) {
    row.mark = Mark::kUnknown;
    row.value = "";
    return row;
  }
  row.value += fmt::format(", at most {:.1f} GB/s", now);
  if (drive <= now) return row;
  // The speed on which slot and drive can agree.
  const double best = link_gb_per_second(std::min(link.slot_max_speed_gt, link.max_speed_gt),
                                         std::min(link.slot_max_width, link.max_width));
  note(row,
       fmt::format("the drive could do {} ({:.1f} GB/s)",
                   link_text(link.max_speed_gt, link.max_width), drive),
       best > now ? "its slot could as well: reseat the drive, look at the BIOS and at dmesg for "
                    "link errors"
                  : "the slot does no more: a faster one");
  return row;
}

void add_cap(Row& row, const IoCap& cap) {
  const std::array fields{std::pair{cap.read_bytes, "read"}, std::pair{cap.write_bytes, "written"}};
  for (const auto& [bytes, verb] : fields) {
    if (!bytes) continue;
    row.value +=
        fmt::format("{}{}/s {}", row.value.empty() ? "" : ", ", base::format_bytes(*bytes), verb);
  }
  const std::array counts{std::pair{cap.reads, "reads"}, std::pair{cap.writes, "writes"}};
  for (const auto& [count, noun] : counts) {
    if (!count) continue;
    row.value += fmt::format("{}{} {} a second", row.value.empty() ? "" : ", ", *count, noun);
  }
  row.detail += (row.detail.empty() ? "" : "; ") + cap.source;
}

Row caps_row(const DriveFacts& facts, const std::string& root) {
  Row row{.name = "cgroup limit", .value = ""};
  for (const IoCap& cap : io_caps(root)) {
    const bool ours = std::ranges::any_of(
        facts.chain, [&](const BlockDevice& device) { return device.number == cap.number; });
    if (ours) add_cap(row, cap);
  }
  if (row.value.empty()) {
    const bool seen = !platform::cgroup_levels("blkio", root).empty();
    row.value = seen ? "none" : "";
    if (!seen) row.mark = Mark::kUnknown;
  } else {
    note(row, "the drive serves no more than that", "a higher limit of the container or job");
  }
  return row;
}

// If there are several disks, each row has its disk's name.
void add_disk(std::vector<Row>& rows, const Disk& disk, bool several) {
  std::vector<Row> own{disk_row(disk), queue_settings_row(disk)};
  if (disk.link && !is_virtual(disk)) own.push_back(link_row(*disk.link));
  for (Row& row : own) {
    if (several) row.name += " " + disk.name;
    row.values["disk"] = disk.name;
    rows.push_back(std::move(row));
  }
}
}  // namespace

std::vector<Row> drive_rows(const DriveFacts& facts, const std::string& root) {
  if (facts.chain.empty()) {
    Row row{.name = "block device", .value = "", .mark = Mark::kUnknown};
    row.detail = "the file system has none, or /sys does not show it here";
    return {row};
  }
  std::vector<Row> rows{stack_row(facts)};
  for (const Disk& disk : facts.disks) add_disk(rows, disk, facts.disks.size() > 1);
  rows.push_back(caps_row(facts, root));
  return rows;
}
}  // namespace headrace::tools
