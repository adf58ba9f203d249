// SPDX-License-Identifier: Apache-2.0
// drives.cpp: freeze's part about drives: probing their paths, room, and what each of several is
// given by its speed.
#include <algorithm>
#include <cstdio>

#include "base/units.hpp"
#include "engine/startup.hpp"
#include "headrace/error.hpp"
#include "residency/drive_shares.hpp"
#include "settings/environment.hpp"
#include "swap/dead_runs.hpp"
#include "swap/drive_measure.hpp"
#include "swap/refusal.hpp"

namespace headrace::engine {
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

std::vector<swap::PathProbe> Startup::probe_paths() const {
  std::vector<swap::PathProbe> probes;
  const bool nvme = in_.settings.offload_optimizer == OffloadDevice::kNvme ||
                    in_.settings.offload_parameters == OffloadDevice::kNvme ||
                    in_.settings.durable_every > 0;
  if (!nvme) return probes;
  for (const std::string& path : in_.settings.nvme_paths)
    probes.push_back(swap::probe_path(path, in_.settings));
  return probes;
}

// Weighted as the settings say, else alike.
std::vector<residency::DriveInputs> Startup::drive_inputs() const {
  std::vector<residency::DriveInputs> drives;
  for (std::size_t d = 0; d < paths_.size(); ++d) {
    const double weight = in_.settings.drive_shares.empty() ? 1 : in_.settings.drive_shares[d];
    drives.push_back({.weight = weight, .free_bytes = paths_[d].free_bytes});
  }
  return drives;
}

void Startup::refuse_without_room(const residency::Plan& plan) const {
  for (std::size_t d = 0; d < paths_.size(); ++d) {
    const std::uint64_t wanted = plan.drive_bytes[d];
    if (wanted <= paths_[d].free_bytes) continue;
    // A store has all of the state twice, wherever else it lies.
    const std::string helps =
        plan.durable() ? "Free some there, or name more paths, or others with more room, in "
                         "headrace.nvme_paths: a store has two places for each tile, also of what "
                         "is in memory."
                       : "Free some, name another directory, or set headrace.host_budget_bytes so "
                         "that more stays in memory.";
    throw Error(
        Code::kNoSpace,
        "nvme_path " + paths_[d].path + ": the plan needs " + base::format_bytes_exactly(wanted) +
            " there" +
            (paths_.size() > 1 ? ", after what the other paths have room for, and " : ", ") +
            base::format_bytes_exactly(paths_[d].free_bytes) + " are free; nothing was " +
            (plan.durable() ? "written. " : "swapped. ") + helps);
  }
}

swap::IoQueueMaker queue_maker(const Inputs& inputs) {
  if (inputs.parts.make_queue) return inputs.parts.make_queue;
  return [kind = settings::io_queue_kind(inputs.settings)](const swap::IoQueueOptions& queue) {
    return swap::choose_io_queue(kind, queue);
  };
}

swap::DriveMaker drive_maker(const Inputs& inputs) {
  return inputs.parts.make_drive ? inputs.parts.make_drive
                                 : swap::DriveMaker(&swap::make_drive_thread);
}

swap::DriveOnPathOptions Startup::drive_options(const Running& r) const {
  swap::DriveOnPathOptions options;
  options.settings = in_.settings;
  options.rank = in_.collective->rank();
  options.buffers = {r.arena->bytes()};
  options.log = in_.log;
  options.make_queue = queue_maker(in_);
  options.make_drive = drive_maker(in_);
  return options;
}

bool Startup::drives_compete() const {
  return paths_.size() > 1 && in_.settings.drive_shares.empty();
}

std::vector<swap::DriveSpeed> Startup::measure_drives(const Running& r) const {
  std::vector<std::uint64_t> file_bytes = r.plan.drive_bytes;
  for (std::uint64_t& bytes : file_bytes) bytes = std::min(bytes, swap::kMeasuredFileBytes);
  try {
    // The arena holds nothing yet.
    return swap::measure_drives(*r.conductor, drive_options(r), paths_, file_bytes,
                                r.arena->range(0, r.plan.arena_bytes),
                                [this] { meeting_->begin_pass(); });
  } catch (const Error& error) {
    if (error.code() == Code::kIoStalled) r.arena->leak();
    throw;
  }
}

// A rank that has too little on its drives to measure waits for the passes of those that do.
void Startup::deal_by_speed(Running& r) const {
  if (!drives_compete()) return;
  const PlanReport& report = r.plan.report;
  const bool worth_it = report.nvme_bytes / paths_.size() >= kWorthMeasuring;
  if (!meeting_->any_measures(worth_it)) return;
  if (!worth_it) {
    for (int pass = 0; pass < swap::kMeasuredPasses; ++pass) meeting_->begin_pass();
    return;
  }
  const std::vector<swap::DriveSpeed> speeds = measure_drives(r);
  std::vector<residency::DriveInputs> drives = drive_inputs();
  for (std::size_t d = 0; d < drives.size(); ++d) {
    const swap::DriveSpeed& speed = speeds[d];
    drives[d].read_bytes_per_second = speed.read_bytes_per_second;
    drives[d].write_bytes_per_second = speed.write_bytes_per_second;
    drives[d].weight = residency::weight_of_speed(
        report.nvme_read_bytes_per_step, speed.read_bytes_per_second,
        report.nvme_written_bytes_per_step, speed.write_bytes_per_second);
    if (!speed.failure.empty()) warn_of_failed_drive(speeds, d);
  }
  residency::deal_again(r.plan, r.partition, in_.settings.nvme_paths, drives);
  refuse_without_room(r.plan);
  warn_of_slow_drives(r.plan.report.drives);
}

// Where this run makes no directory of its own, what dead ones left would stay for ever.
void Startup::reclaim_unused_paths(const Running& r) const {
  for (std::size_t d = 0; d < in_.settings.nvme_paths.size(); ++d) {
    const bool used = !resumed_ && r.swap != nullptr && r.plan.drive_bytes[d] > 0;
    if (!used) swap::reclaim_dead_runs_at(in_.settings.nvme_paths[d], in_.log);
  }
}

// Goes on without it; throws if there is no other.
void Startup::warn_of_failed_drive(const std::vector<swap::DriveSpeed>& speeds,
                                   std::size_t drive) const {
  const swap::DriveSpeed& speed = speeds[drive];
  const std::string cause =
      "nvme_path " + paths_[drive].path + " failed when it was measured: " + speed.failure;
  const bool none_left =
      std::ranges::all_of(speeds, [](const auto& s) { return s.read_bytes_per_second <= 0; });
  if (none_left) {
    throw Error(swap::code_of(speed.sys_errno),
                cause + ", and no other path is left; nothing was swapped; " +
                    swap::what_helps(speed.sys_errno),
                speed.sys_errno);
  }
  in_.log(LogLevel::kWarning, cause + "; nothing is stored there, the other paths take its part; " +
                                  swap::what_helps(speed.sys_errno) +
                                  ", or leave it out of headrace.nvme_paths");
}

void Startup::warn_of_slow_drives(const std::vector<DriveReport>& drives) const {
  const auto speed = [](const DriveReport& drive) {
    return residency::weight_of_speed(1, drive.read_bytes_per_second, 1,
                                      drive.write_bytes_per_second);
  };
  const auto best = std::ranges::max_element(drives, {}, speed);
  for (const DriveReport& drive : drives) {
    if (speed(drive) <= 0 || speed(drive) >= speed(*best) / 2) continue;
    in_.log(LogLevel::kWarning,
            "nvme_path " + drive.path + " is slow: " + speed_text(drive) + ", where " + best->path +
                " has " + speed_text(*best) + ", all paths at once; it holds " + share_text(drive) +
                " of what is swapped, so that none waits for it; look at its link and health, or "
                "leave it out of headrace.nvme_paths");
  }
}

void Startup::say_shares(const Running& r) const {
  if (r.plan.report.drives.size() < 2) return;
  for (const DriveReport& drive : r.plan.report.drives) {
    in_.log(LogLevel::kInfo,
            drive.path + " holds " + share_text(drive) + " of what is swapped, " +
                base::format_bytes(drive.bytes) +
                (drive.read_bytes_per_second > 0 ? "; measured " + speed_text(drive) : ""));
  }
}
}  // namespace headrace::engine
