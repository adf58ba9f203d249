// SPDX-License-Identifier: Apache-2.0
// meeting.hpp: where the ranks of one process come together for a call.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "collective/call_rules.hpp"

namespace headrace::collective {
// A call has two halves. meet() ends when all ranks have come with the same call; from then on all
// of them read each other's memory, and nothing stops the call any more. part() ends when all have
// finished reading, so that no rank's memory is written or freed under another. Deadlines,
// differences and aborts end meet() only. Two ranks gather; the second comes later:
//
//   rank 0  meet(): posts all_gather 'gather of h.3' and where its memory is; waits
//   rank 1  meet(): posts the same; both return
//   each    copies the other's piece from posted(other).data
//   rank 0  part(): has read, waits for rank 1
//   rank 1  part(): has read; both return, and may write and free what they posted
//
// Had rank 1 posted a barrier, its meet() would compare the two and fail, and both meet() throw the
// text that names them. An abort between meet() and part() ends the next meet(), not this one.
//
// Threads: one per rank.
class Meeting {
 public:
  Meeting(std::uint32_t world_size, std::chrono::milliseconds deadline);

  // Posts `call` and waits for the others. Throws kPeerLost, then and ever after, on every rank.
  void meet(std::uint32_t rank, Call call);
  // Between meet() and part(): what `rank` posted.
  const Call& posted(std::uint32_t rank) const noexcept { return posted_[rank]; }
  void part();

  void abort(std::uint32_t rank, std::string_view why) noexcept;
  // The rank will not come again: whoever waits for it, or ever will, is told at once.
  void leave(std::uint32_t rank) noexcept;

 private:
  void fail(std::string text);
  void arrive(std::uint32_t rank, Call call);
  std::string missing_ranks() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::milliseconds deadline_;
  std::vector<Call> posted_;
  std::vector<bool> arrived_;
  std::vector<bool> left_;
  std::uint32_t arrivals_ = 0;
  std::uint32_t reading_ = 0;
  std::uint64_t meetings_ = 0;  // completed
  bool failed_ = false;
  std::string why_;
};
}  // namespace headrace::collective
