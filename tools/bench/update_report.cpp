// SPDX-License-Identifier: Apache-2.0
#include "update_report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "bench_program.hpp"

namespace headrace::tools {
namespace {

// A figure of every round: a column of the table, a key of the report.
struct Figure {
  const char* key;
  const char* title;
  const char* format;
  double (*of)(const UpdateMeasurement& m, const Round& r);
};
// GB of one step, both ways.
double moved(const UpdateMeasurement& m) {
  return 1e-9 * static_cast<double>(m.read_bytes + m.written_bytes);
}

constexpr Figure kFigures[] = {
    {"raw_read_gb_per_s", "read GB/s", "{:.2f}",
     [](const auto&, const auto& r) { return 1e-9 * r.raw_read.bytes_per_second(); }},
    {"raw_write_gb_per_s", "write GB/s", "{:.2f}",
     [](const auto&, const auto& r) { return 1e-9 * r.raw_write.bytes_per_second(); }},
    {"raw_mixed_gb_per_s", "mixed GB/s", "{:.2f}",
     [](const auto&, const auto& r) { return 1e-9 * r.raw_mixed.bytes_per_second(); }},
    {"bound_s", "bound s", "{:.3f}", [](const auto&, const auto& r) { return r.bound_seconds(); }},
    {"update_s", "update s", "{:.3f}", [](const auto&, const auto& r) { return r.nvme.seconds; }},
    {"tiles_s", "tiles s", "{:.3f}",
     [](const auto&, const auto& r) { return r.nvme.update_seconds; }},
    {"update_to_bound", "/bound", "{:.2f}",
     [](const auto&, const auto& r) { return r.bound_ratio(); }},
    {"update_of_mixed", "of mixed", "{:.2f}",
     [](const auto&, const auto& r) { return r.mixed_share(); }},
    {"memory_s", "memory s", "{:.3f}", [](const auto&, const auto& r) { return r.memory.seconds; }},
    {"update_to_memory", "/memory", "{:.2f}",
     [](const auto&, const auto& r) { return r.memory_ratio(); }},
    {"compute_s", "compute s", "{:.3f}",
     [](const auto&, const auto& r) { return r.nvme.compute_seconds; }},
    {"read_busy_s", "reading s", "{:.3f}",
     [](const auto&, const auto& r) { return r.nvme.read_busy_seconds; }},
    {"write_busy_s", "writing s", "{:.3f}",
     [](const auto&, const auto& r) { return r.nvme.write_busy_seconds; }},
    {"update_cpu_s_per_gb", "CPU s/GB", "{:.3f}",
     [](const auto& m, const auto& r) { return r.nvme.cpu_seconds / moved(m); }},
    {"raw_cpu_s_per_gb", "raw CPU", "{:.3f}",
     [](const auto& m, const auto& r) {
       return (r.raw_read.cpu_seconds + r.raw_write.cpu_seconds) / moved(m);
     }},
};

MedianInterval spread(const UpdateMeasurement& m,
                      double (*of)(const UpdateMeasurement&, const Round&)) {
  std::vector<double> values;
  for (const Round& round : m.rounds) values.push_back(of(m, round));
  return median_interval(std::move(values));
}

bool shown(const UpdateOptions& options, const Figure& figure) {
  return options.in_memory || std::string_view(figure.key).find("memory") == std::string_view::npos;
}

std::vector<Fact> config_facts(const UpdateOptions& o) {
  const Settings& s = o.settings;
  return {
      {"parameters", fmt::format("{} (bf16, split master)", o.parameters)},
      {"on NVMe", o.parameters_on_nvme ? "optimizer state and parameters" : "optimizer state"},
      {"folder", s.nvme_paths.at(0)},
      {"tile", fmt::format("{} elements", s.tile_elements)},
      {"update slots", std::to_string(s.update_slots)},
      {"update threads", s.update_threads == 0 ? "all usable" : std::to_string(s.update_threads)},
      {"requests",
       fmt::format("{} each, {} in flight, {} per submit", base::format_bytes(s.io_block_bytes),
                   s.queue_depth, s.submit_batch)},
      {"checksums", s.checksums == Checksums::kOn ? "on" : "off"},
      {"rounds", std::to_string(o.rounds)}};
}

std::string row(const UpdateOptions& options, const std::string& name,
                const std::function<std::string(const Figure&)>& cell) {
  std::string text = fmt::format("{:<7}", name);
  for (const Figure& figure : kFigures) {
    if (shown(options, figure)) {
      text += fmt::format(" {:>{}}", cell(figure),
                          std::max<std::size_t>(6, std::string_view(figure.title).size()));
    }
  }
  return text + "\n";
}
}  // namespace

MedianInterval bound_ratio(const UpdateMeasurement& measurement) {
  return spread(measurement, [](const auto&, const Round& r) { return r.bound_ratio(); });
}

std::string head_text(const UpdateOptions& options) {
  return head_text(config_facts(options), doubts());
}

std::string result_text(const UpdateOptions& options, const UpdateMeasurement& m) {
  std::string text =
      fmt::format("drive\n  {:<15} {}\n  {:<15} {}, {}\n  {:<15} {} read, {} written\n\n", "queue",
                  m.queue, "file system", m.file_system, m.direct ? "O_DIRECT" : "buffered",
                  "bytes a step", m.read_bytes, m.written_bytes);
  const auto number = [](const Figure& f, double value) {
    return fmt::format(fmt::runtime(f.format), value);
  };
  text += row(options, "round", [](const Figure& f) { return std::string(f.title); });
  for (std::size_t r = 0; r < m.rounds.size(); ++r) {
    text += row(options, std::to_string(r + 1),
                [&](const Figure& f) { return number(f, f.of(m, m.rounds[r])); });
  }
  text +=
      row(options, "median", [&](const Figure& f) { return number(f, spread(m, f.of).median); });
  text += row(options, "least", [&](const Figure& f) { return number(f, spread(m, f.of).least); });
  text += row(options, "most", [&](const Figure& f) { return number(f, spread(m, f.of).most); });
  const MedianInterval ratio = bound_ratio(m);
  text += fmt::format("\nupdate / additive bound: {:.3f} [{:.3f}, {:.3f}]\n", ratio.median,
                      ratio.least, ratio.most);
  const MedianInterval share =
      spread(m, [](const auto&, const Round& r) { return r.mixed_share(); });
  text += fmt::format("share of the raw mixed pattern: {:.3f} [{:.3f}, {:.3f}]\n", share.median,
                      share.least, share.most);
  if (options.require_ratio) {
    text += fmt::format("required: {:.3f}: {}\n", *options.require_ratio,
                        ratio.median <= *options.require_ratio ? "met" : "MISSED");
  }
  return text;
}

std::string to_json(const UpdateOptions& options, const UpdateMeasurement& m) {
  Json json = head_json("update_bench", config_facts(options), doubts());
  json["drive"] = {{"queue", m.queue}, {"file_system", m.file_system}, {"direct", m.direct}};
  json["bytes"] = {{"read", m.read_bytes}, {"written", m.written_bytes}};
  json["warm_up_s"] = m.warm_up_seconds;
  for (const Figure& figure : kFigures) {
    if (!shown(options, figure)) continue;
    const MedianInterval values = spread(m, figure.of);
    json["summary"][figure.key] = {
        {"median", values.median}, {"min", values.least}, {"max", values.most}};
  }
  for (const Round& round : m.rounds) {
    Json object;
    for (const Figure& figure : kFigures) {
      if (shown(options, figure)) object[figure.key] = figure.of(m, round);
    }
    json["rounds"].push_back(std::move(object));
  }
  if (options.require_ratio) {
    json["required"] = {{"update_to_bound", *options.require_ratio},
                        {"met", bound_ratio(m).median <= *options.require_ratio}};
  }
  return dump(json);
}
}  // namespace headrace::tools
