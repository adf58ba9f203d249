// SPDX-License-Identifier: Apache-2.0
#include "adapter_report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "bench_program.hpp"
#include "measure/paired_ratio.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint32_t kWantedRounds = 30;

struct Metric {
  const char* key;
  const char* title;
  double (*of)(const PassCost& cost);
  bool bounded;  // by --at-most
};
constexpr Metric kMetrics[] = {
    {"cpu", "CPU", [](const PassCost& c) { return c.cpu_seconds; }, true},
    {"wall", "wall", [](const PassCost& c) { return c.wall_seconds; }, true},
    {"forward_wall", "forward, wall", [](const PassCost& c) { return c.forward_seconds; }, false},
    {"backward_wall", "backward, wall", [](const PassCost& c) { return c.backward_seconds; },
     false},
};
constexpr const char* kPlain =
    "LibTorch alone: forward, loss, backward; gradients stay on the parameters and are dropped by "
    "zero_grad(set_to_none)";
constexpr const char* kAdapter =
    "headrace::torch::Offload, everything resident: the same, each block called through it; "
    "gradients are handed over in backward (written to the engine's slab, squares summed) and "
    "dropped by discard_gradients()";
constexpr const char* kBound =
    "one-sided 95 % bound of the median of the paired ratios, by the sign test";

PairedRatio ratio_of(const AdapterMeasurement& m, const Metric& metric) {
  std::vector<double> ratios;
  for (const AdapterRound& round : m.rounds)
    ratios.push_back(metric.of(round.adapter) / metric.of(round.plain));
  return paired_ratio(std::move(ratios));
}
// Of one pass; a round has two.
double median_seconds(const AdapterMeasurement& m, const Metric& metric,
                      PassCost AdapterRound::*arm) {
  std::vector<double> seconds;
  for (const AdapterRound& round : m.rounds) seconds.push_back(metric.of(round.*arm) / 2);
  return median_interval(std::move(seconds)).median;
}

std::vector<Fact> config_facts(const AdapterOptions& o) {
  return {{"model", fmt::format("GPT of tools/train_gpt, bf16: {} layers, hidden {}, {} heads",
                                o.layers, o.hidden, o.hidden / 64)},
          {"batch", fmt::format("{} x {} bytes", o.batch, o.sequence)},
          {"rounds", fmt::format("{} of two passes each", o.rounds)},
          {"plain", kPlain},
          {"adapter", kAdapter},
          {"bound", kBound}};
}

std::vector<std::string> warnings(const AdapterOptions& options) {
  std::vector<std::string> lines = doubts();
  if (options.rounds < kWantedRounds) {
    lines.push_back(fmt::format("{} rounds; the bound is a loose one; measure {} or more",
                                options.rounds, kWantedRounds));
  }
  return lines;
}
}  // namespace

bool is_met(const AdapterOptions& options, const AdapterMeasurement& m) {
  return !options.at_most || std::ranges::all_of(kMetrics, [&](const Metric& metric) {
    return !metric.bounded || ratio_of(m, metric).upper_bound <= *options.at_most;
  });
}

std::string head_text(const AdapterOptions& options) {
  return head_text(config_facts(options), warnings(options));
}

std::string result_text(const AdapterOptions& options, const AdapterMeasurement& m) {
  std::string text = fmt::format(
      "torch\n  {:<15} {}\n  {:<15} {}\nwork\n  {:<15} {}\n  {:<15} {} of {} in place\n\n",
      "version", m.torch_version, "threads", m.torch_threads, "parameters", m.parameters, "gathers",
      m.gathers, m.gathers);
  text += fmt::format("{:<14} {:>9} {:>9} {:>7} {:>9} {:>7} {:>7} {:>9}\n", "per pass", "plain ms",
                      "ours ms", "ratio", "95 % <=", "least", "most", "above 1");
  for (const Metric& metric : kMetrics) {
    const PairedRatio ratio = ratio_of(m, metric);
    text += fmt::format("{:<14} {:>9.2f} {:>9.2f} {:>7.4f} {:>9.4f} {:>7.4f} {:>7.4f} {:>7.0f} %\n",
                        metric.title, 1e3 * median_seconds(m, metric, &AdapterRound::plain),
                        1e3 * median_seconds(m, metric, &AdapterRound::adapter), ratio.median,
                        ratio.upper_bound, ratio.least, ratio.most, 100 * ratio.share_above_one);
  }
  if (options.at_most) {
    text += fmt::format("required: upper bounds of CPU and wall at most {:.4f}: {}\n",
                        *options.at_most, is_met(options, m) ? "met" : "MISSED");
  }
  return text;
}

std::string to_json(const AdapterOptions& options, const AdapterMeasurement& m) {
  Json json = head_json("adapter_bench", config_facts(options), warnings(options));
  json["torch"] = {{"version", m.torch_version}, {"threads", m.torch_threads}};
  json["parameters"] = m.parameters;
  json["gathers_in_place"] = m.gathers;
  json["warm_up_s"] = m.warm_up_seconds;
  for (const Metric& metric : kMetrics) {
    const PairedRatio ratio = ratio_of(m, metric);
    json["summary"][metric.key] = {{"plain_s", median_seconds(m, metric, &AdapterRound::plain)},
                                   {"adapter_s", median_seconds(m, metric, &AdapterRound::adapter)},
                                   {"ratio", ratio.median},
                                   {"upper_bound", ratio.upper_bound},
                                   {"min", ratio.least},
                                   {"max", ratio.most},
                                   {"share_above_one", ratio.share_above_one}};
  }
  for (const AdapterRound& round : m.rounds) {
    Json object;
    for (const Metric& metric : kMetrics) {
      object[metric.key] = {{"plain_s", metric.of(round.plain) / 2},
                            {"adapter_s", metric.of(round.adapter) / 2}};
    }
    json["rounds"].push_back(std::move(object));
  }
  if (options.at_most)
    json["required"] = {{"at_most", *options.at_most}, {"met", is_met(options, m)}};
  return dump(json);
}
}  // namespace headrace::tools
