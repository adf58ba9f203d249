// SPDX-License-Identifier: Apache-2.0
// A path that swap files may lie in: written to, read from and measured, with what it stands on.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "headrace/error.hpp"
#include "platform/mounts.hpp"
#include "swap/io_buffer.hpp"
#include "swap/io_queue.hpp"
#include "swap/swap_file.hpp"

namespace headrace::tools {
namespace {
using base::format_bytes;

// The result of a trial; without a probe, `error` says why.
struct Trial {
  std::optional<swap::PathProbe> probe;
  std::string error;
};

Trial try_path(const std::string& path) {
  Settings settings;
  settings.allow_memory_backed = true;  // a row says so; no refusal
  try {
    return {swap::probe_path(path, settings), ""};
  } catch (const Error& error) {
    if (error.code() == Code::kNotFound) throw;
    return {std::nullopt, error.what()};
  }
}

Row directory_row(const std::string& path, const Trial& trial) {
  Row row{.name = "directory", .value = "64 KiB written, read back and compared"};
  row.findings = {{"writable", trial.probe ? 1u : 0u}};
  row.values["writable"] = trial.probe.has_value();
  row.values["path"] = trial.probe ? trial.probe->path : path;
  if (trial.probe) return row;
  row.mark = Mark::kGap;
  row.value = "cannot be used";
  tell_error(row, trial.error);
  return row;
}

Row direct_row(const Trial& trial) {
  Row row{.name = "O_DIRECT", .value = ""};
  if (!trial.probe) {
    row.mark = Mark::kUnknown;
    row.detail = "nothing can be written there, so it could not be tried";
    row.findings = {{"o_direct", std::nullopt}};
    return row;
  }
  row.findings = {{"o_direct", trial.probe->direct ? 1u : 0u}};
  row.values = {{"works", trial.probe->direct}, {"alignment_bytes", trial.probe->alignment_bytes}};
  if (trial.probe->direct) {
    row.value = fmt::format("works, aligned to {} bytes", trial.probe->alignment_bytes);
    return row;
  }
  row.mark = trial.probe->memory_backed ? Mark::kGap : Mark::kNote;
  row.value = fmt::format("{} has none", trial.probe->file_system);
  row.consequence =
      trial.probe->memory_backed
          ? "its files are in memory, which swapping is meant to free; runs refuse it"
          : "transfers go through the page cache: several times slower, with far more "
            "CPU time";
  row.fix = trial.probe->memory_backed ? "name a directory on a drive"
                                       : "name a directory on ext4 or xfs";
  return row;
}

// A file of one block that is gone when it is closed.
base::UniqueFd open_block(const swap::PathProbe& probe) {
  const int direct = probe.direct ? O_DIRECT : 0;
  base::UniqueFd file(
      ::open(probe.path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | direct, S_IRUSR | S_IWUSR));
  if (!file) return file;
  const swap::IoBuffer block = swap::make_io_buffer(base::kIoAlignment);
  const auto size = static_cast<ssize_t>(base::kIoAlignment);
  if (::pwrite(file.get(), block.get(), base::kIoAlignment, 0) != size) return {};
  return file;
}

// Nothing where the file system has no nameless files.
std::optional<Row> queue_row(const Trial& trial) {
  if (!trial.probe) return std::nullopt;
  const base::UniqueFd file = open_block(*trial.probe);
  if (!file) return std::nullopt;
  const int descriptor = file.get();
  Row row{.name = "I/O queue", .value = ""};
  try {
    const auto chosen = swap::choose_io_queue(IoQueueKind::kAuto, {.files = {&descriptor, 1}});
    const std::string name = chosen.queue->name();
    row.value = name == "uring" ? "io_uring" : name == "aio" ? "Linux AIO" : "threads";
    row.detail = chosen.reason;
    row.values["queue"] = name;
  } catch (const Error& error) {
    row.mark = Mark::kGap;
    row.value = "none works";
    row.detail = error.what();
    row.consequence = "runs that offload to this path cannot start";
  }
  return row;
}

bool is_remote(const std::string& type) {
  constexpr std::array kRemote{"nfs",    "nfs4", "cifs",   "smb3",       "ceph",     "9p",
                               "lustre", "gpfs", "beegfs", "fuse.sshfs", "glusterfs"};
  return std::ranges::find(kRemote, type) != kRemote.end();
}

Row file_system_row(const DriveFacts& facts, const Trial& trial) {
  Row row{.name = "file system", .value = facts.file_system};
  if (row.value.empty() && trial.probe) row.value = trial.probe->file_system;
  if (row.value.empty()) row.mark = Mark::kUnknown;
  if (!facts.mount_point.empty())
    row.detail = fmt::format("mounted at {} ({})", facts.mount_point, facts.mount_options);
  row.values = {{"type", row.value},
                {"mount_point", facts.mount_point},
                {"options", facts.mount_options},
                {"source", facts.source}};
  const auto note = [&row](const char* consequence, const char* fix) {
    row.mark = Mark::kNote;
    row.consequence = consequence;
    row.fix = fix;
  };
  if (is_remote(row.value)) {
    note("a network carries every byte, and others share it", "name a directory on a local drive");
  } else if (row.value == "overlay") {
    note("it is a container's own layer; what lies beneath cannot be seen from here",
         "mount a directory of the host's drive as a volume");
  } else if (row.value == "btrfs" || row.value == "zfs" || row.value == "bcachefs") {
    note("it copies on write and checks sums of its own: more CPU time, and files scatter",
         row.value == "btrfs" ? "chattr +C on the empty directory, or ext4 or xfs" : "ext4 or xfs");
  } else if (platform::lists_word(facts.mount_options, "data=journal")) {
    note("data=journal writes everything twice and has no O_DIRECT", "mount with data=ordered");
  } else if (platform::lists_word(facts.mount_options, "sync")) {
    note("every write waits for the drive's medium", "mount without sync");
  }
  return row;
}

Row space_row(const std::string& path) {
  constexpr std::uint64_t kLittle = base::kGiB;
  Row row{.name = "free space", .value = ""};
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0 || status.f_blocks == 0) {
    row.mark = Mark::kUnknown;
    row.findings = {{"free", std::nullopt}};
    return row;
  }
  const std::uint64_t free = std::uint64_t{status.f_bavail} * status.f_frsize;
  const std::uint64_t total = std::uint64_t{status.f_blocks} * status.f_frsize;
  row.value = fmt::format("{} of {}", format_bytes(free), format_bytes(total));
  row.detail = fmt::format("the state of {} bf16 parameters, at 12 bytes each",
                           count_text(static_cast<double>(free) / 12));
  row.values = {{"free_bytes", free}, {"total_bytes", total}};
  struct stat place {};  // tells paths that share their space
  if (::stat(path.c_str(), &place) == 0) row.values["device"] = std::uint64_t{place.st_dev};
  row.findings = {{"free", free}};
  if (free >= kLittle) return row;
  row.mark = Mark::kNote;
  row.consequence = "a run that needs more is refused at its start";
  row.fix = "free some, or name a directory on another file system";
  return row;
}
}  // namespace

Section path_section(const std::string& path) {
  const Trial trial = try_path(path);
  const std::string real = trial.probe ? trial.probe->path : path;
  const DriveFacts facts = drive_facts(real);
  Section section{.title = "Path " + real, .path = real, .rows = {}};
  section.rows = {directory_row(path, trial), direct_row(trial)};
  if (auto row = queue_row(trial)) section.rows.push_back(*std::move(row));
  if (trial.probe && !trial.probe->memory_backed) {
    if (const auto times = flush_times(open_block(*trial.probe)); !times.empty())
      section.rows.push_back(flush_row(times, facts));
  }
  section.rows.push_back(file_system_row(facts, trial));
  section.rows.push_back(space_row(real));
  const bool in_memory = trial.probe && trial.probe->memory_backed;
  if (!in_memory) {
    for (Row& row : drive_rows(facts)) section.rows.push_back(std::move(row));
  }
  return section;
}
}  // namespace headrace::tools
