// SPDX-License-Identifier: Apache-2.0
#include "device/host_crew.hpp"

#include "async/thread.hpp"

namespace headrace::device {
HostCrew::HostCrew(std::uint32_t threads) {
  try {
    for (std::uint32_t i = 1; i < threads; ++i) {
      threads_.push_back(async::start_thread("headrace-sum" + std::to_string(i), [this] {
        std::unique_lock lock(mutex_);
        for (;;) {
          work_there_.wait(lock, [&] { return closing_ || next_ < units_; });
          if (closing_) return;
          take_units(lock);
        }
      }));
    }
  } catch (const std::exception&) {
    // Fewer threads do as well, later.
  }
}

HostCrew::~HostCrew() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_there_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void HostCrew::take_units(std::unique_lock<std::mutex>& lock) {
  while (next_ < units_) {
    const std::uint64_t unit = next_++;
    ++under_way_;
    lock.unlock();
    (*work_)(unit);
    lock.lock();
    if (--under_way_ == 0 && next_ == units_) all_done_.notify_all();
  }
}

void HostCrew::run(std::uint64_t units, const std::function<void(std::uint64_t)>& work) {
  if (units == 0) return;
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = 0;
  units_ = units;
  if (units > 1) work_there_.notify_all();
  take_units(lock);
  all_done_.wait(lock, [&] { return under_way_ == 0; });
  units_ = next_ = 0;
  work_ = nullptr;
}
}  // namespace headrace::device
