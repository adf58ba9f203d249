// SPDX-License-Identifier: Apache-2.0
#include "plan/plots.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "page/svg.hpp"

namespace headrace::tools {
namespace {
using residency::Lane;
using residency::Span;
using Points = std::vector<std::pair<double, double>>;

constexpr Frame kLanesFrame{
    .width = 860, .height = 250, .left = 92, .right = 836, .top = 20, .bottom = 206};
constexpr Frame kMemoryFrame{
    .width = 860, .height = 170, .left = 92, .right = 836, .top = 28, .bottom = 126};
constexpr Frame kBatchFrame{
    .width = 860, .height = 290, .left = 92, .right = 836, .top = 30, .bottom = 236};

std::string figure_of_plot(const Svg& svg, const std::string& caption) {
  return "<figure class=\"plot\">\n" + svg.done() + "<figcaption>" + escaped(caption) +
         "</figcaption></figure>\n";
}

void draw_time_axis(Svg& svg, const Frame& frame, const Scale& x) {
  for (double value = 0, step = tick_step(x.to); value <= x.to * 1.0001; value += step) {
    svg.line(x(value), frame.bottom, x(value), frame.bottom + 4, "axis");
    svg.text(x(value), frame.bottom + 18, tick_text(value), "dim", Anchor::kMiddle);
  }
  svg.text((frame.left + frame.right) / 2, frame.bottom + 36, "seconds", "dim", Anchor::kMiddle);
}

// When the update's lanes begin in the picture: behind the passes, or with them.
double update_begin(const PlanResult& r) {
  if (r.outcome.plan->deferred) return 0;
  double end = 0;
  for (const Span& span : r.outcome.prediction.spans) end = std::max(end, span.end);
  return end;
}

double end_of_picture(const PlanResult& r) {
  double end = update_begin(r) + r.outcome.prediction.update.seconds;
  for (const Span& span : r.outcome.prediction.spans) end = std::max(end, span.end);
  return end;
}

// Those of a lane, joined where the eye could not tell them apart.
std::vector<Span> joined_spans(const PlanResult& r, Lane lane, double least_gap) {
  std::vector<Span> joined;
  for (const Span& span : r.outcome.prediction.spans) {
    if (span.lane != lane) continue;
    if (!joined.empty() && span.begin - joined.back().end < least_gap) {
      joined.back().end = std::max(joined.back().end, span.end);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}
}  // namespace

std::string lanes_over_time(const PlanResult& r) {
  const Frame& f = kLanesFrame;
  const double end = end_of_picture(r);
  if (end <= 0) return "";
  const Scale x{0, end, f.left, f.right};
  Svg svg(f.width, f.height, "Lanes over the time of one step");
  draw_time_axis(svg, f, x);
  const double height = (f.bottom - f.top) / residency::kLanes, begin = update_begin(r);
  for (std::size_t l = 0; l < residency::kLanes; ++l) {
    const auto lane = static_cast<Lane>(l);
    const double y = f.top + height * static_cast<double>(l);
    svg.text(f.left - 8, y + height / 2 + 4, residency::name_of(lane), "dim", Anchor::kEnd);
    svg.line(f.left, y + height, f.right, y + height, "grid");
    const auto bar = [&](double from, double to, const char* css, const std::string& hint) {
      svg.rect(x(from), y + 4, std::max(0.5, x(to) - x(from)), height - 8, css, hint);
    };
    for (const Span& span : joined_spans(r, lane, end / 2000)) {
      bar(span.begin, span.end, "bar1",
          fmt::format("{} to {}, from group {}", seconds_text(span.begin), seconds_text(span.end),
                      r.scenario.model->groups[span.group].group.name));
    }
    // Tile by tile all through the update.
    const double busy = r.outcome.prediction.update.busy[l];
    if (busy <= 0) continue;
    bar(begin, begin + r.outcome.prediction.update.seconds, "bar2", "update");
    const std::string label = seconds_text(busy);
    constexpr double kLetter = 7.5, kMargin = 6;
    if (x(r.outcome.prediction.update.seconds) - x(0) > kLetter * label.size() + 2 * kMargin)
      svg.text(x(begin) + kMargin, y + height / 2 + 4, label, "value", Anchor::kStart, "#ffffff");
  }
  return figure_of_plot(
      svg, fmt::format("The first of {} micro-batch{} (blue), and the update (orange), in which "
                       "lanes take turns tile by tile: beside each, how long it works.",
                       r.scenario.micro_batches, r.scenario.micro_batches == 1 ? "" : "es"));
}

namespace {
// Of the first micro-batch: forward fills, backward empties; with a deferred update backward waits
// for that. As the lanes have it.
Points activations_over_time(const PlanResult& r) {
  const residency::Prediction& p = r.outcome.prediction;
  const double passes = r.scenario.micro_batches, end = end_of_picture(r);
  const double forward = p.forward.seconds / passes, backward = p.backward.seconds / passes;
  const double beside =
      r.outcome.plan->deferred ? std::max(0.0, p.update.seconds - p.hidden_seconds) : 0;
  const double turn = std::min(end, forward + beside);
  return {{0, 0},
          {std::min(end, forward), r.outcome.activations},
          {turn, r.outcome.activations},
          {std::min(end, turn + backward), 0},
          {end, 0}};
}

std::string memory_panel(const PlanResult& r, const char* name, double allocated, bool activations,
                         double limit) {
  const Frame& f = kMemoryFrame;
  const double most = allocated + (activations ? r.outcome.activations : 0);
  if (most <= 0) return "";
  constexpr double kGiB = static_cast<double>(base::kGiB);
  const Points points =
      activations ? activations_over_time(r) : Points{{0, 0}, {end_of_picture(r), 0}};
  // A limit that is far above would press all else to the ground.
  const bool near = limit > 0 && limit <= 3 * most;
  const double top = std::max(most * 1.1, near ? limit * 1.05 : 0);
  const Scale x{0, points.back().first, f.left, f.right}, y{0, top / kGiB, f.bottom, f.top};
  Svg svg(f.width, f.height, std::string("Memory over one step: ") + name);
  draw_time_axis(svg, f, x);
  for (double value = 0, step = tick_step(y.to); value <= y.to * 1.0001; value += step) {
    svg.line(f.left, y(value), f.right, y(value), "grid");
    svg.text(f.left - 6, y(value) + 4, tick_text(value), "dim", Anchor::kEnd);
  }
  svg.text(f.left - 6, f.top - 12, std::string(name) + ", GiB", "dim", Anchor::kEnd);
  Points line, base;
  for (const auto& [at, bytes] : points) {
    line.emplace_back(x(at), y((allocated + bytes) / kGiB));
    base.emplace_back(x(at), y(allocated / kGiB));
  }
  svg.polyline(base, "curve s1");
  if (activations) svg.polyline(line, "curve s2 dashed");
  if (near) svg.line(f.left, y(limit / kGiB), f.right, y(limit / kGiB), "cliff");
  if (limit > 0)
    svg.text(f.right, f.top - 12, "limit " + base::format_bytes(whole_bytes(limit)), "cliff-text",
             Anchor::kEnd);
  return svg.done();
}
}  // namespace

std::string memory_over_time(const PlanResult& r) {
  const PlanReport& report = r.outcome.plan->report;
  const Machine& m = r.scenario.machine;
  const double ranks = r.scenario.ranks_per_node();
  const bool on_cpu = r.scenario.on_cpu();
  const auto real = [](std::uint64_t bytes) { return static_cast<double>(bytes); };
  std::string panels =
      memory_panel(r, "device", real(report.device_bytes), !on_cpu, real(m.gpu_memory_bytes));
  panels += memory_panel(r, "host", real(report.host_bytes), on_cpu, real(m.host_bytes) / ranks);
  panels += memory_panel(r, "NVMe", real(report.nvme_bytes), false, real(m.nvme_bytes) / ranks);
  return "<figure class=\"plot\">\n" + panels +
         "<figcaption>What one rank allocates, from the first step to the last (blue), and with "
         "activations of the first micro-batch, an estimate (orange, dashed). Red: the rank's "
         "share of the machine, a line where it is near.</figcaption></figure>\n";
}

std::string step_by_batch(const PlanResult& r, Planning& planning) {
  Points step, compute;
  double last_fitting = 0;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
    const double batch = r.scenario.batch * factor;
    if (batch < 1) continue;
    Scenario tried = r.scenario;
    tried.batch = static_cast<std::uint32_t>(batch);
    const Outcome outcome = planning.evaluate(tried);
    if (!outcome.fits()) break;
    const residency::Prediction& p = outcome.prediction;
    const auto of = [](const residency::PhaseCost& phase) {
      return phase.busy[static_cast<std::size_t>(Lane::kCompute)];
    };
    last_fitting = tried.tokens();
    step.emplace_back(last_fitting, p.step_seconds);
    compute.emplace_back(last_fitting, of(p.forward) + of(p.backward));
  }
  if (step.size() < 2) return "";
  const Frame& f = kBatchFrame;
  const Scale x{0, last_fitting, f.left, f.right}, y{0, step.back().second * 1.1, f.bottom, f.top};
  Svg svg(f.width, f.height, "Seconds per step against tokens per micro-batch");
  for (double value = 0, tick = tick_step(x.to); value <= x.to * 1.0001; value += tick) {
    svg.line(x(value), f.bottom, x(value), f.bottom + 4, "axis");
    svg.text(x(value), f.bottom + 18, tick_text(value), "dim", Anchor::kMiddle);
  }
  for (double value = 0, tick = tick_step(y.to); value <= y.to * 1.0001; value += tick) {
    svg.line(f.left, y(value), f.right, y(value), "grid");
    svg.text(f.left - 6, y(value) + 4, tick_text(value), "dim", Anchor::kEnd);
  }
  svg.text((f.left + f.right) / 2, f.bottom + 38, "tokens per micro-batch and rank", "dim",
           Anchor::kMiddle);
  svg.text(f.left - 6, f.top - 12, "seconds", "dim", Anchor::kEnd);
  const auto draw = [&](Points points, const char* css) {
    for (auto& [at, value] : points) {
      value = y(value);
      at = x(at);
    }
    svg.polyline(points, css);
    for (const auto& [at, value] : points) svg.circle(at, value, 3, std::string("mark ") + css);
  };
  draw(compute, "curve s2 dashed");
  draw(step, "curve s1");
  const double free = r.outcome.prediction.free_tokens;
  if (free > 0 && free <= last_fitting) {
    svg.line(x(free), f.top, x(free), f.bottom, "cliff");
    svg.text(x(free) + 6, f.top - 6, "free batch", "cliff-text");
  }
  return figure_of_plot(svg,
                        "Seconds of a step (blue) and of its computing alone (orange, dashed), up "
                        "to the largest micro-batch tried that fits. Free batch: " +
                            free_batch_text(r) + ".");
}
}  // namespace headrace::tools
