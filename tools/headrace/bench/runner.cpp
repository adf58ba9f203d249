// SPDX-License-Identifier: Apache-2.0
#include "bench/runner.hpp"

#include <algorithm>
#include <utility>

#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/crew.hpp"
#include "headrace/error.hpp"
#include "program/machine.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint64_t kLayoutBlock = base::kMiB;
constexpr std::uint32_t kLayoutDepth = 16;

std::uint64_t memory_bytes(const RunnerOptions& options) {
  const std::uint64_t layout = kLayoutBlock * kLayoutDepth * options.paths.size();
  return base::align_up(std::max(options.in_flight_bytes, layout), base::kHugePage);
}
}  // namespace

std::uint64_t in_flight_bytes(const Workload& workload, std::size_t drives) {
  return workload.block_bytes * workload.depth * workload.jobs * drives;
}

Runner::Runner(const RunnerOptions& options)
    : options_(options),
      stamps_(base::random_number()),
      arena_(2 * memory_bytes(options), 1),
      buffers_{arena_.bytes()} {
  for (const std::string& path : options_.paths) {
    targets_.push_back(std::make_unique<Target>(path, options_.file_bytes, options_.log));
  }
  stamps_.fill(arena_.range(arena_.size_bytes() / 2, arena_.size_bytes() / 2));
}

SampleThreadOptions Runner::thread_options(const Workload& workload, const Stretch& stretch,
                                           std::size_t drive, std::uint32_t job) const {
  Target& target = *targets_[drive];
  SampleThreadOptions thread;
  thread.target = &target;
  thread.stamps = &stamps_;
  thread.workload = workload;
  thread.part_bytes = base::align_down(target.size_bytes() / workload.jobs, workload.block_bytes);
  thread.part_begin = job * thread.part_bytes;
  thread.bytes = stretch.bytes / workload.jobs;
  thread.seconds = stretch.seconds;
  thread.turn = stretch.turn;
  thread.generation = generation_;
  thread.verify = options_.verify;
  const std::uint64_t window = workload.block_bytes * workload.depth;
  const std::uint64_t at = (drive * workload.jobs + job) * window;
  thread.read_memory = arena_.range(at, window);
  thread.write_memory = arena_.range(arena_.size_bytes() / 2 + at, window);
  thread.buffers = buffers_;
  thread.choose_queue = options_.choose_queue;
  thread.deadline_seconds = options_.deadline_seconds;
  return thread;
}

TimedSample Runner::take(const Workload& workload, const Stretch& stretch, const Shown& shown) {
  check_signal();
  ++generation_;
  std::vector<Job> jobs(targets_.size() * workload.jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].drive = i / workload.jobs;
    jobs[i].thread = thread_options(workload, stretch, jobs[i].drive,
                                    static_cast<std::uint32_t>(i % workload.jobs));
  }
  Crew crew(jobs);
  const double before = cpu_seconds();
  crew.begin();
  crew.watch(shown);
  const double cpu = cpu_seconds() - before;
  crew.end();
  TimedSample sample = joined(jobs);
  sample.cpu_seconds = cpu;
  written_bytes_ += sample.written_bytes;
  return sample;
}

// The sum of the jobs' work. Throws the error that a job has thrown.
TimedSample Runner::joined(const std::vector<Job>& jobs) {
  std::exception_ptr first;
  for (const Job& job : jobs) {
    if (!job.error) continue;
    if (!first) first = job.error;
    try {
      std::rethrow_exception(job.error);
    } catch (const Error& error) {
      // Whatever the others threw, the kernel may still write into this memory.
      if (error.code() == Code::kIoStalled) arena_.leak();
    } catch (...) {
    }
  }
  if (first) std::rethrow_exception(first);
  TimedSample sample;
  sample.drive_bytes.resize(targets_.size());
  BenchClock::time_point began = jobs[0].result.began, ended = jobs[0].result.ended;
  for (const Job& job : jobs) {
    const SampleThreadResult& result = job.result;
    began = std::min(began, result.began);
    ended = std::max(ended, result.ended);
    sample.read_bytes += result.read_bytes;
    sample.written_bytes += result.written_bytes;
    sample.reads += result.reads;
    sample.writes += result.writes;
    sample.read_latency.add(result.read_latency);
    sample.write_latency.add(result.write_latency);
    sample.drive_bytes[job.drive] += result.read_bytes + result.written_bytes;
    verification_.stamps += result.stamps;
    verification_.pages += result.pages;
    if (verification_.mismatches == 0) verification_.first_mismatch = result.first_mismatch;
    verification_.mismatches += result.mismatches;
  }
  sample.seconds = std::chrono::duration<double>(ended - began).count();
  queue_text_ = jobs[0].queue_text;
  queue_notes_ = jobs[0].queue_notes;
  return sample;
}

TimedSample Runner::lay_out(const Shown& shown) {
  const Workload workload{
      .pattern = Pattern::kWrite, .block_bytes = kLayoutBlock, .depth = kLayoutDepth};
  return take(workload, {.bytes = targets_[0]->size_bytes()}, shown);
}

void Runner::verify_all(const Shown& shown) {
  const Verify before = std::exchange(options_.verify, Verify::kWhole);
  const Workload workload{.block_bytes = kLayoutBlock, .depth = kLayoutDepth};
  take(workload, {.bytes = targets_[0]->size_bytes()}, shown);
  options_.verify = before;
}

void Runner::forget(std::size_t drive, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  targets_[drive]->pages().set(offset_bytes, size_bytes, PageMap::kUnknown);
}
}  // namespace headrace::tools
