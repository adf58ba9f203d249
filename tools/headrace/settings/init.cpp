// SPDX-License-Identifier: Apache-2.0
#include "settings/init.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>

#include "command_line/report_file.hpp"
#include "doctor/report.hpp"
#include "doctor/rows.hpp"
#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "headrace/version.hpp"
#include "plan/report.hpp"
#include "program/output.hpp"
#include "settings/drive_path.hpp"

namespace headrace::tools {
namespace {
// A file that is there may have been changed since it was made.
bool may_replace(std::string_view /*begin*/) { return false; }

// The section of `headrace doctor DIR`. Throws if runs on it would be refused.
Section usable_drive(const std::string& path) {
  Section section = path_section(path);
  for (const Row& row : section.rows) {
    if (row.mark != Mark::kGap) continue;
    const std::string why = row.consequence.empty() ? row.detail : row.consequence;
    throw Error(Code::kInvalidArgument,
                "--nvme '" + path + "': " + row.name + " " + row.value +
                    (why.empty() ? "" : ": " + why) + "; no settings were written. " +
                    (row.fix.empty() ? "Give another directory." : "To mend it: " + row.fix + "."));
  }
  return section;
}

Json settings_json(const InitOptions& o, const std::vector<Section>& drives) {
  Json file;
  file["_made_by"] = std::string("headrace settings init ") + version() +
                     (o.model.empty() ? "" : ", for " + o.model) +
                     "; headrace settings explain KEY says what a key does";
  if (o.batch > 0 || !o.model.empty())
    file["train_micro_batch_size_per_gpu"] = std::max(o.batch, 1u);
  file["bf16"] = {{"enabled", true}};
  file["gradient_clipping"] = 1.0;
  Json place = {{"device", drives.empty() ? "cpu" : "nvme"}};
  if (drives.size() == 1) place["nvme_path"] = settings::escape_path(drives[0].path);
  file["zero_optimization"] = {
      {"stage", 3}, {"offload_optimizer", place}, {"offload_param", place}};
  file["headrace"] = {{"host_budget_bytes", "auto"}};
  for (const Section& drive : drives) {
    if (drives.size() > 1)
      file["headrace"]["nvme_paths"].push_back(settings::escape_path(drive.path));
  }
  return file;
}

// "a.b=value": JSON, or else a text.
void set_value(Json& file, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    throw Error(Code::kInvalidArgument, "--set '" + assignment +
                                            "' has no value; no settings were written. Give "
                                            "KEY=VALUE.");
  }
  const std::string word = assignment.substr(equals + 1);
  Json value = Json::parse(word, nullptr, false);
  std::string at = "/" + assignment.substr(0, equals);
  std::ranges::replace(at, '.', '/');
  try {
    file[Json::json_pointer(at)] = value.is_discarded() ? Json(word) : std::move(value);
  } catch (const Json::exception&) {
    throw Error(Code::kInvalidArgument, "--set '" + assignment +
                                            "' goes through what is no section; no settings were "
                                            "written. `headrace settings explain` has the keys.");
  }
}

std::string text_of(const Json& file) {
  try {
    return file.dump(2) + "\n";
  } catch (const Json::exception&) {  // what dump() would replace
    throw Error(Code::kInvalidArgument,
                "--nvme: a name that is no UTF-8 cannot stand in a settings file; none was "
                "written. Give another directory, or a link with another name.");
  }
}

// Two that share a drive share its speed, and their bytes are dealt as if they did not.
std::string shared_drive(const std::vector<Section>& drives) {
  std::map<dev_t, std::string> seen;
  for (const Section& drive : drives) {
    struct stat file {};
    if (::stat(drive.path.c_str(), &file) != 0) continue;
    const auto [other, is_new] = seen.emplace(file.st_dev, drive.path);
    if (!is_new) return drive.path + " and " + other->second;
  }
  return "";
}

Scenario scenario_of(const InitOptions& o, const Settings& settings) {
  Scenario s;
  s.settings = settings;
  // Planned is this machine, by its CPUs; the settings may be for one with a GPU.
  if (s.settings.update_on == UpdateOn::kDevice) s.settings.update_on = UpdateOn::kAuto;
  s.machine = machine_of("");
  look_at_drives(s.machine, settings);
  assume_the_rest(s.machine);
  s.model = std::make_shared<PlannedModel>(planned_model(model_of(o.model), {}));
  s.sequence = o.sequence > 0 ? o.sequence : usual_sequence(*s.model);
  s.take_batch();
  if (o.checkpointing) s.activations = Activations::kCheckpointed;
  return s;
}

// Throws where the model does not fit.
PlanResult planned(const InitOptions& o, const Settings& settings) {
  Planning planning;
  PlanResult result;
  result.scenario = scenario_of(o, settings);
  result.outcome = planning.evaluate(result.scenario);
  if (result.outcome.fits()) {
    result.changes = changes_of(planning, result.scenario, result.outcome);
    return result;
  }
  result.smallest_change = smallest_change(planning, result.scenario);
  throw Error(Code::kOutOfBudget,
              o.model + " with " + (o.drives.empty() ? "all in host memory" : "these drives") +
                  ": " + first_line(result) + ". No settings were written.\n" +
                  result.outcome.refusal +
                  (o.drives.empty() ? "\nTo use a drive, give --nvme DIR." : ""));
}

void take_budget(Json& file, PlanResult& result) {
  const std::uint64_t budget = budget_for_auto(result);
  if (budget == 0) return;
  file["headrace"]["host_budget_bytes"] = budget;
  result.scenario.settings.host_budget_auto = false;
}

void tell_plan(const InitOptions& o, const PlanResult& result, std::FILE* told) {
  const Scenario& s = result.scenario;
  print_to(told, "{}, micro-batches of {} x {} tokens{}: {}\n", o.model, s.batch, s.sequence,
           s.checkpointing() ? ", with checkpointing (the trainer's)" : "", first_line(result));
  for (const std::string& note : notes_of(result)) print_to(told, "{}\n", note);
}
}  // namespace

void init_settings(const InitOptions& o, std::FILE* out, std::FILE* told, Json& report) {
  command_line::check_report_target(o.write, "--write", may_replace);
  std::vector<Section> drives;
  for (const std::string& path : o.drives) drives.push_back(usable_drive(path));
  Json file = settings_json(o, drives);
  for (const std::string& one : o.set) set_value(file, one);
  const Settings settings = Settings::from_json(text_of(file), "the new settings");
  if (!drives.empty()) print_to(told, "{}\n", sections_text(drives));
  if (const std::string shared = shared_drive(drives); !shared.empty())
    print_to(told, "note: {} are on one file system; name each drive once\n", shared);
  report["drives"] = sections_json(drives);
  if (!o.model.empty()) {
    PlanResult result = planned(o, settings);
    take_budget(file, result);
    tell_plan(o, result, told);
    report["plan"] = first_line(result);
  }
  const std::string text = text_of(file);
  report["settings"] = file;
  if (o.write.empty() || o.write == "-") {
    print_to(out, "{}", text);
  } else {
    command_line::write_report(o.write, text, "--write", may_replace);
    print_to(told, "{} is written", o.write);
    if (!drives.empty())
      print_to(told, "; how to drive the drive is measured by: headrace tune '{}'", drives[0].path);
    print_to(told, "\n");
  }
}
}  // namespace headrace::tools
