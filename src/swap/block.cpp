// SPDX-License-Identifier: Apache-2.0
#include "swap/block.hpp"

#include <algorithm>
#include <cerrno>

#include "base/units.hpp"

namespace headrace::swap {
namespace {
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Next = Verdict::Next;

constexpr std::uint64_t kSector = 512;  // a short transfer that ends on one can be continued there
// Repeats in a row that get no further: answers such as EAGAIN, and writes of 0 bytes. Their pauses
// add up to a quarter of a second. The next such answer ends the block, with its errno or EIO.
constexpr std::uint32_t kAttempts = 32;
// A read that stops inside a sector may have met the file's end. It goes on once and is then
// repeated this often; repeats after EAGAIN and its like count too. If it still stops at the same
// byte, the file ends there: at the fifth such answer, where there was no other. A read of 0 bytes
// is the end at once.
constexpr std::uint32_t kSameEnd = 3;

nanoseconds backoff(std::uint32_t attempts) {
  return std::min<nanoseconds>(microseconds(50) * (1u << std::min(attempts, 10u)),
                               milliseconds(10));
}

Verdict judge_error(Block& block, int error) {
  if (error == EAGAIN || error == EINTR || error == EBUSY) return {Next::kRepeat, error};
  if (error == EINVAL && block.at % base::kIoAlignment != 0) {
    // This drive wants larger steps than a sector: move the last page again.
    block.at = base::align_down(block.at, base::kIoAlignment);
    return {Next::kRepeat, error};
  }
  return {Next::kEnd, error};
}

Verdict judge_moved(Block& block, std::uint64_t bytes) {
  if (bytes == 0) {
    if (block.kind == IoKind::kWrite) return {Next::kRepeat, EIO};
    return {Next::kEnd, 0};  // the end of the file
  }
  const std::uint64_t position = block.at + bytes;
  const bool progress = position > block.reached;
  if (progress) {
    block.reached = position;
    block.attempts = 0;
  } else if (block.kind == IoKind::kRead && position == block.reached &&
             block.attempts >= kSameEnd) {
    return {Next::kEnd, 0};
  }
  if (position == block.end) return {Next::kEnd, 0};
  // Only whole sectors can be continued with O_DIRECT; else the last page is moved again.
  block.at = position % kSector == 0 ? position : base::align_down(position, base::kIoAlignment);
  return progress ? Verdict{Next::kContinue, 0} : Verdict{Next::kRepeat, EIO};
}
}  // namespace

Verdict judge(Block& block) noexcept {
  // More than was asked for is no answer to this request.
  if (block.result > std::int64_t{block.size_bytes}) return {Next::kEnd, EIO};
  const int error = block.result < 0 ? static_cast<int>(-block.result) : 0;
  // The first answer to a sync is final, EINTR and EAGAIN included. After a failure, the kernel may
  // drop what it could not write, and report success the next time.
  if (block.kind == IoKind::kSync) return {Next::kEnd, error};
  if (error != 0) return judge_error(block, error);
  return judge_moved(block, static_cast<std::uint64_t>(block.result));
}

bool schedule_repeat(Block& block, DriveClock::time_point now) noexcept {
  if (++block.attempts > kAttempts) return false;
  block.not_before = now + backoff(block.attempts);
  return true;
}
}  // namespace headrace::swap
