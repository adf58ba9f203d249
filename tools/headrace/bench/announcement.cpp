// SPDX-License-Identifier: Apache-2.0
#include "bench/announcement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/units.hpp"
#include "bench/rounds.hpp"
#include "bench/target.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;
constexpr std::uint64_t kLeastFile = 64 * base::kMiB;

bool any_writes(const BenchOptions& options) {
  return std::ranges::any_of(options.workloads,
                             [](const Workload& w) { return writes(w.pattern); });
}

std::uint64_t largest_unit(const BenchOptions& options) {
  std::uint64_t unit = 0;
  for (const Workload& w : options.workloads) unit = std::max(unit, w.block_bytes * w.jobs);
  return unit;
}

// Those on one file system, once.
void add_sharing_warnings(Measurement& measurement) {
  std::vector<std::string> paths;
  for (const MeasuredDrive& drive : measurement.drives) paths.push_back(drive.path);
  for (const std::string& path : paths) {
    const std::vector<std::string> together = sharing(paths, path);
    if (together.size() < 2 || together.front() != path) continue;
    std::string names;
    for (const std::string& name : together) names += (names.empty() ? "" : " and ") + name;
    measurement.warnings.push_back(
        names +
        " are on one file system, so they share its drive, and neither shows what it can "
        "do; name one directory on each drive");
  }
}

// Checks the time that is known beforehand: one round, and fio's starts for it.
void check_time(const BenchOptions& options) {
  if (options.as_fio) return;
  const auto needed = [&](std::uint32_t rounds) {
    return least_seconds(options.workloads, rounds, options.compare_fio);
  };
  if (needed(1) <= options.most_seconds) return;
  const std::size_t count = options.workloads.size();
  throw Fault{
      fmt::format("one round of {} workload{}{} needs at least {:.0f} s, and --runtime allows "
                  "{:.0f} s",
                  count, count == 1 ? "" : "s",
                  options.compare_fio ? ", each by fio as well, which has to start each time," : "",
                  std::ceil(needed(1)), options.most_seconds),
      fmt::format("Give --runtime {:.0f}s, which six rounds need, or fewer workloads",
                  std::ceil(1.2 * needed(6)) + 2)};
}

// With several requests for one block, a read might find the bytes of before a write, or of after.
void check_mixed(const Workload& w, std::uint64_t file_bytes) {
  const std::uint64_t in_flight = std::uint64_t{w.depth} * w.block_bytes * w.jobs;
  if (w.pattern != Pattern::kMixed || in_flight <= file_bytes) return;
  throw Fault{
      fmt::format("{} requests of {} in each of {} jobs are {}, and --size is {}: some would "
                  "read and write one block at the same time",
                  w.depth, base::format_bytes(w.block_bytes), w.jobs, base::format_bytes(in_flight),
                  base::format_bytes(file_bytes)),
      "Give a larger --size, or a smaller --iodepth or --bs"};
}
}  // namespace

void check_workloads(const BenchOptions& options) {
  check_paths(options.paths);
  for (const std::string& path : options.paths) {
    if (is_writable_target(path)) continue;
    if (options.paths.size() > 1)
      throw Fault{path + " is no directory, and several drives are measured through files",
                  "Name directories, or that one alone"};
    for (const Workload& workload : options.workloads) {
      if (writes(workload.pattern))
        throw Fault{fmt::format("{} is no directory, so it is only read, and {} is to be measured",
                                path, text_of(workload)),
                    "Give --rw read,randread, or name a directory on the drive"};
    }
  }
  if (options.compare_fio && options.paths.size() > 1)
    throw Fault{"--compare fio measures one drive at a time, and several were named",
                "Name one directory"};
  if (largest_unit(options) * 2 > options.file_bytes)
    throw Fault{fmt::format("--size {} holds fewer than two blocks of {} per job",
                            base::format_bytes(options.file_bytes),
                            base::format_bytes(largest_unit(options))),
                "Give a larger --size or a smaller --bs"};
  for (const Workload& workload : options.workloads) check_mixed(workload, options.file_bytes);
  check_time(options);
  if (!any_writes(options) && options.file_bytes <= options.most_written_bytes) return;
  const std::uint64_t rounds = std::min<std::uint64_t>(options.rounds, 6);
  const std::uint64_t least =
      options.file_bytes + least_written_bytes(options.workloads,
                                               static_cast<std::uint32_t>(rounds),
                                               options.compare_fio);
  if (least > options.most_written_bytes)
    throw Fault{
        fmt::format("{} rounds of these workloads write at least {} per drive, the file of "
                    "{} included, and --max-write allows {}",
                    rounds, base::format_bytes(least), base::format_bytes(options.file_bytes),
                    base::format_bytes(options.most_written_bytes)),
        fmt::format("Give --max-write {}M, or fewer workloads", base::ceil_div(least, base::kMiB))};
}

