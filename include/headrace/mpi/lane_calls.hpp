// SPDX-License-Identifier: Apache-2.0
// headrace/mpi/lane_calls.hpp: the calls of one lane, and the pieces of the first of them.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/mpi/notes.hpp"
#include "headrace/mpi/requests.hpp"
#include "headrace/transport.hpp"

namespace headrace {
namespace mpi_detail {
inline constexpr std::uint64_t kSmallBytes = 2048;      // copied, and sent before there is room
inline constexpr std::uint64_t kChunkBytes = 4u << 20;  // MPI counts in int
inline constexpr std::uint64_t kWindow = 8;             // chunks in transit from a rank in a lane
inline std::atomic<bool> call_failed = false;

struct Call {
  std::vector<Transport::Piece> give, take;
  Transport::Done done;
  std::vector<std::uint64_t> promised, given, taken;  // bytes: of room, passed to MPI; by rank
  std::uint64_t left = 0;  // bytes not yet transferred, in both directions
};

// For one thread only.
class LaneCalls {
 public:
  LaneCalls(std::size_t lane, const Communicators& communicators, Requests& requests, Notes& notes)
      : lane_(lane), communicators_(communicators), requests_(requests), notes_(notes) {}
  void begin(Call call);
  bool pending() const noexcept { return !calls_.empty(); }
  // Makes room for what the first call takes from the rank.
  void promise(std::uint32_t peer);
  // Posts the receives.
  void take(std::uint32_t peer);
  // Sends what the rank has room for.
  void give(std::uint32_t peer);
  // Bytes of the first call have been transferred.
  void passed(std::uint64_t size_bytes) noexcept {
    if (pending()) calls_.front().left -= size_bytes;
  }
  bool first_is_done() const noexcept { return pending() && calls_.front().left == 0; }
  // Ends the first call, with an error or null.
  void end(const char* error);
  // Receives chunks for cancelled receives into the transport's own memory, so that the calls that
  // sent them can end.
  void drain(std::uint32_t peer);

 private:
  const std::size_t lane_;
  const Communicators& communicators_;
  Requests& requests_;
  Notes& notes_;
  std::deque<Call> calls_;  // the first is in progress
};

inline void LaneCalls::begin(Call call) {
  call.promised.resize(notes_.world_size());
  call.given.resize(notes_.world_size());
  call.taken.resize(notes_.world_size());
  for (std::uint32_t r = 0; r < notes_.world_size(); ++r) {
    if (r != notes_.rank()) call.left += call.give[r].size_bytes + call.take[r].size_bytes;
  }
  calls_.push_back(std::move(call));
}

inline void LaneCalls::promise(std::uint32_t peer) {
  if (calls_.empty()) return;
  Call& call = calls_.front();
  const std::uint64_t size = call.take[peer].size_bytes;
  Peer& from = notes_[peer];
  std::uint64_t& at = call.promised[peer];
  if (size <= kSmallBytes) at = size;
  while (at < size && from.own.room[lane_] - from.came[lane_] < kWindow) {
    at += std::min(size - at, kChunkBytes);
    ++from.own.room[lane_];
    from.news = true;
  }
}

// MPI may copy a chunk as soon as it has its receive. The chunks that this rank gives go first, so
// that both ranks copy at the same time.
inline void LaneCalls::take(std::uint32_t peer) {
  if (calls_.empty()) return;
  Call& call = calls_.front();
  const Transport::Piece& piece = call.take[peer];
  const bool is_small = piece.size_bytes <= kSmallBytes;
  if (!is_small && call.give[peer].size_bytes > kSmallBytes && call.given[peer] == 0) return;
  std::uint64_t& at = call.taken[peer];
  while (at < call.promised[peer] && requests_.failure().empty()) {
    const std::uint64_t size = std::min(piece.size_bytes - at, kChunkBytes);
    Operation operation = {
        .what = What::kTake, .peer = peer, .lane = lane_, .size_bytes = size, .is_small = is_small};
    std::byte* const data = static_cast<std::byte*>(piece.data) + at;
    requests_.receive(std::move(operation), data, size, static_cast<int>(peer),
                      communicators_.of(lane_));
    at += size;
  }
}

// A small piece for a rank that gives nothing in return is sent synchronously. Otherwise calls
// could run ahead of that rank without limit. Chunks wait until the other rank has read this rank's
// notes: it may have stopped since it made room, and abort() would wait for a chunk in transit. If
// a later chunk came together with the note of room, the poll that reads both would copy the chunk,
// and the other rank's own would wait behind it.
inline void LaneCalls::give(std::uint32_t peer) {
  if (calls_.empty()) return;
  Call& call = calls_.front();
  const Transport::Piece& piece = call.give[peer];
  const bool is_small = piece.size_bytes <= kSmallBytes;
  Peer& to = notes_[peer];
  if (!is_small && (to.news || to.telling)) return;
  std::uint64_t& at = call.given[peer];
  while (at < piece.size_bytes && !to.heard.last && requests_.failure().empty() &&
         (is_small || to.own.given[lane_] < to.heard.room[lane_])) {
    const std::uint64_t size = std::min(piece.size_bytes - at, kChunkBytes);
    Operation operation = {
        .what = What::kGive, .peer = peer, .lane = lane_, .size_bytes = size, .is_small = is_small};
    const void* data = static_cast<const std::byte*>(piece.data) + at;
    if (is_small) {
      operation.own = std::make_unique<std::byte[]>(size);
      data = std::memcpy(operation.own.get(), data, size);
    }
    const auto how = is_small && call.take[peer].size_bytes == 0 ? MPI_Issend : MPI_Isend;
    const bool started =
        requests_.send(how, std::move(operation), data, size, communicators_.of(lane_));
    at += size;
    if (is_small || !started) continue;
    ++to.own.given[lane_];
    ++to.giving;
    to.late_news = true;
  }
}

inline void LaneCalls::end(const char* error) {
  const Transport::Done done = calls_.front().done;
  calls_.pop_front();
  if (error != nullptr) call_failed = true;
  done.function(done.context, error);
}

inline void LaneCalls::drain(std::uint32_t peer) {
  Peer& from = notes_[peer];
  while (from.came[lane_] < from.heard.given[lane_]) {
    Operation operation = {.what = What::kTake,
                           .peer = peer,
                           .lane = lane_,
                           .own = std::make_unique<std::byte[]>(kChunkBytes)};
    void* const data = operation.own.get();
    ++from.came[lane_];
    requests_.receive(std::move(operation), data, kChunkBytes, static_cast<int>(peer),
                      communicators_.of(lane_));
  }
}
}  // namespace mpi_detail
}  // namespace headrace
