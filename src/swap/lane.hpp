// SPDX-License-Identifier: Apache-2.0
// lane.hpp: one path made ready: a run's directory there, a file in it, and the drive over the
// file. (A lane of a trace or a plan is something else: a line that events are drawn on.)
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/log.hpp"
#include "headrace/settings.hpp"
#include "swap/drive.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap {
using DriveMaker = std::function<std::unique_ptr<Drive>(async::Conductor&, DriveOptions)>;

// What all lanes of a run have in common.
struct LaneOptions {
  Settings settings;
  std::uint32_t rank = 0;
  std::vector<std::span<std::byte>> buffers;
  LogSink log;
  IoQueueMaker make_queue;
  DriveMaker make_drive;
};

// Members go in reverse order: the drive drains before its file closes, the file is unlinked before
// its directory goes.
struct Lane {
  PathProbe path;
  std::unique_ptr<RunDirectory> directory;
  std::unique_ptr<SwapFile> file;
  std::unique_ptr<Drive> drive;  // null, as are the two above: nothing is stored there
};

// Makes directory and file (in full) and starts the drive; of `file_bytes` 0 only the path is set.
// `suffix` ends the file's name: "rank0.1.swap". Throws, with nothing left behind.
Lane make_lane(async::Conductor& conductor, const LaneOptions& options, const PathProbe& path,
               const std::string& run_id, std::uint32_t index, std::uint64_t file_bytes,
               const char* suffix);
}  // namespace headrace::swap
