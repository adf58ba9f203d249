// SPDX-License-Identifier: Apache-2.0
// drive_measure.hpp: measures the speed of several drives while all of them work at the same time,
// so that the rates account for shared parts (a link, a controller), as in the engine.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "swap/drive_on_path.hpp"

namespace headrace::swap {
struct DriveSpeed {
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  // 0: failed, or left out
  std::string failure = {};  // the transfer that failed and its errno; empty if none failed
  int sys_errno = 0;         // its errno; 0: none failed, or it was short
};

// The largest file that is written and read on each drive, and the longest duration of each of the
// three passes (a first write, writing over it, reading), except for transfers in flight then.
inline constexpr std::uint64_t kMeasuredFileBytes = 64ull << 20;
inline constexpr std::chrono::milliseconds kMeasuredPass{250};
inline constexpr int kMeasuredPasses = 3;

// Measures on files of `file_bytes` (0: that drive is left out), which are gone on return. Uses
// `memory` for all transfers, and leaves zeros in it. Calls `before_pass` before each of the
// kMeasuredPasses, with no transfer under way. Not for use on the conductor. Throws the errors of
// creating directories, files and drives, and those of `before_pass`. Throws kIoStalled if a
// transfer never completed: the kernel may then still write to `memory`.
std::vector<DriveSpeed> measure_drives(async::Conductor& conductor,
                                       const DriveOnPathOptions& options,
                                       const std::vector<PathProbe>& paths,
                                       const std::vector<std::uint64_t>& file_bytes,
                                       std::span<std::byte> memory,
                                       const std::function<void()>& before_pass);
}  // namespace headrace::swap