void check_file(const BenchOptions& options, const std::string& file, std::uint64_t bytes) {
  if (largest_unit(options) <= bytes) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} holds {}, less than a block for each job; nothing was measured. Give "
                          "a smaller --bs or fewer --jobs",
                          file, base::format_bytes(bytes)));
}

void check_paths(const std::vector<std::string>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (is_same_place(paths[i], paths[j]))
        throw Fault{fmt::format("{} is the same directory as {}", paths[i], paths[j]),
                    "Name each drive once"};
    }
  }
}

void fit_to_drives(BenchOptions& options, std::vector<std::string>& warnings) {
  for (const std::string& path : options.paths) {
    if (!is_writable_target(path)) continue;
    const std::optional<Room> found = room_of(path);
    const std::size_t files = sharing(options.paths, path).size();
    if (files > 1 && options.file_bytes_given) check_room(path, options.file_bytes, files);
    if (options.file_bytes_given || !found) continue;
    const std::uint64_t room = base::align_down(found->fits_bytes / files, base::kHugePage);
    if (room >= options.file_bytes) continue;
    const std::uint64_t least = std::max(kLeastFile, 2 * largest_unit(options));
    if (room < least) continue;  // making the file says so
    warnings.push_back(fmt::format(
        "{} has room for a file of {} where {} are usual, with 5 % left free; caches weigh more in "
        "the figures; free some space",
        path, base::format_bytes(room), base::format_bytes(options.file_bytes)));
    options.file_bytes = room;
  }
}

std::string announcement(const BenchOptions& options) {
  const bool written = is_writable_target(options.paths[0]);
  std::string text = fmt::format("This takes at most about {:.0f} s", options.most_seconds);
  if (!written) return text + " and writes nothing.\n\n";
  const bool several = options.paths.size() > 1;
  return text +
         fmt::format(" and writes at most {}{}: a file of {}, removed at the end.\n\n",
                     base::format_bytes(options.most_written_bytes),
                     several ? fmt::format(" to each of {} drives", options.paths.size()) : "",
                     base::format_bytes(options.file_bytes));
}

void add_drive_warnings(Measurement& measurement) {
  add_sharing_warnings(measurement);
  for (const MeasuredDrive& drive : measurement.drives) {
    if (drive.memory_backed) {
      measurement.warnings.push_back(
          fmt::format("{} is on {}, which is memory; no drive is measured; name a directory on one",
                      drive.path, drive.file_system));
    } else if (!drive.direct) {
      measurement.warnings.push_back(
          fmt::format("{} ({}) has no O_DIRECT; the page cache is measured, not the drive; name a "
                      "directory on ext4 or xfs",
                      drive.path, drive.file_system));
    }
    if (drive.read_only) {
      measurement.warnings.push_back(
          drive.path +
          " is only read; what it holds is unknown, so nothing is compared, and blocks "
          "that were never written may read faster than the drive");
    }
  }
}
}  // namespace headrace::tools
