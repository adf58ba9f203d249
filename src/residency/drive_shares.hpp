// SPDX-License-Identifier: Apache-2.0
// drive_shares.hpp: which tile lies on which of several drives. Pure arithmetic.
//
// Tiles are dealt in their order, each to the drive that would be through with its tiles first. So
// every stretch of tiles is spread over the drives by their weights, and whatever part of the model
// is being moved, all of them are busy.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace headrace::residency {
// What of one tile is swapped.
struct TileExtents {
  std::uint64_t record_bytes = 0, weight_bytes = 0;
};

struct DriveRoom {
  double weight = 1;  // 0: gets nothing
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();
};

// The drive of every tile: a function of the arguments alone. A drive with less room than its
// weight asks for gets what fits (with one spare extent of the largest size on it), spread over all
// tiles, and the others the rest. Where a tile fits nowhere, it is given to the drive that has the
// most room left: whoever looks finds more bytes there than are free.
std::vector<std::uint32_t> deal_over_drives(std::span<const TileExtents> tiles,
                                            std::span<const DriveRoom> drives);

// By which drives are weighted so that they are through at the same time: the reciprocal of the
// seconds that one drive alone would take for so many bytes. 0 for a speed of 0.
double weight_of_speed(double read_bytes, double read_bytes_per_second, double written_bytes,
                       double written_bytes_per_second);
}  // namespace headrace::residency
