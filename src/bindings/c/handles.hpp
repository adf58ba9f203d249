// SPDX-License-Identifier: Apache-2.0
// handles.hpp: what a C caller holds instead of a pointer: kind, generation and place in a table.
//
// A handle is never followed, so a stale, foreign or invented one is found out. Using one takes no
// lock and allocates nothing: a signal handler may.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::bindings {
// Live objects of one kind, `capacity` at most.
template <class Object>
class HandleTable {
 public:
  HandleTable(std::uint64_t kind, const char* what, std::uint32_t capacity)
      : kind_(kind), what_(what), capacity_(capacity), slots_(new Slot[capacity]) {}

  // Keeps the object in place, and its handle alive, until it goes.
  class Use {
   public:
    Use(Use&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (slot_ != nullptr) slot_->word.fetch_sub(1);
    }
    Object* operator->() const noexcept { return slot_->object; }
    Object& operator*() const noexcept { return *slot_->object; }

   private:
    friend class HandleTable;
    explicit Use(typename HandleTable::Slot* slot) : slot_(slot) {}
    typename HandleTable::Slot* slot_;
  };

  // Throws kOutOfBudget when `capacity` are alive.
  void* add(std::unique_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    if (free_ == kNone && used_ == capacity_) {
      throw Error(Code::kOutOfBudget, "more than " + std::to_string(capacity_) + " open handles (" +
                                          what_ + "); release some first");
    }
    const std::uint32_t index = free_ != kNone ? free_ : used_++;
    Slot& slot = slots_[index];
    if (index == free_) free_ = slot.next_free;
    slot.object = object.release();
    const std::uint64_t generation = slot.word.load() >> 32;
    slot.word.store(generation << 32 | kAlive);
    return handle_of(index, generation);
  }

  // Throws kInvalidArgument for what is no live handle of this kind.
  Use use(void* handle) {
    Slot* slot = nullptr;
    const Code code = try_use(handle, slot);
    if (code != Code::kOk) refuse(code);
    return Use(slot);
  }
  // Calls `function(object)` where the handle is alive. Takes no lock; for signal handlers.
  template <class Function>
  Code visit(void* handle, Function&& function) noexcept {
    Slot* slot = nullptr;
    const Code code = try_use(handle, slot);
    if (code != Code::kOk) return code;
    const Use use(slot);
    function(*use);
    return Code::kOk;
  }

  // Runs `last(object)` with the handle refused to everyone else, then forgets both. If it throws
  // the handle is as before.
  template <class Last>
  void remove(void* handle, Last&& last) {
    const std::uint32_t index = index_of(handle);
    if (index == kNone) refuse(Code::kInvalidArgument);
    Slot& slot = slots_[index];
    const std::uint64_t generation = generation_of(handle);
    std::uint64_t expected = generation << 32 | kAlive;
    if (!slot.word.compare_exchange_strong(expected, generation << 32 | kLeaving)) {
      refuse(expected >> 32 == generation && (expected & (kAlive | kLeaving)) != 0
                 ? Code::kWrongState
                 : Code::kInvalidArgument);
    }
    try {
      last(*slot.object);
    } catch (...) {
      slot.word.store(generation << 32 | kAlive);
      throw;
    }
    delete std::exchange(slot.object, nullptr);
    const std::lock_guard lock(mutex_);
    slot.word.store((generation + 1) << 32);
    slot.next_free = free_;
    free_ = index;
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr std::uint64_t kAlive = 1u << 31;
  static constexpr std::uint64_t kLeaving = 1u << 30;
  // word: generation (32 bits), alive, leaving, users (30 bits).
  struct Slot {
    std::atomic<std::uint64_t> word{0};
    Object* object = nullptr;
    std::uint32_t next_free = kNone;
  };

  // A handle: generation (32 bits), kind (8), index + 1 (24).
  void* handle_of(std::uint32_t index, std::uint64_t generation) const noexcept {
    const std::uint64_t bits = (generation & 0xffffffffu) << 32 | kind_ << 24 | (index + 1);
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(bits));
  }
  static std::uint64_t generation_of(void* handle) noexcept {
    return reinterpret_cast<std::uintptr_t>(handle) >> 32;
  }
  std::uint32_t index_of(void* handle) const noexcept {
    const auto bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle));
    const std::uint32_t index = (bits & 0xffffffu) - 1;
    return (bits >> 24 & 0xff) == kind_ && index < capacity_ ? index : kNone;
  }
  Code try_use(void* handle, Slot*& found) noexcept {
    const std::uint32_t index = index_of(handle);
    if (index == kNone) return Code::kInvalidArgument;
    Slot& slot = slots_[index];
    std::uint64_t word = slot.word.load();
    do {
      if (word >> 32 != generation_of(handle)) return Code::kInvalidArgument;
      if ((word & kLeaving) != 0) return Code::kWrongState;
      if ((word & kAlive) == 0) return Code::kInvalidArgument;
    } while (!slot.word.compare_exchange_weak(word, word + 1));
    found = &slot;
    return Code::kOk;
  }
  [[noreturn]] void refuse(Code code) const {
    if (code == Code::kWrongState) {
      throw Error(code,
                  std::string(what_) +
                      ": another thread is inside a call with it; it goes when that returned");
    }
    throw Error(code, std::string(what_) +
                          ": no live handle of this kind: destroyed, never made, "
                          "or of another kind");
  }

  const std::uint64_t kind_;
  const char* const what_;
  const std::uint32_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::mutex mutex_;  // of what follows
  std::uint32_t used_ = 0;
  std::uint32_t free_ = kNone;
};
}  // namespace headrace::bindings
