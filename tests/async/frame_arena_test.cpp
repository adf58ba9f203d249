// SPDX-License-Identifier: Apache-2.0
#include "async/frame_arena.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "async/task.hpp"

namespace headrace::async {
namespace {
TEST(FrameArena, UsesAFreedFrameOfTheSameClassAgain) {
  FrameArena arena(4096);
  void* const first = arena.take(100);
  arena.give_back(first, 100);
  void* const second = arena.take(65);  // 65 and 100 bytes are both two steps
  EXPECT_EQ(second, first);
  EXPECT_EQ(arena.used_bytes(), 128u);
  void* const smaller = arena.take(64);
  EXPECT_NE(smaller, first);
  EXPECT_EQ(arena.used_bytes(), 192u);
  arena.give_back(second, 65);
  arena.give_back(smaller, 64);
  EXPECT_EQ(arena.overflow_frames(), 0u);
}

TEST(FrameArena, CountsTheFramesThatTheReserveCouldNotHold) {
  FrameArena arena(256);
  std::vector<void*> frames;
  for (int i = 0; i < 6; ++i) {
    frames.push_back(arena.take(64));
    std::memset(frames.back(), i, 64);
  }
  EXPECT_EQ(arena.overflow_frames(), 2u);
  for (void* frame : frames) arena.give_back(frame, 64);
  void* const again = arena.take(64);
  EXPECT_EQ(arena.overflow_frames(), 2u);
  arena.give_back(again, 64);
}

TEST(FrameArena, TakesFramesOver4KiBFromTheHeapAndCountsThem) {
  FrameArena arena(1 << 20);
  void* const largest = arena.take(4096);
  EXPECT_EQ(arena.overflow_frames(), 0u);
  void* const larger = arena.take(4097);
  EXPECT_EQ(arena.overflow_frames(), 1u);
  std::memset(larger, 1, 4097);
  arena.give_back(larger, 4097);
  arena.give_back(largest, 4096);
}

TEST(FrameArena, AnEmptyOneServesFromTheHeap) {
  FrameArena arena(0);
  void* const frame = arena.take(10);
  EXPECT_EQ(arena.overflow_frames(), 1u);
  arena.give_back(frame, 10);
}

TEST(FrameArena, FramesNeverOverlapAndKeepTheirBytes) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  struct Taken {
    unsigned char* bytes;
    std::size_t size;
    unsigned char value;
  };
  FrameArena arena(64 << 10);
  std::vector<Taken> taken;
  const auto give_back = [&](std::size_t index) {
    const Taken frame = taken[index];
    for (std::size_t i = 0; i < frame.size; ++i) ASSERT_EQ(frame.bytes[i], frame.value);
    arena.give_back(frame.bytes, frame.size);
    taken[index] = taken.back();
    taken.pop_back();
  };
  for (int i = 0; i < 5000; ++i) {
    if (taken.size() > 100 || (!taken.empty() && random() % 2 == 0)) {
      give_back(random() % taken.size());
    } else {
      const std::size_t size = 1 + random() % 5000;
      auto* const bytes = static_cast<unsigned char*>(arena.take(size));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % 16, 0u);
      taken.push_back({bytes, size, static_cast<unsigned char>(random())});
      std::memset(bytes, taken.back().value, size);
    }
  }
  while (!taken.empty()) give_back(0);
  EXPECT_LE(arena.used_bytes(), arena.reserve_bytes());
}

TEST(FrameArena, UseHoldsForItsScope) {
  FrameArena outer(64);
  FrameArena inner(64);
  EXPECT_EQ(FrameArena::current(), nullptr);
  {
    const FrameArena::Use use_outer(&outer);
    {
      const FrameArena::Use use_inner(&inner);
      EXPECT_EQ(FrameArena::current(), &inner);
    }
    EXPECT_EQ(FrameArena::current(), &outer);
  }
  EXPECT_EQ(FrameArena::current(), nullptr);
}

TEST(FrameArena, AFrameFindsItsWayBackWhateverArenaIsCurrentThen) {
  FrameArena arena(4096);
  FrameArena other(4096);
  void* from_heap = detail::take_frame(100);
  void* from_arena = nullptr;
  {
    const FrameArena::Use use(&arena);
    from_arena = detail::take_frame(100);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from_arena) % 16, 0u);
    detail::give_back_frame(from_heap, 100);
  }
  const FrameArena::Use use(&other);
  detail::give_back_frame(from_arena, 100);
  EXPECT_EQ(other.used_bytes(), 0u);
  void* const again = arena.take(100 + 16);  // the header counts
  EXPECT_EQ(arena.used_bytes(), 128u);
  arena.give_back(again, 100 + 16);
}

TEST(FrameArenaDeathTest, MayNotBeDestroyedUnderItsCoroutines) {
  EXPECT_DEATH(
      {
        FrameArena arena(4096);
        (void)arena.take(10);
      },
      "destroyed under its coroutines");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(FrameArenaDeathTest, AFreedFrameIsPoisoned) {
  EXPECT_DEATH(
      {
        FrameArena arena(4096);
        auto* const frame = static_cast<volatile char*>(arena.take(64));
        arena.give_back(const_cast<char*>(frame), 64);
        frame[40] = 1;
      },
      "AddressSanitizer");
}
#endif
}  // namespace
}  // namespace headrace::async
