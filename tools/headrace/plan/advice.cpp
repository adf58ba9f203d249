// SPDX-License-Identifier: Apache-2.0
#include "plan/advice.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/units.hpp"
#include "partition/partition.hpp"

namespace headrace::tools {
namespace {
struct Variant {
  std::string text;
  Scenario scenario;
};

double speed_of(const Scenario& s, const Outcome& outcome) {
  return s.tokens_per_step() / outcome.prediction.step_seconds;
}

class Variants {
 public:
  explicit Variants(const Scenario& base) : base_(base) {}
  template <class Set>
  void add(std::string text, Set set) {
    Variant variant{std::move(text), base_};
    set(variant.scenario);
    all.push_back(std::move(variant));
  }
  std::vector<Variant> all;

 private:
  const Scenario& base_;
};

// `verb`: "" where it is the name of a change, "set " where it asks for one.
void add_moments(Variants& variants, const Scenario& s, const std::string& verb) {
  if (s.settings.moments == MomentCodec::kF32) {
    variants.add(verb + "headrace.moments=bf16 (opt-in: rounds the moments)",
                 [](Scenario& v) { v.settings.moments = MomentCodec::kBf16; });
  }
  if (s.settings.moments != MomentCodec::kBlock8) {
    variants.add(verb + "headrace.moments=8bit (opt-in: rounds the moments)",
                 [](Scenario& v) { v.settings.moments = MomentCodec::kBlock8; });
  }
}

void add_host_memory(Variants& variants, const Scenario& s) {
  if (s.settings.host_budget_bytes > 0) {
    const std::uint64_t budget = 2 * s.settings.host_budget_bytes;
    variants.add(fmt::format("headrace.host_budget_bytes={}, twice as much", budget),
                 [=](Scenario& v) { v.settings.host_budget_bytes = budget; });
  } else if (!s.settings.host_budget_auto) {
    variants.add("headrace.host_budget_bytes=\"auto\", what memory leaves",
                 [](Scenario& v) { v.settings.host_budget_auto = true; });
  } else if (s.machine.host_bytes > 0) {
    variants.add(fmt::format("twice the host memory ({} a node)",
                             base::format_bytes(2 * s.machine.host_bytes)),
                 [](Scenario& v) { v.machine.host_bytes *= 2; });
  }
}

// Changes that help a step that moves bytes from and to drives.
void add_drives_and_memory(Variants& variants, const Scenario& s, const residency::Plan& plan) {
  variants.add(fmt::format("twice the drives ({})", 2 * s.machine.drives), [](Scenario& v) {
    for (Figure* figure : {&v.machine.nvme_read, &v.machine.nvme_write, &v.machine.nvme_mixed})
      figure->value *= 2;
    v.machine.drives *= 2;
    v.machine.nvme_bytes *= 2;
  });
  add_moments(variants, s, "");
  add_host_memory(variants, s);
  if (!plan.deferred) {
    variants.add("an update beside the next forward (headrace.update_mode=defer)",
                 [](Scenario& v) { v.settings.update_mode = UpdateMode::kDefer; });
  }
  variants.add(
      fmt::format("headrace.prefetch_groups={}", 2 * s.settings.prefetch_groups + 1),
      [](Scenario& v) { v.settings.prefetch_groups = 2 * v.settings.prefetch_groups + 1; });
}

void add_hierarchical_reduce(Variants& variants, const Scenario& s) {
  const std::uint32_t ranks = s.ranks_per_node() / s.model->tensor_parallel;
  const std::uint32_t kept = s.settings.zero_hpz_partition_size;
  if (ranks < 2 || s.settings.hierarchical_reduce_ranks > 1 ||
      s.settings.zero_quantized_gradients || (kept > 1 && kept != ranks))
    return;
  variants.add(fmt::format("headrace.hierarchical_reduce_ranks={} (opt-in: another order of "
                           "additions)",
                           ranks),
               [=](Scenario& v) { v.settings.hierarchical_reduce_ranks = ranks; });
}

std::vector<Variant> variants_of(const Scenario& s, const Outcome& outcome) {
  Variants variants(s);
  const residency::Plan& plan = *outcome.plan;
  if (plan.report.nvme_bytes > 0) add_drives_and_memory(variants, s, plan);
  if (!s.on_cpu() && s.settings.update_on != UpdateOn::kAuto) {
    const bool device = s.settings.update_on == UpdateOn::kDevice;
    variants.add(
        device ? "an update by the CPU (headrace.update_on=cpu)"
               : "an update on the GPU (headrace.update_on=device)",
        [=](Scenario& v) { v.settings.update_on = device ? UpdateOn::kCpu : UpdateOn::kDevice; });
  }
  if (outcome.prediction.commit.waited_seconds > 0) {
    variants.add(fmt::format("headrace.durable={}, half as many commits", 2 * plan.commit_every),
                 [](Scenario& v) { v.settings.durable_every *= 2; });
  }
  if (s.nodes > 1 && s.model->frozen_parameters < s.model->parameters)
    add_hierarchical_reduce(variants, s);
  variants.add(fmt::format("--batch {}, twice as much", 2 * s.batch),
               [](Scenario& v) { v.batch *= 2; });
  if (s.checkpointing()) {
    variants.add("no --checkpointing", [](Scenario& v) { v.activations = Activations::kKept; });
  }
  return std::move(variants.all);
}
}  // namespace

std::vector<Change> changes_of(Planning& planning, const Scenario& scenario,
                               const Outcome& outcome) {
  std::vector<Change> changes;
  const double speed = speed_of(scenario, outcome);
  for (const Variant& variant : variants_of(scenario, outcome)) {
    const Outcome tried = planning.evaluate(variant.scenario);
    if (!tried.fits()) continue;
    changes.push_back(
        {variant.text, speed_of(variant.scenario, tried) / speed, tried.prediction.step_seconds});
  }
  std::ranges::stable_sort(changes, std::greater{}, &Change::speedup);
  return changes;
}

namespace {
// The least `value` from `from` up to `most` with which it fits, 0: none. Fitting is monotone.
template <class Set>
std::uint64_t least_that_fits(Planning& planning, const Scenario& s, std::uint64_t from,
                              std::uint64_t most, Set set) {
  const auto fits = [&](std::uint64_t value) {
    Scenario tried = s;
    set(tried, value);
    return planning.fits(tried);
  };
  std::uint64_t high = from;
  while (!fits(high)) {
    if (high >= most) return 0;
    from = high + 1;
    high = std::min(most, high * 2);
  }
  while (from < high) {
    const std::uint64_t middle = from + (high - from) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      from = middle + 1;
    }
  }
  return high;
}
std::uint64_t nodes_that_fit(Planning& planning, const Scenario& s) {
  constexpr std::uint64_t kMostNodes = 1u << 14;
  return least_that_fits(planning, s, s.nodes, kMostNodes, [](Scenario& v, std::uint64_t value) {
    v.nodes = static_cast<std::uint32_t>(value);
  });
}

void put_on_nvme(Scenario& s) {
  s.settings.offload_optimizer = s.settings.offload_parameters = OffloadDevice::kNvme;
}
bool is_on_nvme(const Scenario& s) {
  return s.settings.offload_optimizer == OffloadDevice::kNvme ||
         s.settings.offload_parameters == OffloadDevice::kNvme;
}

std::string differences_text(const Scenario& from, const Scenario& to) {
  std::string text = "give";
  if (to.checkpointing() && !from.checkpointing()) text += " --checkpointing";
  if (to.batch != from.batch) text += fmt::format(" --batch {}", to.batch);
  if (to.sequence != from.sequence) text += fmt::format(" --seq {}", to.sequence);
  if (to.nodes != from.nodes) text += fmt::format(" --nodes {}", to.nodes);
  if (to.settings.prefetch_groups != from.settings.prefetch_groups)
    text += fmt::format(" --set headrace.prefetch_groups={}", to.settings.prefetch_groups);
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    const OffloadDevice Settings::*device = section == std::string_view("offload_param")
                                                ? &Settings::offload_parameters
                                                : &Settings::offload_optimizer;
    if (to.settings.*device != from.settings.*device)
      text += fmt::format(" --set zero_optimization.{}.device=nvme", section);
  }
  return text + (is_on_nvme(to) && from.settings.nvme_paths.empty()
                     ? " --set zero_optimization.offload_optimizer.nvme_path=DIR"
                     : "");
}
// Each alone, the least costly first.
std::vector<Variant> single_changes(const Scenario& s) {
  Variants variants(s);
  if (!s.checkpointing()) {
    variants.add("give --checkpointing",
                 [](Scenario& v) { v.activations = Activations::kCheckpointed; });
  }
  for (std::uint32_t batch = s.batch / 2; batch > 0; batch /= 2) {
    variants.add(fmt::format("give --batch {}", batch), [=](Scenario& v) { v.batch = batch; });
  }
  for (std::uint32_t groups = s.settings.prefetch_groups; groups-- > 0;) {
    variants.add(fmt::format("set headrace.prefetch_groups to {}", groups),
                 [=](Scenario& v) { v.settings.prefetch_groups = groups; });
  }
  for (std::uint64_t tile = s.settings.tile_elements / 2; tile >= base::kBlockElements; tile /= 2) {
    if (tile % base::kBlockElements != 0) break;
    variants.add(fmt::format("set headrace.tile_elements to {}", tile),
                 [=](Scenario& v) { v.settings.tile_elements = tile; });
  }
  if (s.settings.host_budget_bytes > 0 && !s.settings.host_budget_auto) {
    variants.add("set headrace.host_budget_bytes to \"auto\"",
                 [](Scenario& v) { v.settings.host_budget_auto = true; });
  }
  if (s.settings.offload_optimizer != OffloadDevice::kNvme ||
      s.settings.offload_parameters != OffloadDevice::kNvme) {
    variants.add(std::string("set the device of offload_param and offload_optimizer to nvme") +
                     (s.settings.nvme_paths.empty() ? ", with nvme_path a directory" : ""),
                 put_on_nvme);
  }
  add_moments(variants, s, "set ");
  if (s.settings.update_on == UpdateOn::kDevice) {
    variants.add("set headrace.update_on to cpu",
                 [](Scenario& v) { v.settings.update_on = UpdateOn::kCpu; });
  }
  if (s.settings.durable_every > 0) {
    variants.add("leave out headrace.durable and headrace.store",
                 [](Scenario& v) { v.settings.durable_every = 0; });
  }
  return std::move(variants.all);
}

