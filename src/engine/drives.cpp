// SPDX-License-Identifier: Apache-2.0
// drives.cpp: freeze's part about drives: probing their paths, room, and what each of several is
// given by its speed.
#include <algorithm>
#include <cstdio>

#include "base/units.hpp"
#include "engine/engine_core.hpp"
#include "residency/drive_shares.hpp"
#include "settings/environment.hpp"
#include "swap/dead_runs.hpp"
#include "swap/drive_measure.hpp"
#include "swap/refusal.hpp"

namespace headrace {
namespace {
// With less than that on each drive its speed is measured in a moment too short to mean anything.
constexpr std::uint64_t kWorthMeasuring = 16 * base::kMiB;

std::string speed_text(const DriveReport& drive) {
  char text[96];
  std::snprintf(text, sizeof text, "%.2f GB/s read and %.2f GB/s written",
                drive.read_bytes_per_second * 1e-9, drive.write_bytes_per_second * 1e-9);
  return text;
}

std::string share_text(const DriveReport& drive) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * drive.share);
  return text;
}
}  // namespace

std::vector<swap::PathProbe> EngineCore::probe_paths() const {
  std::vector<swap::PathProbe> probes;
  const bool nvme = settings_.offload_optimizer == OffloadDevice::kNvme ||
                    settings_.offload_parameters == OffloadDevice::kNvme;
  if (!nvme) return probes;
  for (const std::string& path : settings_.nvme_paths)
    probes.push_back(swap::probe_path(path, settings_));
  return probes;
}

// Weighted as the settings say, else alike.
std::vector<residency::DriveInputs> EngineCore::drive_inputs(
    const std::vector<swap::PathProbe>& paths) const {
  std::vector<residency::DriveInputs> drives;
  for (std::size_t d = 0; d < paths.size(); ++d) {
    const double weight = settings_.drive_shares.empty() ? 1 : settings_.drive_shares[d];
    drives.push_back({.weight = weight, .free_bytes = paths[d].free_bytes});
  }
  return drives;
}

void EngineCore::refuse_without_room(const residency::Plan& plan,
                                     const std::vector<swap::PathProbe>& paths) const {
  for (std::size_t d = 0; d < paths.size(); ++d) {
    const std::uint64_t wanted = plan.drive_bytes[d];
    if (wanted <= paths[d].free_bytes) continue;
    throw Error(Code::kNoSpace,
                "nvme_path " + paths[d].path + ": the plan needs " +
                    base::format_bytes_exactly(wanted) + " there" +
                    (paths.size() > 1 ? ", after what the other paths have room for, and " : ", ") +
                    base::format_bytes_exactly(paths[d].free_bytes) +
                    " are free; nothing was swapped. Free some, name another directory, or set "
                    "headrace.host_budget_bytes so that more stays in memory.");
  }
}

swap::LaneOptions EngineCore::lane_options(const Frozen& f) const {
  const IoQueueKind kind = settings::io_queue_kind(settings_);
  swap::LaneOptions options;
  options.settings = settings_;
  options.rank = collective_->rank();
  options.buffers = {f.arena->bytes()};
  options.log = log_;
  options.make_queue =
      parts_.make_queue ? parts_.make_queue : [kind](const swap::IoQueueOptions& queue) {
        return swap::choose_io_queue(kind, queue);
      };
  options.make_drive =
      parts_.make_drive ? parts_.make_drive : swap::DriveMaker(&swap::make_drive_thread);
  return options;
}

