// SPDX-License-Identifier: Apache-2.0
#include "async/frame_arena.hpp"

#include <functional>
#include <new>

#include "base/check.hpp"
#include "base/units.hpp"

// A frame that is touched after its coroutine ended is found by AddressSanitizer although its
// memory stays with the arena.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HEADRACE_POISON(address, size_bytes) ASAN_POISON_MEMORY_REGION(address, size_bytes)
#define HEADRACE_UNPOISON(address, size_bytes) ASAN_UNPOISON_MEMORY_REGION(address, size_bytes)
#else
#define HEADRACE_POISON(address, size_bytes) ((void)(address), (void)(size_bytes))
#define HEADRACE_UNPOISON(address, size_bytes) ((void)(address), (void)(size_bytes))
#endif

namespace headrace::async {
namespace {
thread_local FrameArena* current_arena = nullptr;
}  // namespace

FrameArena::FrameArena(std::size_t reserve_bytes) : reserve_(reserve_bytes) {
  HEADRACE_POISON(reserve_.data(), reserve_.size());
}

FrameArena::~FrameArena() {
  HEADRACE_CHECK(taken_frames_ == 0, "a frame arena was destroyed under its coroutines");
  HEADRACE_UNPOISON(reserve_.data(), reserve_.size());
}

bool FrameArena::owns(const void* frame) const noexcept {
  const auto* address = static_cast<const std::byte*>(frame);
  return std::greater_equal<>()(address, reserve_.data()) &&
         std::less<>()(address, reserve_.data() + reserve_.size());
}

void* FrameArena::take(std::size_t size_bytes) {
  const std::size_t steps = base::ceil_div(size_bytes == 0 ? 1 : size_bytes, kStep);
  if (steps <= kClasses) {
    void*& first_free = free_[steps - 1];
    void* frame = first_free;
    if (frame != nullptr) {
      HEADRACE_UNPOISON(frame, steps * kStep);
      first_free = *static_cast<void**>(frame);
    } else if (reserve_.size() - used_ >= steps * kStep) {
      frame = reserve_.data() + used_;
      HEADRACE_UNPOISON(frame, steps * kStep);
      used_ += steps * kStep;
    }
    if (frame != nullptr) {
      ++taken_frames_;
      return frame;
    }
  }
  void* const frame = ::operator new(size_bytes);
  ++overflow_frames_;
  ++taken_frames_;
  return frame;
}

void FrameArena::give_back(void* frame, std::size_t size_bytes) noexcept {
  HEADRACE_CHECK(taken_frames_ > 0, "a frame was given back that was not taken");
  --taken_frames_;
  if (!owns(frame)) {
    ::operator delete(frame);
    return;
  }
  const std::size_t steps = base::ceil_div(size_bytes == 0 ? 1 : size_bytes, kStep);
  *static_cast<void**>(frame) = free_[steps - 1];
  free_[steps - 1] = frame;
  HEADRACE_POISON(frame, steps * kStep);
}

FrameArena* FrameArena::current() noexcept { return current_arena; }
FrameArena::Use::Use(FrameArena* arena) noexcept : before_(current_arena) { current_arena = arena; }
FrameArena::Use::~Use() { current_arena = before_; }
}  // namespace headrace::async
