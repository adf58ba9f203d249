// SPDX-License-Identifier: Apache-2.0
// notes.cpp: the notes below "Fits": facts that limit what the word promises.
#include <fmt/core.h>

#include "base/units.hpp"
#include "plan/report.hpp"

namespace headrace::tools {
namespace {
std::string drive_note(const PlanResult& r) {
  const std::uint64_t bytes = r.outcome.plan ? r.outcome.plan->report.nvme_bytes : 0;
  if (bytes == 0 || r.scenario.machine.nvme_bytes > 0) return "";
  return fmt::format(
      "not checked: free space of the drive, of which {} are needed ({})",
      base::format_bytes(bytes * r.scenario.ranks_per_node()),
      r.scenario.machine.here
          ? "name a directory on it: --set zero_optimization.offload_optimizer.nvme_path=DIR"
          : "give nvme_bytes");
}

std::string budget_note(const PlanResult& r) {
  const std::uint64_t budget = budget_for_auto(r);
  if (budget == 0) return "";
  return fmt::format(
      "set headrace.host_budget_bytes={} for this plan: in a run \"auto\" leaves a tenth of memory "
      "for all else, and activations take about {}",
      budget, base::format_bytes(whole_bytes(r.outcome.activations)));
}

// Of ranks on the CPUs of one machine, docs/tools.md has measurements.
std::string projection_note(const Scenario& s) {
  if (s.ranks() > 1 && !s.on_cpu())
    return "a projection: ranks have not run on several GPUs, nor on several machines";
  if (s.nodes > 1) return "a projection: ranks have not run on several machines";
  if (!s.on_cpu()) return "a projection: no step on a GPU has been compared with its plan so far";
  return "";
}
}  // namespace

// With less on the drive than could be there, "auto" would fill what activations need.
std::uint64_t budget_for_auto(const PlanResult& r) {
  const Scenario& s = r.scenario;
  if (!s.on_cpu() || !s.settings.host_budget_auto || !r.outcome.plan) return 0;
  const PlanReport& report = r.outcome.plan->report;
  return report.nvme_bytes == 0 || r.outcome.activations <= 0 ? 0 : report.host_budget_bytes;
}

std::vector<std::string> notes_of(const PlanResult& r) {
  const Scenario& s = r.scenario;
  std::vector<std::string> notes;
  const auto add = [&](std::string note) {
    if (!note.empty()) notes.push_back(std::move(note));
  };
  add(projection_note(s));
  if (s.model->frozen_parameters == s.model->parameters)
    add("nothing is trained: --frozen takes in every parameter");
  if (s.model->positions > 0 && s.sequence > s.model->positions)
    add(fmt::format("{} has {} positions, and sequences of {} tokens need more: no run has them",
                    s.model->name, s.model->positions, s.sequence));
  if (s.machine.host_bytes == 0)
    add("not checked: host memory, since " + s.machine.name + " gives no host_bytes");
  if (!s.on_cpu() && s.machine.gpu_memory_bytes == 0)
    add("not checked: GPU memory, since " + s.machine.name + " gives no gpu_memory_bytes");
  if (r.outcome.plan) add(residency::what_changes_results(*r.outcome.plan));
  add(drive_note(r));
  add(budget_note(r));
  return notes;
}
}  // namespace headrace::tools
