// SPDX-License-Identifier: Apache-2.0
// The plan over several drives: which tile is where, and how large each swap file is.
#include <algorithm>

#include "residency/layout.hpp"
#include "swap/store_format.hpp"

namespace headrace::residency {
namespace {
void report_drives(Plan& plan, std::uint64_t bytes, const std::vector<std::string>& paths,
                   const std::vector<DriveInputs>& drives) {
  plan.report.drives.clear();
  for (std::size_t d = 0; d < drives.size() && bytes > 0; ++d) {
    plan.report.drives.push_back(
        {.path = d < paths.size() ? paths[d] : "",
         .bytes = plan.drive_bytes[d],
         .share = static_cast<double>(plan.drive_bytes[d]) / static_cast<double>(bytes),
         .read_bytes_per_second = drives[d].read_bytes_per_second,
         .write_bytes_per_second = drives[d].write_bytes_per_second});
  }
}
}  // namespace

void deal_again(Plan& plan, const partition::Partition& partition,
                const std::vector<std::string>& paths, const std::vector<DriveInputs>& drives) {
  std::vector<TileExtents> tiles;
  for (std::size_t t = 0; t < plan.tiles.size(); ++t)
    tiles.push_back(stored_extents(plan, partition, t));
  std::vector<DriveRoom> rooms;
  // A store has a file on every drive, so that each can be told from a missing one.
  const std::uint64_t commits =
      plan.durable()
          ? swap::first_slot_offset(plan.commit_record.size_bytes, plan.registration_bytes)
          : 0;
  for (const DriveInputs& drive : drives)
    rooms.push_back({drive.weight, drive.free_bytes - std::min(drive.free_bytes, commits)});
  const std::vector<std::uint32_t> dealt = deal_over_drives(tiles, rooms);
  plan.drive_bytes.assign(drives.size(), 0);
  std::vector<std::uint64_t> largest(drives.size(), 0);
  std::uint64_t bytes = 0;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const auto [record, weight, slots] = tiles[t];
    plan.tiles[t].drive = dealt[t];
    plan.drive_bytes[dealt[t]] += slots * (record + weight);
    largest[dealt[t]] = std::max({largest[dealt[t]], record, weight});
    bytes += slots * (record + weight);
  }
  report_drives(plan, bytes, paths, drives);
  PlanReport& report = plan.report;
  constexpr const char* kSpare = "spare extents";
  constexpr const char* kCommits = "commit records";
  std::erase_if(report.rows, [](const PlanRow& row) {
    return row.tier == "nvme" && (row.what == kSpare || row.what == kCommits);
  });
  report.nvme_bytes = bytes;
  for (std::size_t d = 0; d < drives.size(); ++d) {
    // Room for one more extent, where a failed write is repeated.
    add_row(plan, kSpare, "nvme", largest[d]);
    add_row(plan, kCommits, "nvme", commits);
    plan.drive_bytes[d] += largest[d] + commits;
    report.nvme_bytes += largest[d] + commits;
  }
}
}  // namespace headrace::residency
