// SPDX-License-Identifier: Apache-2.0
#include "bench/thresholds.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>

#include "base/error_text.hpp"
#include "bench/report_format.hpp"
#include "command_line/words.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;

enum class Quantity { kThroughput, kLatency, kIops, kCpu };
struct Name {
  std::string_view name;
  Quantity quantity;
  double quantile;  // of latency
};
constexpr std::array kNames{
    Name{"read", Quantity::kThroughput, 0},
    Name{"write", Quantity::kThroughput, 0},
    Name{"randread", Quantity::kThroughput, 0},
    Name{"randwrite", Quantity::kThroughput, 0},
    Name{"rw", Quantity::kThroughput, 0},
    Name{"p50", Quantity::kLatency, 0.5},
    Name{"p99", Quantity::kLatency, 0.99},
    Name{"p99.9", Quantity::kLatency, 0.999},
    Name{"max", Quantity::kLatency, 1},
    Name{"iops", Quantity::kIops, 0},
    Name{"cpu", Quantity::kCpu, 0},
};

struct Unit {
  std::string_view text;
  double factor;
};
constexpr std::array kThroughputUnits{Unit{"GB/s", 1e9}, Unit{"MB/s", 1e6},
                                      Unit{"GiB/s", 1073741824.0}, Unit{"MiB/s", 1048576.0}};
constexpr std::array kLatencyUnits{Unit{"ms", 1e6}, Unit{"us", 1e3}, Unit{"s", 1e9}};
constexpr std::array kIopsUnits{Unit{"", 1}, Unit{"k", 1e3}, Unit{"M", 1e6}};
constexpr std::array kCpuUnits{Unit{"s/GB", 1}, Unit{"ms/GB", 1e-3}};

std::span<const Unit> units_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::kThroughput:
      return kThroughputUnits;
    case Quantity::kLatency:
      return kLatencyUnits;
    case Quantity::kIops:
      return kIopsUnits;
    default:
      return kCpuUnits;
  }
}

const Name& name_in(const std::string& text, const std::string& word) {
  const auto found = std::ranges::find(kNames, word, &Name::name);
  if (found != kNames.end()) return *found;
  std::vector<std::string_view> names;
  std::string list;
  for (const Name& known : kNames) {
    names.push_back(known.name);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", known.name);
  }
  const std::string_view nearest = base::nearest_word(word, names);
  throw Fault{fmt::format("--require '{}': '{}' is nothing that is measured", text, word),
              nearest.empty() ? "Give some of: " + list : fmt::format("Did you mean {}?", nearest)};
}

double unit_in(const std::string& text, const Name& name, std::string_view word) {
  std::vector<std::string_view> known;
  std::string list;
  for (const Unit& unit : units_of(name.quantity)) {
    if (unit.text == word) return unit.factor;
    known.push_back(unit.text);
    if (!unit.text.empty()) list += fmt::format("{}{}", list.empty() ? "" : ", ", unit.text);
  }
  if (word.empty()) {
    throw Fault{fmt::format("--require '{}' has no unit", text),
                fmt::format("Write one of {} behind the number", list)};
  }
  const std::string_view nearest = base::nearest_word(word, known);
  throw Fault{fmt::format("--require '{}': '{}' is no unit of {}", text, word, name.name),
              nearest.empty() ? fmt::format("Give one of {}", list)
                              : fmt::format("Did you mean {}?", nearest)};
}

Threshold parse_one(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos)
    throw Fault{fmt::format("--require '{}' has no value", text),
                "Write it as in read=6GB/s,p99=20ms"};
  const Name& name = name_in(text, text.substr(0, equals));
  const std::string value = text.substr(equals + 1);
  const char* const end = value.data() + value.size();
  double number = 0;
  const auto [stop, error] = std::from_chars(value.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number <= 0) {
    throw Fault{
        fmt::format("--require '{}': '{}' does not begin with a number above 0", text, value),
        "Write it as in read=6GB/s,p99=20ms"};
  }
  const double factor = unit_in(text, name, {stop, static_cast<std::size_t>(end - stop)});
  return {.text = text, .name = std::string(name.name), .bound = number * factor};
}

const Name& known_name(const std::string& name) {
  return *std::ranges::find(kNames, name, &Name::name);
}

// The order in which latency and CPU are looked for.
constexpr std::array kReadsFirst{Pattern::kRead, Pattern::kRandRead, Pattern::kMixed,
                                 Pattern::kWrite, Pattern::kRandWrite};

std::optional<std::size_t> judged_cell(const Measurement& measurement) {
  for (const Pattern pattern : kReadsFirst) {
    if (const auto cell = recommended(measurement, pattern)) return cell;
  }
  return std::nullopt;
}

