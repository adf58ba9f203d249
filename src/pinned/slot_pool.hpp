// SPDX-License-Identifier: Apache-2.0
// slot_pool.hpp: equal slots of pinned memory, leased and given back. Their number bounds the work
// in flight.
#pragma once
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/intrusive_list.hpp"

namespace headrace::pinned {
class SlotPool;

// Move-only. At the end of its scope, the slot returns to its pool, which hands it to the coroutine
// that has waited longest.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotPool* pool, std::uint32_t index) noexcept : pool_(pool), index_(index) {}
  SlotLease(SlotLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  SlotLease& operator=(SlotLease&& other) noexcept {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = other.index_;
    return *this;
  }
  ~SlotLease() { release(); }
  explicit operator bool() const noexcept { return pool_ != nullptr; }
  std::span<std::byte> bytes() const noexcept;
  std::uint32_t index() const noexcept { return index_; }
  void release() noexcept;

 private:
  SlotPool* pool_ = nullptr;
  std::uint32_t index_ = 0;
};

// One thread only: the conductor's. acquire() is first come, first served. A released slot goes
// directly to its next owner, so nobody can overtake.
class SlotPool {
 public:
  SlotPool() = default;
  SlotPool(std::span<std::byte> memory, std::uint32_t slots, std::uint64_t slot_bytes)
      : memory_(memory), slot_bytes_(slot_bytes), slots_(slots) {
    HEADRACE_CHECK(memory.size() >= slots * slot_bytes, "the slots fit their memory");
    for (std::uint32_t i = slots; i > 0; --i) free_.push_back(i - 1);
  }
  ~SlotPool() { HEADRACE_CHECK(free_.size() == slots_, "a slot is still leased"); }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // The slots lie elsewhere from here on. None is leased.
  void move_to(std::span<std::byte> memory) {
    HEADRACE_CHECK(free_.size() == slots_, "no slot is leased while they move");
    memory_ = memory;
  }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t free_slots() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  std::uint64_t slot_bytes() const noexcept { return slot_bytes_; }

  class [[nodiscard]] Acquire {
   public:
    explicit Acquire(SlotPool& pool) noexcept : pool_(pool) {}
    bool await_ready() noexcept {
      if (pool_.free_.empty() || !pool_.waiting_.empty()) return false;
      index_ = pool_.free_.back();
      pool_.free_.pop_back();
      return true;
    }
    void await_suspend(std::coroutine_handle<> handle) noexcept {
      HEADRACE_CHECK(pool_.slots_ > 0, "the plan has slots where one is acquired");
      waiting_ = handle;
      pool_.waiting_.push(*this);
    }
    SlotLease await_resume() noexcept { return {&pool_, index_}; }

   private:
    friend class SlotPool;
    SlotPool& pool_;
    std::uint32_t index_ = 0;
    std::coroutine_handle<> waiting_;
    Acquire* next_ = nullptr;
  };
  Acquire acquire() noexcept { return Acquire(*this); }

 private:
  friend class SlotLease;
  void give_back(std::uint32_t index) noexcept {
    if (Acquire* const next = waiting_.pop()) {
      next->index_ = index;
      next->waiting_.resume();
    } else {
      free_.push_back(index);
    }
  }

  std::span<std::byte> memory_;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::vector<std::uint32_t> free_;
  base::IntrusiveQueue<&Acquire::next_> waiting_;
};

inline std::span<std::byte> SlotLease::bytes() const noexcept {
  return pool_->memory_.subspan(index_ * pool_->slot_bytes_, pool_->slot_bytes_);
}
inline void SlotLease::release() noexcept {
  if (SlotPool* const pool = std::exchange(pool_, nullptr)) pool->give_back(index_);
}
}  // namespace headrace::pinned
