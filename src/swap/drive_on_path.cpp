// SPDX-License-Identifier: Apache-2.0
#include "swap/drive_on_path.hpp"

#include <utility>

namespace headrace::swap {
DriveOptions drive_options_of(const Settings& settings, const DriveFile& file) {
  DriveOptions drive;
  drive.path = file.path();
  drive.fd = file.fd();
  drive.io_block_bytes = settings.io_block_bytes;
  drive.queue_depth = settings.queue_depth;
  drive.submit_batch = settings.submit_batch;
  drive.register_buffers = settings.register_buffers;
  drive.warn_seconds = settings.io_warn_seconds;
  drive.deadline_seconds = settings.io_deadline_seconds;
  return drive;
}

void start_drive(DriveOnPath& on, async::Conductor& conductor, const DriveOnPathOptions& options,
                 std::uint32_t index) {
  DriveOptions drive = drive_options_of(options.settings, *on.file);
  drive.index = index;
  drive.buffers = options.buffers;
  drive.log = options.log;
  drive.make_queue = options.make_queue;
  on.drive = options.make_drive(conductor, std::move(drive));
}

DriveOnPath make_drive_on_path(async::Conductor& conductor, const DriveOnPathOptions& options,
                               const PathProbe& path, const std::string& run_id,
                               std::uint32_t index, std::uint64_t file_bytes, const char* suffix) {
  DriveOnPath made;
  made.path = path;
  if (file_bytes == 0) return made;
  // Two drives may name one path (for tests): each has a directory of its own.
  made.directory = std::make_unique<RunDirectory>(
      path, index == 0 ? run_id : run_id + "-" + std::to_string(index), options.log);
  const std::string name =
      "rank" + std::to_string(options.rank) + "." + std::to_string(index) + "." + suffix;
  made.file = std::make_unique<SwapFile>(*made.directory, path, name, file_bytes);
  start_drive(made, conductor, options, index);
  return made;
}

DriveOnPath make_drive_on_path(async::Conductor& conductor, const DriveOnPathOptions& options,
                               const PathProbe& path, std::uint32_t index,
                               std::unique_ptr<DriveFile> file) {
  DriveOnPath made;
  made.path = path;
  made.file = std::move(file);
  start_drive(made, conductor, options, index);
  return made;
}
}  // namespace headrace::swap
