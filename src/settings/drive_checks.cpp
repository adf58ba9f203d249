// SPDX-License-Identifier: Apache-2.0
// Which directories hold swap files and stores: headrace.nvme_paths, or the nvme_path of
// DeepSpeed's two sections.
#include "settings/drive_path.hpp"
#include "settings/given.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

// One of the two offload sections.
struct Section {
  const GivenValue* device = nullptr;
  const GivenValue* path = nullptr;
  std::string expanded;
  bool on_drive = false;
};

std::string expand_or_report(const std::string& text, const Path& path, Report& report) {
  ExpandedPath expanded = expand_path(text);
  if (!expanded.fault.empty()) report.fault(path, expanded.fault);
  return std::move(expanded.path);
}

Section read_section(const Given& given, Report& report, const std::string& name,
                     OffloadDevice device) {
  Section section;
  section.device = given.find(name + ".device");
  section.on_drive = device == OffloadDevice::kNvme;
  const GivenValue* path = given.find(name + ".nvme_path");
  if (path == nullptr || !path->value->is_string() || *path->value == "auto") return section;
  section.path = path;
  section.expanded = expand_or_report(path->value->get<std::string>(), path->path, report);
  return section;
}

void read_list(const GivenValue& list, Report& report, Settings& settings) {
  for (std::size_t i = 0; i < list.value->size(); ++i) {
    const json& text = (*list.value)[i];
    if (!text.is_string()) return;  // reported already
    const Path path = list.path.element(i);
    const std::string expanded = expand_or_report(text.get<std::string>(), path, report);
    for (std::size_t j = 0; j < settings.nvme_paths.size(); ++j) {
      if (!expanded.empty() &&
          comparable_path(settings.nvme_paths[j]) == comparable_path(expanded)) {
        report.fault(path, "the same directory as " + list.path.element(j).dotted +
                               "; name each drive once");
      }
    }
    settings.nvme_paths.push_back(expanded);
  }
}

void check_shares(const Given& given, Report& report, const Settings& settings) {
  const GivenValue* shares = given.find("headrace.drive_shares");
  if (shares == nullptr || settings.drive_shares.empty()) return;
  if (settings.drive_shares.size() == settings.nvme_paths.size()) return;
  report.fault(shares->path, std::to_string(settings.drive_shares.size()) + " numbers for " +
                                 std::to_string(settings.nvme_paths.size()) +
                                 " paths (headrace.nvme_paths); give one for each, or \"auto\"");
}

// A device's "nvme", or else headrace.durable, needs a directory; null if nothing does.
const GivenValue* needs_path(const Given& given, const Section& optimizer,
                             const Section& parameters, const Settings& settings) {
  if (optimizer.on_drive) return optimizer.device;
  if (parameters.on_drive) return parameters.device;
  return settings.durable_every > 0 ? given.find("headrace.durable") : nullptr;
}

void report_no_path(const GivenValue& needs, Report& report) {
  report.fault(needs.path,
               *needs.value == "nvme"
                   ? "\"nvme\" needs a directory, and neither nvme_path nor headrace.nvme_paths "
                     "names one; add \"nvme_path\" beside it"
                   : "a store is on a drive even if all state fits in memory, and neither "
                     "headrace.nvme_paths nor nvme_path names a directory; add "
                     "headrace.nvme_paths");
}

// Without a list: the path of the sections that are on a drive, or else whichever there is.
void take_section_path(const Section& optimizer, const Section& parameters, const GivenValue& needs,
                       Report& report, Settings& settings) {
  const Section& first = optimizer.on_drive && optimizer.path != nullptr     ? optimizer
                         : parameters.on_drive && parameters.path != nullptr ? parameters
                         : optimizer.path != nullptr                         ? optimizer
                                                                             : parameters;
  const Section& other = &first == &optimizer ? parameters : optimizer;
  if (first.path == nullptr) {
    report_no_path(needs, report);
    return;
  }
  settings.nvme_paths = {first.expanded};
  if (other.path == nullptr) return;
  if (first.on_drive && !other.on_drive) {
    report.warn(other.path->path, "not used: the device of its section is not \"nvme\"");
  } else if (!first.expanded.empty() && !other.expanded.empty() &&
             comparable_path(other.expanded) != comparable_path(first.expanded)) {
    report.fault(other.path->path, "differs from " + first.path->path.dotted +
                                       "; make them equal, or list both in headrace.nvme_paths");
  }
}
}  // namespace

void check_drive_paths(const Given& given, Report& report, Settings& settings) {
  const Section optimizer = read_section(given, report, "zero_optimization.offload_optimizer",
                                         settings.offload_optimizer);
  const Section parameters =
      read_section(given, report, "zero_optimization.offload_param", settings.offload_parameters);
  const GivenValue* list = given.find("headrace.nvme_paths");
  if (list != nullptr && list->value->is_array()) read_list(*list, report, settings);
  const GivenValue* const needs = needs_path(given, optimizer, parameters, settings);
  if (settings.nvme_paths.empty() && needs != nullptr) {
    take_section_path(optimizer, parameters, *needs, report, settings);
    check_shares(given, report, settings);
    return;
  }
  if (!settings.nvme_paths.empty()) check_shares(given, report, settings);
  for (const Section* section : {&optimizer, &parameters}) {
    if (section->path == nullptr) continue;
    report.warn(section->path->path, needs != nullptr
                                         ? "not used: headrace.nvme_paths takes its place"
                                         : "not used: no device is \"nvme\"");
  }
  for (const char* path : {"headrace.nvme_paths", "headrace.drive_shares"}) {
    const GivenValue* found = given.find(path);
    if (found != nullptr && needs == nullptr && found->value->is_array() && !found->value->empty())
      report.warn(found->path, "not used: no device is \"nvme\"");
  }
}
}  // namespace headrace::settings
