// SPDX-License-Identifier: Apache-2.0
// report.cpp: a plan as text.
#include "plan/report.hpp"

#include <fmt/core.h>

#include <cmath>

#include "base/units.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
constexpr double kSecondsPerDay = 86400, kDaysPerYear = 365.25;
constexpr double kWorthwhile = 1.02;  // less than two percent more is no help

std::string bytes_text(double bytes) { return base::format_bytes(whole_bytes(bytes)); }
std::string plural(std::uint64_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::string what_text(const PlanResult& r) {
  const Scenario& s = r.scenario;
  const PlannedModel& m = *s.model;
  std::string text = fmt::format("{} ({}): {} parameters", m.name, m.source, grouped(m.parameters));
  if (m.frozen_parameters > 0)
    text += fmt::format(", {} of them frozen", grouped(m.frozen_parameters));
  text += fmt::format(
      "\n{} ({}): {}, {}", s.machine.name, s.machine.source, plural(s.nodes, "node"),
      s.on_cpu()
          ? fmt::format("the CPU is the device, {} CPUs{}", s.machine.cpus,
                        s.cpu_ranks > 1 ? " for " + plural(s.cpu_ranks, "rank") : std::string())
          : plural(s.machine.gpus, "GPU") + " each");
  if (m.tensor_parallel > 1)
    text += fmt::format("\ntensor parallelism over {} ranks, which share a micro-batch",
                        m.tensor_parallel);
  return text + fmt::format("\n{} micro-batch{} of {} x {} tokens a rank and step{}\n\n",
                            s.micro_batches, s.micro_batches == 1 ? "" : "es", s.batch, s.sequence,
                            s.checkpointing() ? ", activations recomputed (checkpointing)" : "");
}

const ModelGroup& largest_group(const PlannedModel& model) {
  return largest_of(model.groups, [](const PlannedGroup& group) { return group.group.elements(); })
      .group;
}

// A group outside all blocks may have no name; then its largest parameter gives it.
std::string name_of(const ModelGroup& group) {
  if (!group.name.empty()) return group.name;
  return largest_of(group.parameters,
                    [](const ModelParameter& parameter) { return parameter.elements(); })
      .name;
}

std::string memory_text(const PlanResult& r) {
  std::string text = "Memory of one rank\n" + r.outcome.plan->report.to_text();
  return text + activations_text(r) + "\n";
}

std::string lanes_text(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  const bool deferred = r.outcome.plan->deferred;
  const auto as_auto = [](bool is) { return is ? ", as auto has it" : ""; };
  const Settings& settings = r.scenario.settings;
  std::string text = fmt::format(
      "Seconds of one step; the update is {} (headrace.update_mode {}{})",
      deferred ? "deferred to the next forward" : "all within step()",
      deferred ? "defer" : "barrier", as_auto(settings.update_mode == UpdateMode::kAuto));
  if (!r.scenario.on_cpu()) {
    text += fmt::format(
        ", {} (headrace.update_on {}{})", p.updates_on_device ? "on the GPU" : "by the CPU",
        p.updates_on_device ? "device" : "cpu", as_auto(settings.update_on == UpdateOn::kAuto));
  }
  text += fmt::format("\n  {:<10}{:>10}", "", "takes");
  for (std::size_t l = 0; l < kStepLanes; ++l)
    text += fmt::format("{:>12}", name_of(static_cast<StepLane>(l)));
  text += "  bound by\n";
  const auto row = [&](const char* name, const PhaseCost& phase) {
    text += fmt::format("  {:<10}{:>10}", name, number_text(phase.seconds, 4));
    for (const double busy : phase.busy)
      text += busy > 0 ? fmt::format("{:>12}", number_text(busy, 4)) : fmt::format("{:>12}", "-");
    text += fmt::format("  {}\n", name_of(phase.bound()));
  };
  row("forward", p.forward);
  row("backward", p.backward);
  row("update", p.update);
  if (p.hidden_seconds > 0)
    text += fmt::format("  {:<10}{:>10}  of forward and update at once\n", "hidden",
                        "-" + number_text(p.hidden_seconds, 4));
  if (p.commit.waited_seconds > 0)
    text += fmt::format("  {:<10}{:>10}  waiting for the commit to the store, on average\n",
                        "commit", number_text(p.commit.waited_seconds, 4));
  return text + fmt::format("  {:<10}{:>10}\n\n", "step", number_text(p.step_seconds, 4));
}

std::string changes_text(const PlanResult& r) {
  std::string text = "Tried, one change at a time (tokens per second)\n";
  for (const Change& change : r.changes)
    text += fmt::format("  {:>6.2f} x  {}\n", change.speedup, change.text);
  return text;
}
}  // namespace