void EngineCore::deal_by_speed(Frozen& f, const std::vector<swap::PathProbe>& paths) const {
  const PlanReport& report = f.plan.report;
  const std::uint64_t each = paths.empty() ? 0 : report.nvme_bytes / paths.size();
  if (paths.size() < 2 || !settings_.drive_shares.empty() || each < kWorthMeasuring) return;
  std::vector<std::uint64_t> file_bytes = f.plan.drive_bytes;
  for (std::uint64_t& bytes : file_bytes) bytes = std::min(bytes, swap::kMeasuredFileBytes);
  std::vector<swap::DriveSpeed> speeds;
  try {
    // The arena holds nothing yet.
    speeds = swap::measure_drives(*f.conductor, lane_options(f), paths, file_bytes,
                                  f.arena->range(0, f.plan.arena_bytes));
  } catch (const Error& error) {
    if (error.code() == Code::kIoStalled) f.arena->leak();
    throw;
  }
  std::vector<residency::DriveInputs> drives = drive_inputs(paths);
  for (std::size_t d = 0; d < drives.size(); ++d) {
    const swap::DriveSpeed& speed = speeds[d];
    drives[d].read_bytes_per_second = speed.read_bytes_per_second;
    drives[d].write_bytes_per_second = speed.write_bytes_per_second;
    drives[d].weight = residency::weight_of_speed(
        report.nvme_read_bytes_per_step, speed.read_bytes_per_second,
        report.nvme_written_bytes_per_step, speed.write_bytes_per_second);
    if (!speed.failure.empty()) warn_of_failed_drive(paths, speeds, d);
  }
  residency::deal_again(f.plan, f.partition, settings_.nvme_paths, drives);
  refuse_without_room(f.plan, paths);
  warn_of_slow_drives(f.plan.report.drives);
}

// Where this run makes no directory of its own, what dead ones left would stay for ever.
void EngineCore::reclaim_unused_paths(const Frozen& f) const {
  for (std::size_t d = 0; d < settings_.nvme_paths.size(); ++d) {
    const bool used = f.swap != nullptr && f.plan.drive_bytes[d] > 0;
    if (!used) swap::reclaim_dead_runs_at(settings_.nvme_paths[d], log_);
  }
}

// Goes on without it; throws if there is no other.
void EngineCore::warn_of_failed_drive(const std::vector<swap::PathProbe>& paths,
                                      const std::vector<swap::DriveSpeed>& speeds,
                                      std::size_t drive) const {
  const swap::DriveSpeed& speed = speeds[drive];
  const std::string cause =
      "nvme_path " + paths[drive].path + " failed when it was measured: " + speed.failure;
  const bool none_left =
      std::ranges::all_of(speeds, [](const auto& s) { return s.read_bytes_per_second <= 0; });
  if (none_left) {
    throw Error(swap::code_of(speed.sys_errno),
                cause + ", and no other path is left; nothing was swapped; " +
                    swap::what_helps(speed.sys_errno),
                speed.sys_errno);
  }
  log_(LogLevel::kWarning, cause + "; nothing is stored there, the other paths take its part; " +
                               swap::what_helps(speed.sys_errno) +
                               ", or leave it out of headrace.nvme_paths");
}

void EngineCore::warn_of_slow_drives(const std::vector<DriveReport>& drives) const {
  const auto speed = [](const DriveReport& drive) {
    return residency::weight_of_speed(1, drive.read_bytes_per_second, 1,
                                      drive.write_bytes_per_second);
  };
  const auto best = std::ranges::max_element(drives, {}, speed);
  for (const DriveReport& drive : drives) {
    if (speed(drive) <= 0 || speed(drive) >= speed(*best) / 2) continue;
    log_(LogLevel::kWarning,
         "nvme_path " + drive.path + " is slow: " + speed_text(drive) + ", where " + best->path +
             " has " + speed_text(*best) + ", all paths at once; it holds " + share_text(drive) +
             " of what is swapped, so that none waits for it; look at its link and health, or "
             "leave it out of headrace.nvme_paths");
  }
}

void EngineCore::say_shares(const Frozen& f) const {
  if (f.plan.report.drives.size() < 2) return;
  for (const DriveReport& drive : f.plan.report.drives) {
    log_(LogLevel::kInfo,
         drive.path + " holds " + share_text(drive) + " of what is swapped, " +
             base::format_bytes(drive.bytes) +
             (drive.read_bytes_per_second > 0 ? "; measured " + speed_text(drive) : ""));
  }
}

void EngineCore::add_drive_stats(const Frozen& f, Stats& stats) {
  for (std::size_t d = 0; d < f.plan.report.drives.size(); ++d) {
    const swap::DriveCounters c = f.swap->counters(d);
    stats.drives.push_back({.plan = f.plan.report.drives[d],
                            .read_bytes = c.read_bytes,
                            .written_bytes = c.written_bytes,
                            .read_busy_seconds = c.read_busy_seconds,
                            .write_busy_seconds = c.write_busy_seconds});
  }
}
}  // namespace headrace
