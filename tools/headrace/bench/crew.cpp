// SPDX-License-Identifier: Apache-2.0
#include "bench/crew.hpp"

#include <chrono>

namespace headrace::tools {
namespace {
constexpr std::chrono::milliseconds kBetweenLooks{100};
}  // namespace

Crew::Crew(std::vector<Job>& jobs)
    : jobs_(jobs),
      made_(static_cast<std::ptrdiff_t>(jobs.size()) + 1),
      ended_(static_cast<std::ptrdiff_t>(jobs.size()) + 1),
      running_(jobs.size()) {
  try {
    for (Job& job : jobs_) threads_.emplace_back([this, &job] { serve(job); });
  } catch (...) {  // no thread could be started: those that were end
    for (std::size_t missing = jobs_.size() - threads_.size(); missing > 0; --missing) {
      made_.arrive_and_drop();
      ended_.arrive_and_drop();
    }
    end();
    throw;
  }
}

Crew::~Crew() { end(); }

void Crew::serve(Job& job) {
  std::unique_ptr<SampleThread> thread;
  try {
    thread = std::make_unique<SampleThread>(job.thread);
    job.queue_text = thread->queue_text();
    job.queue_notes = thread->queue_notes();
  } catch (...) {
    job.error = std::current_exception();
    abandoned_ = true;
  }
  made_.arrive_and_wait();
  try {
    if (!abandoned_) job.result = thread->run(job.moved_bytes);
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

void Crew::watch(const Shown& shown) {
  std::unique_lock lock(mutex_);
  for (bool ended = false; !ended;) {
    ended = changed_.wait_for(lock, kBetweenLooks, [this] { return running_ == 0; });
    if (!shown) continue;
    std::uint64_t moved = 0;
    for (const Job& job : jobs_) moved += job.moved_bytes.load(std::memory_order_relaxed);
    shown(moved);
  }
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
