// SPDX-License-Identifier: Apache-2.0
// log_queue.hpp: log lines that wait until the host takes them. For hosts whose functions must not
// run on the engine's threads, such as interpreters with a lock of their own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "headrace/log.hpp"

namespace headrace::bindings {
class LogQueue {
 public:
  struct Line {
    LogLevel level;
    std::string text;
  };
  explicit LogQueue(std::size_t capacity) : capacity_(capacity) {}

  void add(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == capacity_) {
      lines_.pop_front();
      ++dropped_;
    }
    lines_.push_back({level, std::string(text)});
  }
  // Calls `take(line)` with the oldest line, and removes it if the answer is true. Returns false if
  // there is none.
  template <class Take>
  bool offer(Take&& take) {
    const std::lock_guard lock(mutex_);
    if (dropped_ > 0) {
      if (take(lost_lines())) dropped_ = 0;
      return true;
    }
    if (lines_.empty()) return false;
    if (take(lines_.front())) lines_.pop_front();
    return true;
  }

 private:
  Line lost_lines() const {
    return {LogLevel::kWarning, std::to_string(dropped_) +
                                    " log lines are lost: more came than the engine keeps. Take "
                                    "them more often, or set a larger kept_log_lines."};
  }
  const std::size_t capacity_;
  std::mutex mutex_;
  std::deque<Line> lines_;
  std::uint64_t dropped_ = 0;
};
}  // namespace headrace::bindings
