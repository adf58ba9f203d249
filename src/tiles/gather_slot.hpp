// SPDX-License-Identifier: Apache-2.0
// gather_slot.hpp: one slot that a group's shards are joined in: what it holds, who leases it, and
// which of the device's work comes before which.
//
//   free --begin_fill()--> filling --end_fill()--> ready, or free after an error
//   ready --drop()--> free
//
// No thread waits for the device: what reads a slot is queued behind the event of its fill or join,
// and what fills it next behind the events of its readers. Example: a lease ends while a matrix
// product on the trainer's stream still reads the slot. release() records an event there; the fill
// of the next group makes its copies wait for that event, and goes on.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>

#include "async/give_up.hpp"
#include "async/task.hpp"
#include "async/waiters.hpp"
#include "headrace/device.hpp"
#include "headrace/tensor.hpp"

namespace headrace::tiles {
// The last work on each stream that may read some memory. Any thread.
class Readers {
 public:
  explicit Readers(Device& device) : device_(device) {}
  // What is queued on `stream` so far.
  void note(Stream stream);
  // What is queued on `stream` from here on comes after all of it.
  void wait(Stream stream);
  // They have been waited for.
  void forget();

 private:
  struct Reader {
    Stream stream;
    Event event;
  };
  static constexpr std::size_t kMost = 8;
  Device& device_;
  std::mutex mutex_;
  std::array<Reader, kMost> readers_;
  std::size_t count_ = 0;
};

class GatherSlot {
 public:
  using Clock = std::chrono::steady_clock;
  GatherSlot(Device& device, std::byte* memory)
      : device_(device), memory_(memory), readers_(device) {}

  // ---- any thread, while leased ----
  std::byte* memory() const noexcept { return memory_; }
  // Of the group that it is leased for.
  GroupId group() const noexcept { return group_; }
  bool leased() const noexcept { return leases_.load() != 0; }
  // What is queued on `stream` from here on finds the bytes there. With several ranks under their
  // lock, as the three below.
  void wait_until_there(Stream stream);
  // Have the shards been joined since the fill?
  bool joined() const noexcept { return joined_; }
  // What is queued on `stream` from here on is after what earlier leases have read.
  void wait_for_readers(Stream stream) { readers_.wait(stream); }
  // The join is queued on `stream`: whoever comes later waits for it.
  void set_joined(Stream stream);
  // The lease is over. Work queued on `stream` so far may still read the slot.
  void release(Stream stream) noexcept;

  // ---- conductor ----
  bool is_free() const noexcept { return state_ == State::kFree; }
  bool filling() const noexcept { return state_ == State::kFilling; }
  bool holds(GroupId group) const noexcept { return !is_free() && group_ == group; }
  void lease() noexcept { leases_.fetch_add(1); }
  void give_back() noexcept { leases_.fetch_sub(1); }  // nobody has read it
  // For a group whose values are written to it by the host.
  void lease_empty(GroupId group) noexcept;
  // What it held is stale, or makes room.
  void drop() noexcept { state_ = State::kFree; }

  void begin_fill(GroupId group) noexcept;
  // The fill's copies go to `stream`, after what still reads the slot.
  void fill_from(Stream stream);
  // The group was updated just before, and the fill is for the new weights.
  void set_updated(Clock::time_point when) noexcept { updated_ = when; }
  Clock::time_point updated() const noexcept { return updated_; }
  // `there`: of the last copy; 0 where it is in memory that the host shares.
  void end_fill(Event there, const std::exception_ptr& error) noexcept;
  // Ends when the fill is over, or where it is given up; who waits has a lease or looks again.
  async::Task<> until_filled(const async::GiveUp* give_up = nullptr);
  void wake() noexcept { filled_.wake(); }
  const std::exception_ptr& error() const noexcept { return error_; }

 private:
  enum class State : std::uint8_t { kFree, kFilling, kReady };

  Device& device_;
  std::byte* const memory_;
  std::atomic<std::uint32_t> leases_{0};
  Readers readers_;
  Event there_;  // after the fill, and after the join once there was one; 0: nothing to wait for
  bool joined_ = false;
  State state_ = State::kFree;
  GroupId group_;
  Clock::time_point updated_;
  std::exception_ptr error_;  // of the last fill
  async::Waiters filled_;
};
}  // namespace headrace::tiles
