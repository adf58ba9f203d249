// SPDX-License-Identifier: Apache-2.0
// drive_on_path.hpp: prepares one path: a run's directory there, a file in it, and the drive over
// the file.
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

// The options that all drives of a run share.
struct DriveOnPathOptions {
  Settings settings;
  std::uint32_t rank = 0;
  std::vector<std::span<std::byte>> buffers;
  LogSink log;
  IoQueueMaker make_queue;
  DriveMaker make_drive;
};

// Members are destroyed in reverse order: the drive drains before its file closes, and the file is
// unlinked before its directory is removed.
struct DriveOnPath {
  PathProbe path;
  std::unique_ptr<RunDirectory> directory;  // null for the file of a store
  std::unique_ptr<DriveFile> file;
  std::unique_ptr<Drive> drive;  // null, as are the two above, if nothing is stored there
};

// Of a drive over `file`, what the settings say. The rest is the caller's.
DriveOptions drive_options_of(const Settings& settings, const DriveFile& file);

// Creates the directory and the file (in full) and starts the drive; if `file_bytes` is 0, only
// sets the path. `suffix` ends the file's name: "rank0.1.swap". A failure leaves nothing behind.
DriveOnPath make_drive_on_path(async::Conductor& conductor, const DriveOnPathOptions& options,
                               const PathProbe& path, const std::string& run_id,
                               std::uint32_t index, std::uint64_t file_bytes, const char* suffix);
// Starts a drive over its file, which has none.
void start_drive(DriveOnPath& on, async::Conductor& conductor, const DriveOnPathOptions& options,
                 std::uint32_t index);
// The same over a file that is there.
DriveOnPath make_drive_on_path(async::Conductor& conductor, const DriveOnPathOptions& options,
                               const PathProbe& path, std::uint32_t index,
                               std::unique_ptr<DriveFile> file);
}  // namespace headrace::swap
