// SPDX-License-Identifier: Apache-2.0
// What the drive's tests share: a conductor that collects, a log that remembers, a queue that
// follows a script.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "async/conductor.hpp"
#include "scratch.hpp"
#include "swap/drive.hpp"

namespace headrace::swap::test {
// Collects what is posted until the test runs it; allocates nothing.
class CollectingConductor final : public async::Conductor {
 public:
  void post(async::Work& work) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      work.next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = &work;
      last_ = &work;
      ++posted_;
    }
    posted_one_.notify_all();
  }
  // Waits until `count` were posted since the test began, and returns them in order of posting.
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    posted_one_.wait(lock, [&] { return posted_ >= count; });
  }
  std::size_t posted() {
    const std::lock_guard lock(mutex_);
    return posted_;
  }
  std::vector<Transfer*> order() {
    const std::lock_guard lock(mutex_);
    std::vector<Transfer*> transfers;
    for (async::Work* work = first_; work != nullptr; work = work->next) {
      transfers.push_back(static_cast<Transfer*>(work));
    }
    return transfers;
  }
  void after(async::Nanoseconds, async::Timer&) noexcept override {}
  async::Nanoseconds now() const noexcept override { return {}; }
  bool on_conductor() const noexcept override { return true; }
  void use_frames(async::FrameArena*) noexcept override {}
  void wait(std::atomic<bool>&, async::Helper*) override {}

 private:
  std::mutex mutex_;
  std::condition_variable posted_one_;
  async::Work* first_ = nullptr;
  async::Work* last_ = nullptr;
  std::size_t posted_ = 0;
};

class RememberedLog {
 public:
  LogSink sink() {
    return [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(level, text);
    };
  }
  std::vector<std::string> at(LogLevel level) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> texts;
    for (const auto& [line_level, text] : lines_) {
      if (line_level == level) texts.push_back(text);
    }
    return texts;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

// Shared between a test and the queue that it scripts.
struct Script {
  struct Seen {
    IoKind kind;
    std::uint64_t offset_bytes;
    std::uint32_t size_bytes;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  std::uint32_t depth = 1;
  // Called for each request when it is completed; returns its result. Unset: everything it asks
  // for.
  std::function<std::int64_t(const IoRequest& request, std::size_t number)> answer;
  // Requests at this offset never complete.
  std::atomic<std::uint64_t> lost_offset_bytes{~std::uint64_t{0}};
  std::atomic<bool> open{true};  // closed: nothing completes
  std::atomic<bool> newest_first{false};
  bool twice = false;              // what has completed does so again
  bool registers_buffers = false;  // until a request fails
  int refusals = 0;                // as many requests are not taken first
  std::mutex mutex;
  std::vector<Seen> seen;
  std::atomic<int> live_queues{0};

  std::vector<Seen> requests() {
    const std::lock_guard lock(mutex);
    return seen;
  }
};

class ScriptedQueue final : public IoQueue {
 public:
  explicit ScriptedQueue(Script& script) : script_(script) { ++script_.live_queues; }
  ~ScriptedQueue() override { --script_.live_queues; }
  const char* name() const noexcept override { return "scripted"; }
  std::uint32_t depth() const noexcept override { return script_.depth; }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(held_.size());
  }
  Registered registered() const override { return {script_.registers_buffers && !failed_, false}; }
  bool submit(IoRequest& request) noexcept override {
    if (held_.size() == script_.depth) return false;
    if (script_.refusals > 0) {
      --script_.refusals;
      return false;
    }
    held_.push_back(&request);
    const std::lock_guard lock(script_.mutex);
    script_.seen.push_back({request.kind, request.offset_bytes, request.size_bytes});
    return true;
  }
  int flush() noexcept override { return 0; }
  std::size_t reap(std::span<IoRequest*> done, std::chrono::nanoseconds timeout) noexcept override {
    std::unique_lock lock(wake_mutex_);
    // Looks again every millisecond, as the script may have opened.
    const auto step = std::min<std::chrono::nanoseconds>(timeout, std::chrono::milliseconds(1));
    if (next() == nullptr) {
      woken_.wait_for(lock, step, [this] { return wake_; });
      wake_ = false;
    }
    IoRequest* const request = next();
    if (request == nullptr) return 0;
    if (!script_.twice) std::erase(held_, request);
    request->result = script_.answer ? script_.answer(*request, completed_) : request->size_bytes;
    failed_ |= request->result < 0;
    ++completed_;
    done[0] = request;
    return 1;
  }
  void wake() noexcept override {
    {
      const std::lock_guard lock(wake_mutex_);
      wake_ = true;
    }
    woken_.notify_all();
  }

 private:
  // The one that completes next; null: none does.
  IoRequest* next() const {
    IoRequest* found = nullptr;
    if (!script_.open.load()) return found;
    for (IoRequest* const request : held_) {
      if (request->offset_bytes == script_.lost_offset_bytes.load()) continue;
      if (found == nullptr || script_.newest_first.load()) found = request;
    }
    return found;
  }

  Script& script_;
  std::deque<IoRequest*> held_;
  std::size_t completed_ = 0;
  bool failed_ = false;
  std::mutex wake_mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
};

inline IoQueueMaker scripted(Script& script) {
  return [&script](const IoQueueOptions&) {
    return ChosenIoQueue{std::make_unique<ScriptedQueue>(script), ""};
  };
}

inline Transfer make_transfer(IoKind kind, std::byte* data, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes, Priority priority = Priority::kDemand) {
  Transfer transfer;
  transfer.kind = kind;
  transfer.priority = priority;
  transfer.data = data;
  transfer.offset_bytes = offset_bytes;
  transfer.size_bytes = size_bytes;
  transfer.what = "tile 3 of h.0";
  return transfer;
}
}  // namespace headrace::swap::test