std::string rates_text(const Scenario& s) {
  std::string text = "Rates of one node\n";
  for (const FigureName& name : used_figures(s)) {
    const Figure& figure = s.machine.*name.figure;
    text += fmt::format("  {:<15}{:>10.4g} {:<11} {}\n", name.name, figure.value, name.unit,
                        figure.source);
  }
  return text;
}

std::string number_text(double number, int digits) {
  if (number >= 999.5) return grouped(whole_bytes(std::round(number)));
  return fmt::format("{:.{}g}", number, digits);
}

std::string seconds_text(double seconds) {
  if (seconds >= 2 * 3600) return number_text(seconds / 3600) + " h";
  if (seconds >= 999.5) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 0.9995) return number_text(seconds) + " s";
  return number_text(seconds * 1e3) + " ms";
}

std::string activations_text(const PlanResult& r) {
  const char* const where = r.scenario.on_cpu() ? "host (yours)" : "device";
  if (r.scenario.model->layers == 0)
    return "  activations: no estimate, no attention was found by name\n";
  const auto row = [](const char* what, const char* tier, double bytes) {
    return fmt::format("  {:<34} {:<13} {:>12} {:>18.0f}\n", what, tier, bytes_text(bytes), bytes);
  };
  const std::string text = row("activations, 16-bit (an estimate)", where, r.outcome.activations);
  if (r.outcome.saved <= 0) return text;
  return text + row("activations that wait for backward", "host (yours)", r.outcome.saved);
}

std::string first_line(const PlanResult& r) {
  if (!r.outcome.fits()) {
    const ModelGroup& largest = largest_group(*r.scenario.model);
    return "Does not fit: " + (r.smallest_change.empty()
                                   ? fmt::format("nor with any change that was tried; a larger "
                                                 "machine, or groups smaller than '{}' ({} "
                                                 "parameters), would help",
                                                 name_of(largest), grouped(largest.elements()))
                                   : r.smallest_change + ", and it does");
  }
  const Prediction& p = r.outcome.prediction;
  std::string text =
      fmt::format("Fits: {} a step ({} tokens/s), bound by {}", seconds_text(p.step_seconds),
                  number_text(r.outcome.tokens_per_second(r.scenario)), name_of(p.bound));
  if (r.changes.empty() || r.changes.front().speedup < kWorthwhile)
    return text + "; of what was tried nothing helps by 2 %";
  return text + fmt::format("; most helps {} ({:.2f} x)", r.changes.front().text,
                            r.changes.front().speedup);
}

std::string free_batch_text(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  const bool barrier = !r.outcome.plan->deferred;
  std::string text =
      p.free_tokens <= 0
          ? std::string("no tokens are needed to hide what forward and backward move: nothing")
          : fmt::format(
                "from {} tokens per micro-batch on (now {}), what forward and backward "
                "move{} is hidden",
                grouped(whole_bytes(std::ceil(p.free_tokens))),
                grouped(whole_bytes(r.scenario.tokens())), barrier ? "" : " and the update");
  if (barrier && p.update.seconds > 0)
    text += fmt::format("; the update ({}) never overlaps", seconds_text(p.update.seconds));
  return text;
}

Wear wear_of(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  Wear wear;
  wear.bytes_per_step =
      p.nvme_written_bytes * r.scenario.ranks_per_node() / r.scenario.machine.drives;
  wear.bytes_per_day = wear.bytes_per_step / p.step_seconds * kSecondsPerDay;
  if (r.scenario.machine.drive_tbw > 0 && wear.bytes_per_day > 0)
    wear.years = r.scenario.machine.drive_tbw * 1e12 / wear.bytes_per_day / kDaysPerYear;
  return wear;
}

std::string wear_text(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  const double ranks = r.scenario.ranks_per_node();
  const Wear wear = wear_of(r);
  if (p.nvme_read_bytes + p.nvme_written_bytes <= 0) return "nothing is read or written";
  std::string text = fmt::format(
      "a node reads {} and writes {} a step; each of {} takes {} TB a day",
      bytes_text(p.nvme_read_bytes * ranks), bytes_text(p.nvme_written_bytes * ranks),
      plural(r.scenario.machine.drives, "drive"), number_text(wear.bytes_per_day / 1e12));
  if (wear.years > 0)
    return text + fmt::format(", {} {} for {:g} TBW",
                              number_text(wear.years < 1 ? wear.years * kDaysPerYear : wear.years),
                              wear.years < 1 ? "days" : "years", r.scenario.machine.drive_tbw);
  return text + " (--drive-tbw for how long it lasts)";
}

