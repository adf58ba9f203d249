// SPDX-License-Identifier: Apache-2.0
#include "swap/lane.hpp"

#include <utility>

namespace headrace::swap {
namespace {
void start_drive(Lane& lane, async::Conductor& conductor, const LaneOptions& options,
                 std::uint32_t index) {
  const Settings& settings = options.settings;
  DriveOptions drive;
  drive.path = lane.file->path();
  drive.fd = lane.file->fd();
  drive.index = index;
  drive.io_block_bytes = settings.io_block_bytes;
  drive.queue_depth = settings.queue_depth;
  drive.submit_batch = settings.submit_batch;
  drive.register_buffers = settings.register_buffers;
  drive.warn_seconds = settings.io_warn_seconds;
  drive.deadline_seconds = settings.io_deadline_seconds;
  drive.buffers = options.buffers;
  drive.log = options.log;
  drive.make_queue = options.make_queue;
  lane.drive = options.make_drive(conductor, std::move(drive));
}
}  // namespace

Lane make_lane(async::Conductor& conductor, const LaneOptions& options, const PathProbe& path,
               const std::string& run_id, std::uint32_t index, std::uint64_t file_bytes,
               const char* suffix) {
  Lane lane;
  lane.path = path;
  if (file_bytes == 0) return lane;
  // Two drives may name one path (for tests): each has a directory of its own.
  lane.directory = std::make_unique<RunDirectory>(
      path, index == 0 ? run_id : run_id + "-" + std::to_string(index), options.log);
  const std::string name =
      "rank" + std::to_string(options.rank) + "." + std::to_string(index) + "." + suffix;
  lane.file = std::make_unique<SwapFile>(*lane.directory, path, name, file_bytes);
  start_drive(lane, conductor, options, index);
  return lane;
}

Lane make_lane(async::Conductor& conductor, const LaneOptions& options, const PathProbe& path,
               std::uint32_t index, std::unique_ptr<DriveFile> file) {
  Lane lane;
  lane.path = path;
  lane.file = std::move(file);
  start_drive(lane, conductor, options, index);
  return lane;
}
}  // namespace headrace::swap
