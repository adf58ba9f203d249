// SPDX-License-Identifier: Apache-2.0
#include "bench/crew.hpp"

#include <pthread.h>
#include <sched.h>

namespace headrace::tools {
namespace {
constexpr std::chrono::milliseconds kBetweenLooks{100};

void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);  // the options were checked
}

double seconds_between(BenchClock::time_point from, BenchClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
}  // namespace

Crew::Crew(std::vector<Job>& jobs)
    : jobs_(jobs),
      made_(static_cast<std::ptrdiff_t>(jobs.size()) + 1),
      ended_(static_cast<std::ptrdiff_t>(jobs.size()) + 1),
      running_(jobs.size()) {
  for (Job& job : jobs_) threads_.emplace_back([this, &job] { serve(job); });
}

Crew::~Crew() { end(); }

void Crew::serve(Job& job) {
  if (job.cpu >= 0) run_on(job.cpu);
  std::unique_ptr<Lane> lane;
  try {
    lane = std::make_unique<Lane>(job.lane);
    job.queue_text = lane->queue_text();
    job.queue_notes = lane->queue_notes();
  } catch (...) {
    job.error = std::current_exception();
    abandoned_ = true;
  }
  made_.arrive_and_wait();
  try {
    if (!abandoned_) job.result = lane->run(job.counters);
  } catch (...) {
    job.error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    --running_;
  }
  changed_.notify_one();
  ended_.arrive_and_wait();
}

void Crew::begin() {
  begun_ = true;
  made_.arrive_and_wait();
}

std::uint64_t Crew::moved(std::atomic<std::uint64_t> LaneCounters::*which) const {
  std::uint64_t sum = 0;
  for (const Job& job : jobs_) sum += (job.counters.*which).load(std::memory_order_relaxed);
  return sum;
}

std::vector<Second> Crew::watch(bool per_second, const Shown& shown) {
  const BenchClock::time_point began = BenchClock::now();
  BenchClock::time_point slice = began;
  std::uint64_t read = 0, written = 0;  // when the slice began
  std::vector<Second> seconds;
  std::unique_lock lock(mutex_);
  for (bool ended = false; !ended;) {
    ended = changed_.wait_for(lock, kBetweenLooks, [this] { return running_ == 0; });
    const std::uint64_t read_now = moved(&LaneCounters::read_bytes);
    const std::uint64_t written_now = moved(&LaneCounters::written_bytes);
    if (shown) shown(read_now + written_now);
    const BenchClock::time_point now = BenchClock::now();
    // A last slice too short to say anything is left out.
    if (!per_second || seconds_between(slice, now) < 1) continue;
    seconds.push_back({.at_seconds = seconds_between(began, now),
                       .seconds = seconds_between(slice, now),
                       .read_bytes = read_now - read,
                       .written_bytes = written_now - written});
    slice = now;
    read = read_now;
    written = written_now;
  }
  return seconds;
}

void Crew::end() {
  if (joined_) return;
  joined_ = true;
  if (!begun_) {
    abandoned_ = true;
    begin();
  }
  ended_.arrive_and_wait();
  for (std::thread& thread : threads_) thread.join();
}
}  // namespace headrace::tools
