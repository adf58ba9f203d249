// SPDX-License-Identifier: Apache-2.0
// headrace/mpi/traffic.hpp: everything in transit between one rank and the others over MPI.
// headrace/mpi.hpp describes it, and runs it on a thread.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "headrace/mpi/lane_calls.hpp"
#include "headrace/mpi/notes.hpp"
#include "headrace/mpi/requests.hpp"
#include "headrace/transport.hpp"

namespace headrace {
namespace mpi_detail {
using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::seconds kAnswer(1);  // the longest wait for a rank's answer

// This rank's calls and notes. For one thread only.
class Traffic {
 public:
  Traffic(const Communicators& communicators, std::uint32_t rank, std::uint32_t world_size,
          std::chrono::milliseconds stand_still, Posts& posts);
  LaneCalls& of(Lane lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  Notes& notes() noexcept { return notes_; }
  // Ends every call with this error, once MPI no longer uses its memory.
  void close(const std::string& error);
  // Moves what can be moved; returns whether anything moved. `quiet`: nothing has for a while.
  bool advance(bool quiet);
  bool closed() const noexcept { return closing_ && !pending(); }
  const std::string& error() const noexcept { return error_; }
  bool pending() const noexcept { return std::ranges::any_of(lanes_, &LaneCalls::pending); }
  // After close(): says farewell. Whether all others have answered, and MPI holds nothing.
  bool leave();

 private:
  bool test();
  void close_on_failure();
  void ended(const Operation& operation, const MPI_Status& status, int code);
  void finish_closing();
  void require_motion(const Operation& in_use) const;

  const std::chrono::milliseconds stand_still_;
  Requests requests_;
  Notes notes_;
  std::array<LaneCalls, kLanes> lanes_;
  bool closing_ = false;
  std::string error_;
  Clock::time_point moved_at_;
};

inline Traffic::Traffic(const Communicators& communicators, std::uint32_t rank,
                        std::uint32_t world_size, std::chrono::milliseconds stand_still,
                        Posts& posts)
    : stand_still_(stand_still),
      notes_(communicators, requests_, rank, world_size, posts),
      lanes_{LaneCalls(0, communicators, requests_, notes_),
             LaneCalls(1, communicators, requests_, notes_),
             LaneCalls(2, communicators, requests_, notes_)} {}

// After every poll, a rank announces room, then sends chunks, then posts receives.
inline bool Traffic::advance(bool quiet) {
  bool any = test();
  const std::uint32_t world = notes_.world_size();
  for (std::uint32_t i = 1; i < world; ++i) {
    const std::uint32_t peer = (notes_.rank() + i) % world;
    for (LaneCalls& lane : lanes_) {
      if (!closing_) lane.promise(peer);
    }
    notes_.tell(peer, quiet || closing_);
  }
  for (LaneCalls& lane : lanes_) {
    for (std::uint32_t i = 1; i < world && !closing_; ++i) lane.give((notes_.rank() + i) % world);
    for (std::uint32_t i = 1; i < world && !closing_; ++i) lane.take((notes_.rank() + i) % world);
    close_on_failure();
    if (closing_ || !lane.first_is_done()) continue;
    lane.end(nullptr);
    any = true;
  }
  close_on_failure();
  if (closing_) finish_closing();
  return any;
}

inline bool Traffic::test() {
  const bool any = requests_.test([this](const Operation& operation, const MPI_Status& status,
                                         int code) { ended(operation, status, code); });
  close_on_failure();
  return any;
}

inline void Traffic::close_on_failure() {
  if (!requests_.failure().empty()) close(requests_.failure());
}

// "to rank 2". Notes are heard from any rank: which one it was, only MPI knows, if it says so.
inline std::string other_end(const Operation& operation, const MPI_Status& status) {
  if (operation.what == What::kHear) {
    return status.MPI_SOURCE < 0 ? "from another rank"
                                 : "from rank " + std::to_string(status.MPI_SOURCE);
  }
  return (operation.what == What::kTake ? "from rank " : "to rank ") +
         std::to_string(operation.peer);
}

inline void Traffic::ended(const Operation& operation, const MPI_Status& status, int code) {
  int cancelled = 0, size = 0;
  if (operation.cancelled) MPI_Test_cancelled(&status, &cancelled);
  Peer& peer = notes_[operation.peer];
  if (operation.own == nullptr) moved_at_ = Clock::now();
  if (operation.what == What::kTell) peer.telling = false;
  if (operation.what == What::kGive && !operation.is_small) --peer.giving;
  if (cancelled != 0) return;
  if (code != MPI_SUCCESS) {
    return close(other_end(operation, status) + ": " + text_of(code));
  }
  if (operation.what == What::kHear) return notes_.hear(operation, status);
  if (operation.what == What::kTell) return;
  if (operation.what == What::kTake) {
    if (operation.own != nullptr) return;
    MPI_Get_count(&status, MPI_BYTE, &size);
    if (static_cast<std::uint64_t>(size) != operation.size_bytes) {
      return close("rank " + std::to_string(operation.peer) + " gave " + std::to_string(size) +
                   " bytes where " + std::to_string(operation.size_bytes) + " are taken");
    }
    if (!operation.is_small) ++peer.came[operation.lane];
  }
  lanes_[operation.lane].passed(operation.size_bytes);
}

inline void Traffic::close(const std::string& error) {
  if (closing_) return;
  closing_ = true;
  error_ = error;
  moved_at_ = Clock::now();
}

inline void Traffic::finish_closing() {
  const Operation* const in_use = requests_.in_programs_memory();
  if (in_use != nullptr) {
    requests_.cancel([](const Operation& operation) {
      return operation.what == What::kTake && operation.own == nullptr;
    });
    return require_motion(*in_use);
  }
  for (LaneCalls& lane : lanes_) {
    while (lane.pending()) lane.end(error_.c_str());
    for (std::uint32_t peer = 0; peer < notes_.world_size(); ++peer) lane.drain(peer);
  }
}

inline void Traffic::require_motion(const Operation& in_use) const {
  if (Clock::now() - moved_at_ < stand_still_) return;
  std::fprintf(stderr,
               "headrace: rank %u has ended its calls (%s), but a chunk of one is still under "
               "way %s rank %u, which has stood still for %lld ms. MPI uses the memory, so the "
               "call cannot end; this process does.\n",
               notes_.rank(), error_.c_str(), in_use.what == What::kGive ? "to" : "from",
               in_use.peer, static_cast<long long>(stand_still_.count()));
  std::terminate();
}

inline bool Traffic::leave() {
  notes_.leave();
  const auto end = Clock::now() + kAnswer;
  for (auto pause = std::chrono::microseconds(1); !notes_.parted() && Clock::now() < end;) {
    if (advance(true)) pause = std::chrono::microseconds(1);
    std::this_thread::sleep_for(pause = std::min(pause * 2, std::chrono::microseconds(1000)));
  }
  requests_.cancel([](const Operation& operation) { return operation.what == What::kHear; });
  while (!requests_.empty() && test()) {
  }
  if (requests_.empty()) return notes_.parted();
  requests_.leave_to_mpi();
  return false;
}
}  // namespace mpi_detail
}  // namespace headrace
