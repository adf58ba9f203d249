// SPDX-License-Identifier: Apache-2.0
#include "bench/as_fio.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "bench/json_fields.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
std::string engine_of(const Workload& workload) {
  if (workload.mover == Mover::kFio) return workload.fio_engine;
  switch (workload.queue) {
    case IoQueueKind::kAuto:
    case IoQueueKind::kUring:
      break;
    case IoQueueKind::kAio:
      return "libaio";
    case IoQueueKind::kThreads:
      return "psync";
  }
  return "io_uring";
}

// fio takes an unescaped colon for the end of a name.
std::string file_name(const std::string& path) {
  std::string name;
  for (const char c : path) name += c == ':' ? std::string("\\:") : std::string(1, c);
  return name;
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=/.,%@";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::uint64_t bytes_per_job(const Workload& workload, std::uint64_t jobs, std::uint64_t size) {
  const std::uint64_t part = base::align_down(size / jobs, workload.block_bytes);
  if (part > 0) return part;
  throw Error(Code::kInvalidArgument,
              fmt::format("fio would share {} among {} jobs, less than a block of {} each; it was "
                          "not run. Give a larger --size, or fewer --jobs.",
                          base::format_bytes(size), jobs, block_text(workload.block_bytes)));
}

void add_pattern(std::vector<std::string>& words, const Workload& workload, std::uint64_t part,
                 std::uint32_t seed) {
  const bool mixed = workload.pattern == Pattern::kMixed;
  if (mixed) {
    words.emplace_back("--rwmixread=50");
    words.push_back(fmt::format("--io_size={}", 2 * part));  // else both directions share one part
  }
  if (writes(workload.pattern)) {
    words.emplace_back("--overwrite=1");
    words.emplace_back("--scramble_buffers=0");
  }
  if (is_random(workload.pattern) || (mixed && seed == 0)) words.emplace_back("--randrepeat=0");
  if (mixed && seed != 0) words.push_back(fmt::format("--randseed={}", seed));
}

std::vector<std::string> common_arguments(const Workload& workload, const std::string& path,
                                          std::uint64_t offset, std::uint64_t size,
                                          std::uint32_t seed) {
  const std::string engine = engine_of(workload);
  const bool synchronous = engine == "psync" || engine == "sync" || engine == "pvsync";
  const std::uint64_t jobs =
      synchronous ? std::uint64_t{workload.jobs} * workload.depth : workload.jobs;
  const std::uint64_t part = bytes_per_job(workload, jobs, size);
  std::vector<std::string> words{
      "fio",
      "--name=headrace",
      "--filename=" + file_name(path),
      fmt::format("--rw={}", name_of(workload.pattern)),
      "--bs=" + block_text(workload.block_bytes),
      fmt::format("--iodepth={}", synchronous ? 1 : workload.depth),
      "--ioengine=" + engine,
      "--direct=1",
      fmt::format("--offset={}", offset),
      fmt::format("--size={}", part),
      fmt::format("--numjobs={}", jobs),
      fmt::format("--offset_increment={}", part),
      "--thread",
      "--group_reporting",
  };
  add_pattern(words, workload, part, seed);
  if (engine == "io_uring" && workload.register_buffers) {
    words.emplace_back("--fixedbufs=1");
    words.emplace_back("--registerfiles=1");
  }
  return words;
}

const JsonOrigin kOrigin{"fio's output", "its sample is missing",
                         "Run what headrace bench --as-fio prints to see what fio says, or leave "
                         "out --compare fio"};

std::uint64_t key_number(const std::string& key, const JsonFields& fields) {
  std::uint64_t value = 0;
  const char* const end = key.data() + key.size();
  if (std::from_chars(key.data(), end, value).ptr != end)
    fields.refuse("has the key '" + key + "', which is no number");
  return value;
}

void add_times(LatencyHistogram& histogram, std::uint64_t nanoseconds, std::uint64_t times) {
  for (std::uint64_t i = 0; i < times; ++i) histogram.add(nanoseconds);
}

// Every request by its bucket's middle; the first and the last of all by their exact values.
LatencyHistogram latency_of_bins(const JsonFields& bins, std::uint64_t least, std::uint64_t most) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> counts;
  for (const auto& [key, count] : bins.json().items()) {
    const std::uint64_t times = bins.whole(key.c_str());
    if (times > 0) counts.emplace_back(key_number(key, bins), times);
  }
  std::ranges::sort(counts);
  LatencyHistogram histogram;
  if (counts.empty()) return histogram;
  const bool single = counts.size() == 1 && counts.front().second == 1;
  if (!single) {
    --counts.front().second;
    histogram.add(least);
  }
  --counts.back().second;
  for (const auto& [middle, times] : counts)
    add_times(histogram, std::clamp(middle, least, most), times);
  histogram.add(most);
  return histogram;
}

