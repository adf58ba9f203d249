// SPDX-License-Identifier: Apache-2.0
// The store that durable settings name: what is there of it, and whether it has room.
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "store/listed_store.hpp"

namespace headrace::tools {
namespace {
using base::format_bytes;

void mark_store(Row& row, Mark mark, const std::string& consequence, const std::string& fix) {
  row.mark = mark;
  row.consequence = consequence;
  row.fix = fix;
}

void judge_resume(Row& row, bool exists, const Settings& settings) {
  if (exists && settings.resume == Resume::kNever) {
    mark_store(row, Mark::kNote, "headrace.resume is \"never\": a run is refused",
               "name another store, or set headrace.resume to \"auto\"");
  } else if (!exists && settings.resume == Resume::kRequire) {
    mark_store(row, Mark::kNote, "headrace.resume is \"require\": a run is refused",
               "name the paths of its drives, or set headrace.resume to \"auto\"");
  }
}

// Of a store with which no run can begin.
const char* fix_of(const std::string& state) {
  if (state == "incomplete") return "name the paths of all its drives";
  if (state == "doubled") return "name the paths of one of its copies";
  if (state == "unreadable") return "see the cause above, or name another store";
  return "restore it from a copy, or name another store";
}

Row state_row(const ListedStore& store, const Settings& settings) {
  Row row{.name = "store", .value = store.state};
  row.values = {{"name", store.name},
                {"state", store.state},
                {"ranks", store.ranks},
                {"step", Json()},
                {"bytes", Json()}};
  row.detail = store.why;
  if (store.ranks == 0 && store.opened()) {
    row.value = row.values["state"] = "not there";
    if (settings.resume != Resume::kRequire) row.detail = "a run makes it";
    judge_resume(row, false, settings);
  } else if (store.opened()) {
    row.value += fmt::format(", step {}, {}", store.step, format_bytes(store.bytes));
    row.values["step"] = store.step;
    row.values["bytes"] = store.bytes;
    if (row.detail.empty())
      row.detail = store.state == "empty" ? "no step was committed: a run makes it anew"
                                          : "a run continues after this step";
    judge_resume(row, true, settings);
  } else if (store.state == "half made") {
    judge_resume(row, false, settings);
  } else if (store.state == "in use") {
    mark_store(row, Mark::kNote, "another run is refused until that one ends",
               "wait for it, or name another store");
  } else {
    mark_store(row, Mark::kGap, "a run is refused", fix_of(store.state));
  }
  return row;
}

// Each file system once.
std::optional<std::uint64_t> free_of(const std::vector<swap::PathProbe>& paths) {
  std::set<dev_t> devices;
  std::uint64_t free = 0;
  for (const swap::PathProbe& path : paths) {
    struct stat file {};
    struct statvfs space {};
    if (::stat(path.path.c_str(), &file) != 0 || ::statvfs(path.path.c_str(), &space) != 0)
      return std::nullopt;
    if (devices.insert(file.st_dev).second) free += std::uint64_t{space.f_bavail} * space.f_frsize;
  }
  return free;
}

// Two slots of weight and state. Headers and commit records add less than a hundredth.
double bytes_per_parameter(const Settings& settings) {
  const DType dtype = settings.parameter_dtype().value_or(DType::kBf16);
  double bytes = static_cast<double>(size_bytes(dtype));
  const optimizer_cpu::StateStreams streams = optimizer_cpu::state_streams(settings, dtype);
  for (const optimizer_cpu::StateStream& stream : streams.all())
    bytes += static_cast<double>(stream.bytes_per_scale) / base::kScaleElements;
  return 2 * bytes;
}

Row room_row(const std::vector<swap::PathProbe>& paths, const Settings& settings,
             std::uint64_t parameters) {
  Row row{.name = "room for it", .value = ""};
  const std::optional<std::uint64_t> free = free_of(paths);
  const double each = bytes_per_parameter(settings);
  row.values = {{"free_bytes", or_null(free)}, {"bytes_per_parameter", each}};
  if (!free) {
    row.mark = Mark::kUnknown;
    return row;
  }
  row.detail = fmt::format("twice the state: {:.4g} bytes a parameter, without frozen ones", each);
  if (parameters == 0) {
    row.value = fmt::format("{} free, for {} parameters", format_bytes(*free),
                            count_text(static_cast<double>(*free) / each));
    row.detail += "; --model MODEL compares a model's";
    return row;
  }
  const auto needed = static_cast<std::uint64_t>(std::ceil(each * static_cast<double>(parameters)));
  row.values["needed_bytes"] = needed;
  row.value =
      fmt::format("{} free, about {} are needed", format_bytes(*free), format_bytes(needed));
  if (needed > *free) {
    mark_store(row, Mark::kGap, "a run that would make it is refused",
               fmt::format("free {} more, or name more paths", format_bytes(needed - *free)));
  }
  return row;
}
}  // namespace

Section store_section(const Settings& settings, const std::vector<std::string>& paths,
                      std::uint64_t parameters) {
  std::vector<swap::PathProbe> probes;
  for (const std::string& path : paths)
    probes.push_back({.path = std::filesystem::canonical(path).string()});
  const ListedStore store = look_at_store(settings.store, probes);
  Section section{.title = "Store " + settings.store, .path = "", .rows = {}};
  section.rows.push_back(state_row(store, settings));
  // Else its files are there, with all their blocks.
  if (store.state == "empty" || store.state == "half made")
    section.rows.push_back(room_row(probes, settings, parameters));
  return section;
}
}  // namespace headrace::tools
