// SPDX-License-Identifier: Apache-2.0
// frame_arena.hpp: memory for coroutine frames, reserved at freeze, so that a step allocates
// nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::async {
// Keeps freed frames in a list per size class (64-byte steps up to 4 KiB) and uses them again. If
// the reserve is used up, or a frame is larger than 4 KiB, the frame comes from the heap, and
// overflow_frames() counts it. One thread at a time: the conductor's. Destroy the arena only after
// all frames have been given back.
//
// Example, with a reserve of 512 bytes: a frame of 200 bytes takes bytes 0 to 255, since its class
// has 256. One of 120 bytes takes 256 to 383. The first is given back, and a frame of 250 bytes
// takes bytes 0 to 255 again. One of 180 bytes finds its list empty and 128 bytes left: it comes
// from the heap, overflow_frames() is 1, and give_back() frees it there.
class FrameArena {
 public:
  explicit FrameArena(std::size_t reserve_bytes);
  ~FrameArena();
  FrameArena(const FrameArena&) = delete;
  FrameArena& operator=(const FrameArena&) = delete;

  // Aligned to 16 bytes.
  void* take(std::size_t size_bytes);
  void give_back(void* frame, std::size_t size_bytes) noexcept;
  std::uint64_t overflow_frames() const noexcept { return overflow_frames_; }
  std::size_t reserve_bytes() const noexcept { return reserve_.size(); }
  // How much of the reserve was ever in use: what a run needs.
  std::size_t used_bytes() const noexcept { return used_; }

  // The arena for the frames of coroutines created on this thread; null: the heap. Conductors set
  // it around the work they run (Conductor::use_frames).
  static FrameArena* current() noexcept;
  // Makes an arena current on this thread for a scope.
  class Use {
   public:
    explicit Use(FrameArena* arena) noexcept;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    FrameArena* before_;
  };

 private:
  static constexpr std::size_t kStep = 64;
  static constexpr std::size_t kClasses = 64;
  bool owns(const void* frame) const noexcept;

  std::vector<std::byte> reserve_;
  std::size_t used_ = 0;
  std::array<void*, kClasses> free_{};
  std::uint64_t overflow_frames_ = 0;
  std::uint64_t taken_frames_ = 0;  // not yet given back
};
}  // namespace headrace::async
