// SPDX-License-Identifier: Apache-2.0
// gather_slot.hpp: one slot that joins a group's shards: its contents, its leases, and the order of
// the device's work on it.
//
//   free --begin_fill()--> filling --end_fill()--> ready, or free if the fill failed
//   ready --drop()--> free
//
// load() leases a free slot (lease_empty()) and writes a group's values there; the slot stays free.
//
// No thread waits for the device. Work that reads a slot is queued behind the event of its fill or
// join, and the next fill behind the events of its readers. Example: a lease ends while a matrix
// product on the trainer's stream still reads the slot. release() records an event there. The fill
// of the next group makes its copies wait for that event, and continues.
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
  // Notes the work that is queued on `stream` so far.
  void note(Stream stream);
  // Makes work that is queued on `stream` from here on wait for all of it.
  void wait(Stream stream);
  // Forgets readers that others have waited for.
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
  // The group that it is leased for.
  GroupId group() const noexcept { return group_; }
  bool leased() const noexcept { return leases_.load() != 0; }
  // Work queued on `stream` from here on finds the bytes there. With several ranks, call it and the
  // next three under their lock.
  void wait_until_there(Stream stream);
  // Whether the shards have been joined since the fill.
  bool joined() const noexcept { return joined_; }
  // What this rank keeps for its node is in place, not only its own shard; its own may be missing.
  bool has_node_shard() const noexcept { return has_node_shard_; }
  // Makes work queued on `stream` from here on wait for the reads of earlier leases.
  void wait_for_readers(Stream stream) { readers_.wait(stream); }
  // The join is queued on `stream`: later users wait for it.
  void set_joined(Stream stream);
  // Ends the lease. Work queued on `stream` so far may still read the slot.
  void release(Stream stream) noexcept;

  // ---- conductor ----
  bool is_free() const noexcept { return state_ == State::kFree; }
  bool filling() const noexcept { return state_ == State::kFilling; }
  bool holds(GroupId group) const noexcept { return !is_free() && group_ == group; }
  void lease() noexcept { leases_.fetch_add(1); }
  void give_back() noexcept { leases_.fetch_sub(1); }  // nobody has read it
  // For a group whose values the host writes to the slot.
  void lease_empty(GroupId group) noexcept;
  // Drops the contents, which are stale or make room.
  void drop() noexcept { state_ = State::kFree; }

  void begin_fill(GroupId group) noexcept;
  void set_node_shard(bool there) noexcept { has_node_shard_ = there; }
  // This rank's shard has been brought into a leased slot after its fill; `there` as in end_fill().
  void set_there(Event there) noexcept { there_ = there; }
  // The fill's copies go to `stream`, after work that still reads the slot.
  void fill_from(Stream stream);
  // The group was just updated, and the fill is for the new weights. Later fills that wait for no
  // update keep this time. It does no harm: a gather counts only what lies within its wait.
  void set_updated(Clock::time_point when) noexcept { updated_ = when; }
  Clock::time_point updated() const noexcept { return updated_; }
  // `there`: the event of the last copy; 0 in memory that the host shares.
  void end_fill(Event there, const std::exception_ptr& error) noexcept;
  // Ends when the fill is over or given up. The caller has a lease, or checks the slot again.
  async::Task<> until_filled(const async::GiveUp* give_up = nullptr);
  void wake() noexcept { filled_.wake(); }
  const std::exception_ptr& error() const noexcept { return error_; }

 private:
  enum class State : std::uint8_t { kFree, kFilling, kReady };

  Device& device_;
  std::byte* const memory_;
  std::atomic<std::uint32_t> leases_{0};
  Readers readers_;
  Event there_;  // after the fill, or the join if there was one; 0: nothing to wait for
  bool joined_ = false, has_node_shard_ = false;
  State state_ = State::kFree;
  GroupId group_;
  Clock::time_point updated_;
  std::exception_ptr error_;  // the error of the last fill
  async::Waiters filled_;
};
}  // namespace headrace::tiles
