// SPDX-License-Identifier: Apache-2.0
#include "drives_report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "bench_program.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools {
namespace {
struct Work {
  const char* key;
  const char* title;
  Together DrivesRound::*of;
};
constexpr Work kWork[] = {{"raw_read", "raw read", &DrivesRound::read},
                          {"raw_write", "raw write", &DrivesRound::write},
                          {"update", "update", &DrivesRound::update}};

template <class Of>
double median(const DrivesMeasurement& m, Of of) {
  std::vector<double> values;
  for (const DrivesRound& round : m.rounds) values.push_back(of(round));
  return median_interval(std::move(values)).median;
}

double median_ratio(const DrivesMeasurement& m, const Work& work) {
  return median(m, [&](const DrivesRound& r) { return (r.*work.of).ratio(); });
}

std::vector<Fact> config_facts(const DrivesOptions& o) {
  const Settings& s = o.settings;
  std::vector<Fact> facts = {
      {"parameters", fmt::format("{} (bf16, split master), state on NVMe", o.parameters)},
      {"tile", fmt::format("{} elements", s.tile_elements)},
      {"update slots", std::to_string(s.update_slots)},
      {"requests",
       fmt::format("{} each, {} in flight", base::format_bytes(s.io_block_bytes), s.queue_depth)},
      {"shares", s.drive_shares.empty() ? "as measured at freeze" : "given"},
      {"rounds", std::to_string(o.rounds)}};
  for (std::size_t d = 0; d < s.nvme_paths.size(); ++d) {
    std::string text = s.nvme_paths[d];
    if (!o.throttle_bytes_per_second.empty())
      text += fmt::format(", held to {:.2f} GB/s", 1e-9 * o.throttle_bytes_per_second[d]);
    facts.push_back({fmt::format("drive {}", d), text});
  }
  return facts;
}

std::string plan_text(const std::vector<DriveReport>& drives) {
  std::string text = "plan\n";
  for (std::size_t d = 0; d < drives.size(); ++d) {
    const DriveReport& drive = drives[d];
    const std::string measured =
        drive.read_bytes_per_second > 0
            ? fmt::format(", measured {:.3f} GB/s read, {:.3f} GB/s written",
                          1e-9 * drive.read_bytes_per_second, 1e-9 * drive.write_bytes_per_second)
            : "";
    text += fmt::format("  drive {}         {:.1f} % of the bytes, {}{}\n", d, 100 * drive.share,
                        base::format_bytes(drive.bytes), measured);
  }
  return text + "\n";
}
}  // namespace

double worst_ratio(const DrivesMeasurement& measurement) {
  double worst = median_ratio(measurement, kWork[0]);
  for (const Work& work : kWork) worst = std::min(worst, median_ratio(measurement, work));
  return worst;
}

std::string head_text(const DrivesOptions& options) {
  return head_text(config_facts(options), doubts());
}

std::string result_text(const DrivesOptions& options, const DrivesMeasurement& m) {
  std::string text = plan_text(m.plan);
  text += fmt::format("{:<10}", "GB/s");
  for (std::size_t d = 0; d < m.plan.size(); ++d)
    text += fmt::format(" {:>12}", fmt::format("drive {} alone", d).substr(0, 13));
  text += fmt::format(" {:>9} {:>9}   {}\n", "sum", "together", "together / sum, every round");
  for (const Work& work : kWork) {
    text += fmt::format("{:<10}", work.title);
    for (std::size_t d = 0; d < m.plan.size(); ++d) {
      const double alone = median(m, [&](const DrivesRound& r) { return (r.*work.of).alone[d]; });
      text += fmt::format(" {:>13.3f}", 1e-9 * alone);
    }
    text +=
        fmt::format(" {:>9.3f} {:>9.3f}  ",
                    1e-9 * median(m, [&](const DrivesRound& r) { return (r.*work.of).sum(); }),
                    1e-9 * median(m, [&](const DrivesRound& r) { return (r.*work.of).together; }));
    for (const DrivesRound& round : m.rounds)
      text += fmt::format(" {:.3f}", (round.*work.of).ratio());
    text += "\n";
  }
  text += "\n";
  for (const Work& work : kWork)
    text += fmt::format("{} together / sum: {:.3f}\n", work.title, median_ratio(m, work));
  if (options.require_sum) {
    text += fmt::format("required: {:.3f}: {}\n", *options.require_sum,
                        worst_ratio(m) >= *options.require_sum ? "met" : "MISSED");
  }
  return text;
}

std::string to_json(const DrivesOptions& options, const DrivesMeasurement& m) {
  Json json = head_json("drives_bench", config_facts(options), doubts());
  for (const DriveReport& drive : m.plan) {
    json["plan"].push_back({{"path", drive.path},
                            {"bytes", drive.bytes},
                            {"share", drive.share},
                            {"read_bytes_per_second", drive.read_bytes_per_second},
                            {"write_bytes_per_second", drive.write_bytes_per_second}});
  }
  for (const Work& work : kWork) {
    json["summary"][work.key] = median_ratio(m, work);
    for (const DrivesRound& round : m.rounds) {
      const Together& of = round.*work.of;
      json["rounds"][work.key].push_back({{"alone_bytes_per_second", of.alone},
                                          {"together_bytes_per_second", of.together},
                                          {"together_to_sum", of.ratio()}});
    }
  }
  return dump(json);
}
}  // namespace headrace::tools