// Several at once, and more nodes, with shorter and shorter sequences.
std::string changes_together(Planning& planning, const Scenario& s) {
  for (std::uint32_t length = s.sequence; length >= 64; length /= 2) {
    Scenario least = s;
    if (!s.checkpointing()) least.activations = Activations::kCheckpointed;
    least.sequence = length;
    Scenario recomputed = least;
    put_on_nvme(recomputed);
    least.batch = 1;
    least.settings.prefetch_groups = std::min(1u, s.settings.prefetch_groups);
    Scenario on_nvme = least;
    put_on_nvme(on_nvme);
    for (const Scenario& tried : {least, recomputed, on_nvme})
      if (planning.fits(tried)) return differences_text(s, tried);
    if (s.on_cpu()) continue;
    for (Scenario more : {s, least}) {
      if (length != s.sequence && more.sequence == s.sequence) continue;
      const std::uint64_t nodes = nodes_that_fit(planning, more);
      if (nodes == 0) continue;
      more.nodes = static_cast<std::uint32_t>(nodes);
      return differences_text(s, more);
    }
  }
  return "";
}
}  // namespace

std::string smallest_change(Planning& planning, const Scenario& s) {
  for (const Variant& variant : single_changes(s)) {
    if (planning.fits(variant.scenario)) return variant.text;
  }
  return changes_together(planning, s);
}
}  // namespace headrace::tools