// Of the cells of the raw queue that have samples, and are of `pattern` where one is given.
template <class Of>
std::optional<std::size_t> cell_with_most(const Measurement& measurement,
                                          std::optional<Pattern> pattern, const Of& of) {
  std::optional<std::size_t> most;
  for (std::size_t i = 0; i < measurement.cells.size(); ++i) {
    const Cell& cell = measurement.cells[i];
    if (cell.samples.empty() || cell.workload.mover != Mover::kQueue) continue;
    if (pattern && cell.workload.pattern != *pattern) continue;
    if (!most || of(cell) > of(measurement.cells[*most])) most = i;
  }
  return most;
}

Judged judge_one(const Threshold& requirement, const Measurement& measurement) {
  const Name& name = known_name(requirement.name);
  Judged judged;
  judged.requirement = requirement;
  std::optional<std::size_t> index;
  if (name.quantity == Quantity::kThroughput) {
    index = cell_with_most(measurement, pattern_of(name.name),
                           [](const Cell& cell) { return cell.rate().median; });
  } else if (name.quantity == Quantity::kIops) {
    index = cell_with_most(measurement, std::nullopt, iops_of);
  } else {
    index = judged_cell(measurement);
  }
  if (!index) return judged;
  const Cell& cell = measurement.cells[*index];
  judged.measured = true;
  judged.cell = text_of(cell.workload);
  switch (name.quantity) {
    case Quantity::kThroughput:
      judged.found = cell.rate().median;
      break;
    case Quantity::kIops:
      judged.found = iops_of(cell);
      break;
    case Quantity::kLatency:
      judged.found = static_cast<double>(cell.latency().quantile_ns(name.quantile));
      judged.cell += ", the recommended one";
      break;
    case Quantity::kCpu:
      judged.found = cell.cpu_per_gb().median;
      judged.cell += ", the recommended one";
      break;
  }
  const bool at_least = name.quantity == Quantity::kThroughput || name.quantity == Quantity::kIops;
  judged.met = at_least ? judged.found >= requirement.bound : judged.found <= requirement.bound;
  return judged;
}

// "6.21 GB/s", in the unit that the requirement's name has.
std::string value_text(const std::string& name, double value) {
  switch (known_name(name).quantity) {
    case Quantity::kThroughput:
      return gb_text(value);
    case Quantity::kLatency:
      return three_digits(value / 1e6) + " ms";
    case Quantity::kIops:
      return grouped(static_cast<std::uint64_t>(value)) + " IOPS";
    default:
      return three_digits(value) + " CPU s/GB";
  }
}
}  // namespace

bool Required::all_met() const { return std::ranges::all_of(judged, &Judged::met); }

std::vector<Threshold> parse_thresholds(const std::string& text) {
  std::vector<Threshold> thresholds;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    Threshold next = parse_one(text.substr(at, comma - at));
    for (const Threshold& earlier : thresholds) {
      if (earlier.name == next.name)
        throw Fault{fmt::format("--require asks for {} twice", next.name), "Leave one out"};
    }
    thresholds.push_back(std::move(next));
    at = comma + 1;
  }
  return thresholds;
}

void check_measured(const std::vector<Threshold>& thresholds,
                    const std::vector<Workload>& planned) {
  const auto has = [&](std::optional<Pattern> pattern) {
    return std::ranges::any_of(planned, [&](const Workload& workload) {
      return workload.mover == Mover::kQueue && (!pattern || workload.pattern == *pattern);
    });
  };
  for (const Threshold& requirement : thresholds) {
    const bool of_pattern = known_name(requirement.name).quantity == Quantity::kThroughput;
    if (has(of_pattern ? pattern_of(requirement.name) : std::nullopt)) continue;
    throw Fault{fmt::format("--require {}: nothing of this run would tell", requirement.text),
                of_pattern ? fmt::format("Add {} to --rw, or leave {} out of --require",
                                         requirement.name, requirement.name)
                           : fmt::format("Leave {} out of --require", requirement.name)};
  }
}

Required judge(const std::vector<Threshold>& thresholds, const Measurement& measurement) {
  Required required;
  for (const Threshold& requirement : thresholds)
    required.judged.push_back(judge_one(requirement, measurement));
  return required;
}

std::string thresholds_text(const Required& required) {
  std::string text;
  for (const Judged& judged : required.judged) {
    const std::string found =
        judged.measured
            ? fmt::format("{} ({})", value_text(judged.requirement.name, judged.found), judged.cell)
            : std::string("not measured, the run was ended before");
    text += fmt::format("  {:<7} {}: {}\n", judged.met ? "met" : "MISSED", judged.requirement.text,
                        found);
  }
  return text;
}
}  // namespace headrace::tools