LatencyHistogram latency_of(const JsonFields& latency) {
  if (latency.whole("N") == 0) return {};
  const std::uint64_t least = latency.whole("min"), most = latency.whole("max");
  if (least > most) latency.refuse("has a min above its max");
  const JsonFields bins = latency.at("bins");
  if (!bins.json().is_object()) bins.refuse("is no object");
  return latency_of_bins(bins, least, most);
}

// Bytes, requests and latencies of one direction; returns its seconds.
double take(const JsonFields& direction, std::uint64_t& bytes, std::uint64_t& requests,
            LatencyHistogram& latency) {
  bytes = direction.whole("io_bytes");
  requests = direction.whole("total_ios");
  if (bytes == 0) return 0;
  latency = latency_of(direction.at("clat_ns"));
  const double rate = direction.number("bw_bytes");
  if (rate == 0) direction.refuse("has io_bytes and a bw_bytes of 0: it took less than 1 ms");
  return static_cast<double>(bytes) / rate;
}

std::string last_lines(const std::string& text) {
  std::string said = text.size() > 400 ? "..." + text.substr(text.size() - 400) : text;
  while (said.ends_with('\n')) said.pop_back();
  return said.empty() ? "nothing" : said;
}
}  // namespace

std::vector<std::string> fio_arguments(const Workload& workload, const std::string& path,
                                       std::uint64_t offset, std::uint64_t size,
                                       std::uint32_t seed) {
  std::vector<std::string> words = common_arguments(workload, path, offset, size, seed);
  words.emplace_back("--allow_file_create=0");
  if (!writes(workload.pattern)) words.emplace_back("--readonly");
  words.emplace_back("--eta=never");
  words.emplace_back("--output-format=json+");
  return words;
}

std::string fio_command(const Workload& workload, const std::string& path, std::uint64_t offset,
                        std::uint64_t size) {
  std::string line = fmt::format("{}={}", kFioTunables, kFioTunablesValue);
  for (const std::string& word : common_arguments(workload, path, offset, size, 0))
    line += " " + shell_quoted(word);
  return line;
}

Json fio_json(const std::string& output, const std::string& errors, int exit_code) {
  // Warnings may come before it, on the same stream.
  const std::size_t begin = output.starts_with('{') ? 0 : output.find("\n{");
  const Json json = begin == std::string::npos
                        ? Json(Json::value_t::discarded)
                        : Json::parse(output.begin() + static_cast<std::ptrdiff_t>(begin),
                                      output.end(), nullptr, false);
  if (exit_code == 0 && json.is_object()) return json;
  const std::string cause = exit_code != 0 ? fmt::format("fio ended with {}", exit_code)
                                           : std::string("fio printed no JSON document");
  throw Error(Code::kIo, fmt::format("{}; {}. {}. It said: {}", cause, kOrigin.consequence,
                                     kOrigin.fix, last_lines(errors.empty() ? output : errors)));
}

TimedSample sample_of_fio(const Json& output, std::uint32_t round) {
  const JsonFields document(output, kOrigin);
  const std::vector<JsonFields> jobs = document.elements("jobs");
  if (jobs.size() != 1) document.at("jobs").refuse("does not hold the one job");
  const JsonFields& job = jobs[0];
  if (const std::uint64_t number = job.whole("error"); number != 0) {
    throw Error(
        Code::kIo,
        fmt::format("fio's job failed: {}; {}. {}.", base::errno_text(static_cast<int>(number)),
                    kOrigin.consequence, kOrigin.fix),
        static_cast<int>(number));
  }
  TimedSample sample;
  sample.round = round;
  sample.seconds =
      std::max(take(job.at("read"), sample.read_bytes, sample.reads, sample.read_latency),
               take(job.at("write"), sample.written_bytes, sample.writes, sample.write_latency));
  if (sample.seconds == 0)
    throw Error(Code::kIo,
                fmt::format("fio moved nothing; {}. {}.", kOrigin.consequence, kOrigin.fix));
  // Percent of the jobs' summed time: without fio's start and its parsing.
  const double share = (job.number("usr_cpu") + job.number("sys_cpu")) / 100;
  sample.cpu_seconds = share * job.number("job_runtime") / 1000;
  return sample;
}
}  // namespace headrace::tools
