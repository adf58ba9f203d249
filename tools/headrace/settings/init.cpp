// SPDX-License-Identifier: Apache-2.0
#include "settings/init.hpp"

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
// A file made here may be made again; one that somebody wrote is theirs.
constexpr const char* kMadeBy = "headrace settings init";
bool is_made_here(std::string_view begin) {
  return begin.starts_with("{\n  \"_made_by\": \"" + std::string(kMadeBy));
}

// What `headrace doctor DIR` says. Throws where runs on it would be refused.
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
  file["_made_by"] = std::string(kMadeBy) + " " + version() +
                     (o.model.empty() ? "" : ", for " + o.model) +
                     "; headrace settings explain KEY says what a key does";
  if (o.batch > 0) file["train_micro_batch_size_per_gpu"] = o.batch;
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

Scenario scenario_of(const InitOptions& o, const Settings& settings) {
  Scenario s;
  s.settings = settings;
  s.machine = machine_of("");
  assume_the_rest(s.machine);
  look_at_drives(s.machine, settings);
  s.model = std::make_shared<PlannedModel>(planned_model(model_of(o.model), {}));
  s.sequence = o.sequence > 0 ? o.sequence : usual_sequence(*s.model);
  s.batch = std::max(o.batch, 1u);
  s.checkpointing = o.checkpointing;
  return s;
}

// The first line of `headrace plan`. Throws where the model does not fit.
std::string planned_line(const InitOptions& o, const Settings& settings) {
  Planning planning;
  PlanResult result;
  result.scenario = scenario_of(o, settings);
  result.outcome = planning.evaluate(result.scenario);
  if (result.outcome.fits()) {
    result.changes = changes_of(planning, result.scenario, result.outcome);
    return first_line(result);
  }
  result.smallest_change = smallest_change(planning, result.scenario);
  throw Error(Code::kOutOfBudget,
              o.model + " with " + (o.drives.empty() ? "all in host memory" : "these drives") +
                  ": " + first_line(result) + ". No settings were written.\n" +
                  result.outcome.refusal +
                  (o.drives.empty() ? "\nTo use a drive, give --nvme DIR." : ""));
}
}  // namespace

void init_settings(const InitOptions& o, std::FILE* out, std::FILE* told, Json& report) {
  command_line::check_report_target(o.write, "--write", is_made_here);
  std::vector<Section> drives;
  for (const std::string& path : o.drives) drives.push_back(usable_drive(path));
  const Json file = settings_json(o, drives);
  const std::string text = dump(file);
  const Settings settings = Settings::from_json(text, "the new settings");
  if (!drives.empty()) print_to(told, "{}\n", sections_text(drives, {}));
  report["settings"] = file;
  report["drives"] = sections_json(drives);
  if (!o.model.empty()) {
    const std::string line = planned_line(o, settings);
    print_to(told, "{}: {}\n", o.model, line);
    report["plan"] = line;
  }
  if (o.write.empty()) {
    print_to(out, "{}", text);
  } else {
    command_line::write_report(o.write, text, "--write", is_made_here);
    print_to(told, "{} is written", o.write);
    if (!drives.empty())
      print_to(told, "; how to drive the drive is measured by: headrace tune {}", drives[0].path);
    print_to(told, "\n");
  }
}
}  // namespace headrace::tools
