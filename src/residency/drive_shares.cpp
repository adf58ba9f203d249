// SPDX-License-Identifier: Apache-2.0
#include "residency/drive_shares.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace headrace::residency {
namespace {
std::uint64_t bytes_of(const TileExtents& tile) {
  return tile.slots * (tile.record_bytes + tile.weight_bytes);
}
std::uint64_t largest_extent(const TileExtents& tile) {
  return std::max(tile.record_bytes, tile.weight_bytes);
}

// Bytes each drive should have: by weight, and where there is less room than that, the room.
std::vector<double> targets(double bytes, double spare, std::span<const DriveRoom> drives) {
  std::vector<double> target(drives.size(), 0);
  std::vector<bool> full(drives.size(), false);
  for (bool again = true; again;) {
    again = false;
    double weights = 0, most = 0;
    for (const DriveRoom& drive : drives) most = std::max(most, drive.weight);
    for (std::size_t d = 0; d < drives.size(); ++d)
      weights += full[d] ? 0 : drives[d].weight / most;  // their sum may be no double
    if (weights <= 0) break;
    double taken = 0;
    for (std::size_t d = 0; d < drives.size(); ++d) {
      if (full[d]) continue;
      target[d] = bytes * (drives[d].weight / most) / weights;
      const double room = std::max(0.0, static_cast<double>(drives[d].free_bytes) - spare);
      if (target[d] <= room) continue;
      target[d] = room;
      taken += room;
      full[d] = again = true;
    }
    bytes -= taken;
  }
  return target;
}

// The bytes on one drive so far.
struct Load {
  std::uint64_t bytes = 0, spare = 0;
  std::uint64_t with(const TileExtents& tile) const {
    return bytes + bytes_of(tile) + std::max(spare, largest_extent(tile));
  }
};
}  // namespace

std::vector<std::uint32_t> deal_over_drives(std::span<const TileExtents> tiles,
                                            std::span<const DriveRoom> drives) {
  HEADRACE_CHECK(std::ranges::any_of(drives, [](const DriveRoom& d) { return d.weight > 0; }),
                 "there is a drive to deal to");
  std::uint64_t bytes = 0, largest = 0;
  for (const TileExtents& tile : tiles) {
    bytes += bytes_of(tile);
    largest = std::max(largest, largest_extent(tile));
  }
  const std::vector<double> target =
      targets(static_cast<double>(bytes), static_cast<double>(largest), drives);
  std::vector<Load> loads(drives.size());
  std::vector<std::uint32_t> dealt;
  dealt.reserve(tiles.size());
  for (const TileExtents& tile : tiles) {
    // The first to be through; else the one with the most room, whether it is enough or not.
    std::size_t best = drives.size(), roomiest = drives.size();
    double best_end = 0, most_room = 0;
    for (std::size_t d = 0; d < drives.size(); ++d) {
      if (drives[d].weight <= 0) continue;
      const double room = static_cast<double>(drives[d].free_bytes) -
                          static_cast<double>(loads[d].bytes + loads[d].spare);
      if (roomiest == drives.size() || room > most_room) {
        most_room = room;
        roomiest = d;
      }
      if (target[d] <= 0 || loads[d].with(tile) > drives[d].free_bytes) continue;
      const double end = static_cast<double>(loads[d].bytes + bytes_of(tile)) / target[d];
      if (best < drives.size() && end >= best_end) continue;
      best_end = end;
      best = d;
    }
    if (best == drives.size()) best = roomiest;
    loads[best].bytes += bytes_of(tile);
    loads[best].spare = std::max(loads[best].spare, largest_extent(tile));
    dealt.push_back(static_cast<std::uint32_t>(best));
  }
  return dealt;
}

double weight_of_speed(double read_bytes, double read_bytes_per_second, double written_bytes,
                       double written_bytes_per_second) {
  if (read_bytes_per_second <= 0 || written_bytes_per_second <= 0) return 0;
  if (read_bytes <= 0 && written_bytes <= 0) read_bytes = written_bytes = 1;  // frozen tiles alone
  const double seconds =
      read_bytes / read_bytes_per_second + written_bytes / written_bytes_per_second;
  return seconds > 0 ? 1 / seconds : 0;
}
}  // namespace headrace::residency