std::string store_text(const PlanResult& r) {
  const residency::Plan& plan = *r.outcome.plan;
  const CommitCost& commit = r.outcome.prediction.commit;
  const std::uint64_t every = plan.commit_every;
  const double ranks = r.scenario.ranks_per_node();
  const std::string waited =
      commit.waited_seconds > 0
          ? fmt::format("a step waits {} for it{}", seconds_text(commit.waited_seconds),
                        every > 1 ? " on average" : "")
          : "no step waits for it";
  return fmt::format(
      "{} on a node's drives; a commit {} writes {} in {}, and {}; a kill loses at most {} that "
      "had "
      "returned ({} of work)",
      bytes_text(static_cast<double>(plan.report.nvme_bytes) * ranks),
      every == 1 ? "of every step" : fmt::format("every {} steps", every),
      bytes_text(commit.written_bytes * ranks), seconds_text(commit.seconds), waited,
      plural(every, "step"),
      seconds_text(static_cast<double>(every) * r.outcome.prediction.step_seconds));
}

namespace {
// Of gradients that are summed in nodes, each of some ranks of a machine, or of several machines.
double bits_of_sums(const PlanResult& r, double here) {
  const double ranks = r.outcome.plan->reduce_ranks, machines = r.scenario.nodes;
  if (ranks <= here) return 32 * here / ranks;
  const double nodes = machines * here / ranks;
  return (16 * (ranks - here) * here / ranks + 32 * (nodes - 1) / machines) * machines /
         (machines - 1);
}

// Per parameter in 16 bits, or the fewer that are sent, without scales: shards that are gathered,
// which NCCL and a node's copies bring once for all ranks, and gradients for each rank of the node.
double bits_into_node(const PlanResult& r) {
  const residency::Plan& plan = *r.outcome.plan;
  // Ranks with slices of the model have a part of its gradients each.
  const int here = r.scenario.ranks_per_node() / r.scenario.model->tensor_parallel;
  const double times = r.scenario.micro_batches;
  const double gathers = plan.slot_per_group || plan.node_ranks > 0 ? 1 : 2 * times;
  const bool once = !r.scenario.on_cpu() || plan.node_ranks > 0;
  const double gathered = plan.wire.packed_parameters ? 8 : 16;
  const double reduced = (plan.wire.packed_gradients ? 4 : 16) * here;
  return gathered * gathers * (once ? 1 : here) +
         times * (plan.reduce_ranks > 0 ? bits_of_sums(r, here) : reduced);
}
}  // namespace

std::string network_text(const PlanResult& r) {
  const Scenario& s = r.scenario;
  const Prediction& p = r.outcome.prediction;
  if (s.ranks() <= 1) return "none, one rank";
  // In groups that the settings name, which need not be machines.
  const std::string beyond =
      p.sent_to_other_nodes > 0
          ? fmt::format(" ({} of it beyond its node of {} ranks)",
                        bytes_text(p.sent_to_other_nodes),
                        std::max(r.outcome.plan->node_ranks, r.outcome.plan->reduce_ranks))
          : "";
  const std::string sent = fmt::format(
      "a rank sends {} a step to the other ranks{}, and the busiest {:.3f} times as much",
      bytes_text(p.sent_bytes), beyond, p.most_sent_bytes / p.sent_bytes);
  if (s.nodes <= 1) return sent;
  return fmt::format(
      "{}; {} into each rank from other machines, {} GB/s on average; {} bits x parameters x "
      "(M - 1) / M into each of M nodes{}",
      sent, bytes_text(p.network_bytes), number_text(p.network_bytes / p.step_seconds / 1e9),
      number_text(bits_into_node(r), 4),
      s.micro_batches > 1 ? fmt::format(", in {} micro-batches", s.micro_batches) : "");
}

std::string plan_text(const PlanResult& r) {
  std::string text = first_line(r) + "\n";
  for (const std::string& note : notes_of(r)) text += note + "\n";
  for (const std::string& warning : r.scenario.settings.warnings)
    text += "warning: " + warning + "\n";
  text += "\n" + what_text(r);
  if (!r.outcome.fits()) text += r.outcome.refusal + "\n\n";
  if (!r.outcome.plan) return text;
  text += memory_text(r) + lanes_text(r);
  text += fmt::format("Free batch  {}\nWear        {}\n", free_batch_text(r), wear_text(r));
  if (r.outcome.plan->durable()) text += "Store       " + store_text(r) + "\n";
  text += "Network     " + network_text(r) + "\n\n";
  text += rates_text(r.scenario) + "\n";
  return r.outcome.fits() ? text + changes_text(r) : text;
}
}  // namespace headrace::tools
