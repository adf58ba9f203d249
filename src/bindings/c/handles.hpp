// SPDX-License-Identifier: Apache-2.0
// handles.hpp: handles that a C caller holds instead of pointers: kind, generation, table index.
//
// A handle is never dereferenced, so stale, foreign and invented handles are detected. Nothing here
// locks or allocates: a signal handler may use a handle, and a child forked at any moment may
// create one.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::bindings {
// Live objects of one kind, at most `kCapacity`. The table has static storage and no destructor: a
// host's threads may outlive main(), and unloading the library leaves nothing behind.
template <class Object, std::uint32_t kCapacity>
class HandleTable {
  struct Slot;

 public:
  // `last_call`: the call with which a caller ends handles that it no longer needs.
  constexpr HandleTable(std::uint64_t kind, const char* what, const char* last_call)
      : kind_(kind), what_(what), last_call_(last_call) {}

  // Keeps the object in place, and its handle alive, for a scope.
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
    explicit Use(Slot* slot) : slot_(slot) {}
    Slot* slot_;
  };

  // Throws kOutOfBudget if `kCapacity` objects are alive.
  void* add(std::unique_ptr<Object> object) {
    for (std::uint32_t tried = 0; tried < kCapacity; ++tried) {
      const std::uint32_t index = next_.fetch_add(1, std::memory_order_relaxed) % kCapacity;
      Slot& slot = slots_[index];
      std::uint64_t word = slot.word.load();
      if ((word & 0xffffffffu) != 0) continue;
      if (!slot.word.compare_exchange_strong(word, word | kLeaving)) continue;
      slot.object = object.release();
      slot.word.store(word | kAlive);
      return handle_of(index, word >> 32);
    }
    throw Error(Code::kOutOfBudget, "this process has " + std::to_string(kCapacity) +
                                        " open handles (" + what_ + "), and no more can be; " +
                                        last_call_ + " some first");
  }

  // Throws kInvalidArgument for anything but a live handle of this kind.
  Use use(void* handle) {
    Slot* slot = nullptr;
    const Code code = try_use(handle, slot);
    if (code != Code::kOk) refuse(code);
    return Use(slot);
  }
  // The same, but waits while a remove() is trying.
  Use use_after_remove(void* handle) {
    Slot* slot = nullptr;
    Code code = try_use(handle, slot);
    for (; code == Code::kWrongState; code = try_use(handle, slot)) std::this_thread::yield();
    if (code != Code::kOk) refuse(code);
    return Use(slot);
  }
  // The result of `function(object)` if the handle is alive. For signal handlers.
  template <class Function>
  Code visit(void* handle, Function&& function) noexcept {
    Slot* slot = nullptr;
    const Code code = try_use(handle, slot);
    if (code != Code::kOk) return code;
    const Use use(slot);
    return function(*use);
  }

  // Runs `last(object)` while all others are refused the handle, then removes both. If it throws,
  // the handle remains as before.
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
    slot.word.store((generation + 1) << 32);
  }

 private:
  static_assert(sizeof(void*) == 8, "a handle takes 64 bits");
  static_assert((kCapacity & (kCapacity - 1)) == 0 && kCapacity < 1u << 24);
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr std::uint64_t kAlive = 1u << 31;
  static constexpr std::uint64_t kLeaving = 1u << 30;  // or about to
  // word: generation (32 bits), alive, leaving, users (30 bits).
  struct Slot {
    std::atomic<std::uint64_t> word{0};
    Object* object = nullptr;
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
    const auto index = static_cast<std::uint32_t>(bits & 0xffffffu) - 1;
    return (bits >> 24 & 0xff) == kind_ && index < kCapacity ? index : kNone;
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
      throw Error(code, std::string(what_) +
                            ": a call with it is under way, in another thread or below this one; "
                            "nothing was done. It can be destroyed when that has returned.");
    }
    throw Error(code, std::string(what_) +
                          ": no live handle of this kind: destroyed, never made, "
                          "or of another kind");
  }

  const std::uint64_t kind_;
  const char* const what_;
  const char* const last_call_;
  std::atomic<std::uint32_t> next_{0};  // used in turn, so that stale handles stay detectable
  Slot slots_[kCapacity] = {};
};
}  // namespace headrace::bindings
