// SPDX-License-Identifier: Apache-2.0
// drive_measure.hpp: how fast several drives are, all of them at work at the same time, so that
// what they share (a link, a controller) is seen as the engine will see it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "swap/lane.hpp"

namespace headrace::swap {
struct DriveSpeed {
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  // 0: failed, or left out
  std::string failure = {};  // what the transfer that failed was, and its errno; empty: none did
  int sys_errno = 0;         // of it; 0: none, or it came short
};

// The largest file that is written and read on each drive, and how long each of the three passes
// (a first write, writing over it, reading) goes on at most, but for what is in flight then.
inline constexpr std::uint64_t kMeasuredFileBytes = 64ull << 20;
inline constexpr std::chrono::milliseconds kMeasuredPass{250};

// Measures on files of `file_bytes` (0: that drive is left out), which are gone when it returns.
// `memory` is used for all transfers, and holds zeros afterwards. Not on the conductor. Throws what
// making directories, files and drives throws; and kIoStalled when a transfer never completed: then
// the kernel may still write to `memory`.
std::vector<DriveSpeed> measure_drives(async::Conductor& conductor, const LaneOptions& options,
                                       const std::vector<PathProbe>& paths,
                                       const std::vector<std::uint64_t>& file_bytes,
                                       std::span<std::byte> memory);
}  // namespace headrace::swap
