// SPDX-License-Identifier: Apache-2.0
// block.hpp: a piece of a transfer on its way through the queue, and the effect of each completion.
//
// Queues report the kernel's results. This file compares them with the requests: it decides whether
// the block is done, continues where it stopped, is tried again after a pause, or has ended early.
#pragma once
#include <chrono>
#include <cstdint>

#include "swap/drive.hpp"

namespace headrace::swap {
using DriveClock = std::chrono::steady_clock;

// A transfer that has begun. Its blocks run in any order; a block that ends early lowers `whole`.
struct Active {
  Transfer* transfer = nullptr;
  std::uint64_t issued = 0;  // bytes from the start that have been cut into blocks
  std::uint64_t whole = 0;   // no gap before this byte
  std::uint32_t blocks = 0;  // in progress
  bool stopped = false;      // a block ended early: no more are issued or continued
  Active* next = nullptr;
};

enum class BlockState : std::uint8_t { kFree, kWaiting, kInQueue, kAbandoned };

struct Block : IoRequest {
  Active* active = nullptr;
  std::uint64_t end = 0;      // of the block, in the transfer
  std::uint64_t at = 0;       // where the attempt starts; sector-aligned
  std::uint64_t reached = 0;  // moved without a gap up to here
  std::uint32_t attempts = 0;
  bool registered = false;  // handed over while the queue used registered memory
  DriveClock::time_point since, not_before;
  bool warned = false;
  BlockState state = BlockState::kFree;
  Block* next_block = nullptr;
};

// The next action for a block after an attempt.
struct Verdict {
  enum class Next : std::uint8_t {
    kEnd,       // with `error`; if that is 0, the block is whole, or the file ended
    kContinue,  // from block.at, at once
    kRepeat,    // from block.at, after a pause; ends with `error` after too many repeats
  };
  Next next = Next::kEnd;
  int error = 0;
};
// Judges block.result, and updates at, reached and attempts.
Verdict judge(Block& block) noexcept;
// Sets the pause before the next attempt; false: no attempts are left.
bool schedule_repeat(Block& block, DriveClock::time_point now) noexcept;
}  // namespace headrace::swap
