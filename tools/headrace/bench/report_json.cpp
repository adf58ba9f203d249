// SPDX-License-Identifier: Apache-2.0
#include "bench/report_json.hpp"

#include <fmt/core.h>

#include <array>
#include <cmath>

#include "bench/as_fio.hpp"
#include "bench/options.hpp"
#include "bench/report_format.hpp"
#include "measure/figures.hpp"
#include "program/io_queue_names.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
constexpr std::array kPercentiles{1.0,  5.0,  10.0, 20.0, 30.0, 40.0, 50.0,  60.0, 70.0,
                                  80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99};

Json latency_json(const LatencyHistogram& latency) {
  Json json = {{"min", latency.min_ns()},
               {"max", latency.max_ns()},
               {"mean", latency.mean_ns()},
               {"N", latency.count()}};
  if (latency.count() == 0) return json;
  json["percentile"] = Json::object();
  for (const double percent : kPercentiles)
    json["percentile"][fmt::format("{:.6f}", percent)] = latency.quantile_ns(percent / 100);
  return json;
}

// One direction of all samples of a cell, as fio tells it.
Json direction_json(const Cell& cell, bool of_reads) {
  std::uint64_t bytes = 0, requests = 0;
  double seconds = 0;
  for (const Sample& sample : cell.samples) {
    bytes += of_reads ? sample.read_bytes : sample.written_bytes;
    requests += of_reads ? sample.reads : sample.writes;
    seconds += sample.seconds;
  }
  const bool any = requests > 0;
  return {{"io_bytes", bytes},
          {"bw_bytes", any ? std::llround(static_cast<double>(bytes) / seconds) : 0},
          {"iops", any ? static_cast<double>(requests) / seconds : 0.0},
          {"runtime", any ? std::llround(seconds * 1000) : 0},
          {"total_ios", requests},
          {"clat_ns", latency_json(of_reads ? cell.read_latency : cell.write_latency)}};
}

Json workload_json(const Workload& workload) {
  return {{"pattern", name_of(workload.pattern)},
          {"block_bytes", workload.block_bytes},
          {"depth", workload.depth},
          {"jobs", workload.jobs},
          {"submit_batch", workload.submit_batch},
          {"register_buffers", workload.register_buffers},
          {"queue", name_of(workload.queue)},
          {"mover", workload.mover == Mover::kFio ? "fio" : "headrace"},
          {"fio_engine", workload.fio_engine}};
}

Json options_json(const Workload& workload) {
  const bool fio = workload.mover == Mover::kFio;
  Json options = {{"rw", name_of(workload.pattern)},
                  {"bs", block_text(workload.block_bytes)},
                  {"iodepth", std::to_string(workload.depth)},
                  {"numjobs", std::to_string(workload.jobs)},
                  {"direct", "1"}};
  options["ioengine"] = fio ? workload.fio_engine
                            : fmt::format("{} {}", mover_text(workload), name_of(workload.queue));
  return options;
}

Json sample_json(const Sample& sample) {
  Json json = {{"round", sample.round},
               {"seconds", sample.seconds},
               {"cpu_seconds", sample.cpu_seconds},
               {"read_bytes", sample.read_bytes},
               {"written_bytes", sample.written_bytes},
               {"reads", sample.reads},
               {"writes", sample.writes}};
  if (!sample.drive_bytes.empty()) json["drive_bytes"] = sample.drive_bytes;
  return json;
}

Json cell_json(const Cell& cell, const Ceiling& ceiling) {
  Json json = {{"jobname", text_of(cell.workload)},
               {"job options", options_json(cell.workload)},
               {"workload", workload_json(cell.workload)},
               {"queue", cell.queue}};
  if (!cell.samples.empty()) {
    json["read"] = direction_json(cell, true);
    json["write"] = direction_json(cell, false);
    json["latency_ns"] = latency_json(cell.latency());
    json["bytes_per_second"] = interval_json(cell.rate());
    json["cpu_seconds_per_gb"] = interval_json(cell.cpu_per_gb());
    json["share_of_ceiling"] = share_of_ceiling(cell, ceiling);
  }
  json["samples"] = Json::array();
  for (const Sample& sample : cell.samples) json["samples"].push_back(sample_json(sample));
  return json;
}

Json comparisons_json(const Measurement& measurement) {
  Json json = Json::array();
  for (const Comparison& comparison : measurement.comparisons) {
    json.push_back(
        {{"ours", text_of(measurement.cells[comparison.ours].workload)},
         {"theirs", text_of(measurement.cells[comparison.theirs].workload)},
         {"ours_index", comparison.ours},
         {"theirs_index", comparison.theirs},
         {"ratio", interval_json(comparison.ratio)},
         {"cpu_ratio", comparison.cpu_ratio ? interval_json(*comparison.cpu_ratio) : Json()},
         {"resolved", comparison.resolved},
         {"verdict", verdict_text(comparison)}});
  }
  return json;
}

// Per pattern of which the raw queue was measured, the index of the job that is recommended.
Json recommended_jobs_json(const Measurement& measurement) {
  Json json = Json::object();
  for (const Cell& cell : measurement.cells) {
    const Pattern pattern = cell.workload.pattern;
    if (const auto index = recommended(measurement, pattern))
      json[std::string(name_of(pattern))] = *index;
  }
  return json;
}
}  // namespace

Json drives_json(const std::vector<MeasuredDrive>& drives) {
  Json json = Json::array();
  for (const MeasuredDrive& drive : drives) {
    json.push_back({{"path", drive.path},
                    {"file_system", drive.file_system},
                    {"model", drive.model},
                    {"direct", drive.direct},
                    {"memory_backed", drive.memory_backed},
                    {"read_only", drive.read_only},
                    {"file_bytes", drive.file_bytes}});
  }
  return json;
}

Json verification_json(const Verification& verification) {
  return {{"pages", verification.pages},
          {"stamps", verification.stamps},
          {"mismatches", verification.mismatches},
          {"first_mismatch", verification.first_mismatch}};
}

Json to_json(const Measurement& measurement) {
  Json json = document(kBenchName, measurement);
  json["drives"] = drives_json(measurement.drives);
  json["fio version"] = measurement.fio_version;
  json["rounds"] = measurement.rounds;
  json["seconds"] = measurement.seconds;
  json["written_bytes"] = measurement.written_bytes;
  const Ceiling ceiling = ceiling_of(measurement);
  json["ceiling_bytes_per_second"] = {
      {"read", ceiling.read}, {"write", ceiling.write}, {"rw", ceiling.mixed}};
  json["jobs"] = Json::array();
  for (const Cell& cell : measurement.cells) json["jobs"].push_back(cell_json(cell, ceiling));
  json["comparisons"] = comparisons_json(measurement);
  json["verification"] = verification_json(measurement.verification);
  json["recommended_jobs"] = recommended_jobs_json(measurement);
  json["warnings"] = measurement.warnings;
  return json;
}
}  // namespace headrace::tools
