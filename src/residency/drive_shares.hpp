// SPDX-License-Identifier: Apache-2.0
// drive_shares.hpp: assigns tiles to drives. Pure arithmetic.
//
// It assigns tiles in order, each to the drive that would finish its tiles first. So every range of
// tiles is spread over the drives by their weights, and all drives are busy whichever part of the
// model moves.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace headrace::residency {
// The swapped bytes of one tile.
struct TileExtents {
  std::uint64_t record_bytes = 0, weight_bytes = 0;
  std::uint32_t slots = 1;  // how many places it has on its drive for these bytes
};

struct DriveRoom {
  double weight = 1;  // 0: gets nothing
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();
};

// The drive of every tile: a function of the arguments alone. If a drive has less room than its
// share, it gets as many tiles as fit (beside one spare extent of the largest size), spread over
// all tiles, and the other drives get the rest. A tile that fits nowhere goes to the drive with the
// most room left: the later check then finds more bytes there than are free.
std::vector<std::uint32_t> deal_over_drives(std::span<const TileExtents> tiles,
                                            std::span<const DriveRoom> drives);

// The weight with which drives finish at the same time: the reciprocal of the seconds that one
// drive alone would take for these bytes. 0 for a speed of 0.
double weight_of_speed(double read_bytes, double read_bytes_per_second, double written_bytes,
                       double written_bytes_per_second);
}  // namespace headrace::residency
