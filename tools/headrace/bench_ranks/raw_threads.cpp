// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/raw_threads.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>

namespace headrace::tools {
namespace {
class ThreadsMeeting {
 public:
  explicit ThreadsMeeting(std::uint32_t world_size) : given_(world_size) {}
  std::uint32_t world_size() const noexcept { return static_cast<std::uint32_t>(given_.size()); }
  // Blocks until all have come; false: one has left.
  bool meet() {
    std::unique_lock lock(mutex_);
    const std::uint64_t own = meeting_;
    if (++came_ == given_.size()) {
      came_ = 0;
      ++meeting_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return meeting_ != own || left_; });
    return meeting_ != own;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    changed_.notify_all();
  }
  // The bytes that each rank gives; read between two meetings.
  const std::byte*& given(std::uint32_t rank) { return given_[rank]; }

 private:
  std::vector<const std::byte*> given_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t meeting_ = 0;
  std::size_t came_ = 0;
  bool left_ = false;
};

class RawThreads final : public RawCalls {
 public:
  RawThreads(std::shared_ptr<ThreadsMeeting> meeting, std::uint32_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}
  ~RawThreads() override { meeting_->leave(); }
  Names names() const noexcept override { return {"memcpy", "memcpy", "memcpy"}; }
  std::string all_gather(void* whole, std::uint64_t piece_bytes) noexcept override {
    auto* const to = static_cast<std::byte*>(whole);
    return copied(to + rank_ * piece_bytes, [&](std::uint32_t r, const std::byte* from) {
      if (r != rank_) std::memcpy(to + r * piece_bytes, from, piece_bytes);
    });
  }
  std::string all_to_all(const void* give, void* take,
                         std::uint64_t piece_bytes) noexcept override {
    auto* to = static_cast<std::byte*>(take);
    return copied(give, [&](std::uint32_t r, const std::byte* from) {
      if (r == rank_) return;
      // Rank r gives to all but itself.
      std::memcpy(to, from + (rank_ - (rank_ > r ? 1 : 0)) * piece_bytes, piece_bytes);
      to += piece_bytes;
    });
  }
  std::string exchange(const void* mine, void* all, std::uint64_t size_bytes) noexcept override {
    return copied(mine, [&](std::uint32_t r, const std::byte* from) {
      std::memcpy(static_cast<std::byte*>(all) + r * size_bytes, from, size_bytes);
    });
  }

 private:
  template <class Copy>
  std::string copied(const void* given, const Copy& copy) {
    meeting_->given(rank_) = static_cast<const std::byte*>(given);
    if (!meeting_->meet()) return kLeft;
    for (std::uint32_t r = 0; r < meeting_->world_size(); ++r) copy(r, meeting_->given(r));
    return meeting_->meet() ? "" : kLeft;
  }

  static constexpr const char* kLeft = "another thread has left";
  const std::shared_ptr<ThreadsMeeting> meeting_;
  const std::uint32_t rank_;
};
}  // namespace

std::vector<std::unique_ptr<RawCalls>> make_raw_thread_calls(std::uint32_t world_size) {
  const auto meeting = std::make_shared<ThreadsMeeting>(world_size);
  std::vector<std::unique_ptr<RawCalls>> calls;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    calls.push_back(std::make_unique<RawThreads>(meeting, rank));
  return calls;
}
}  // namespace headrace::tools
