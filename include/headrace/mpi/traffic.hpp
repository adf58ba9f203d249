// SPDX-License-Identifier: Apache-2.0
// headrace/mpi/traffic.hpp: everything in transit between one rank and the others over MPI.
// headrace/mpi.hpp describes it, and runs it on a thread.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/transport.hpp"

namespace headrace {
namespace mpi_detail {
using Clock = std::chrono::steady_clock;
inline constexpr std::uint64_t kSmallBytes = 2048;      // copied, and sent before there is room
inline constexpr std::uint64_t kChunkBytes = 4u << 20;  // MPI counts in int
inline constexpr std::uint64_t kWindow = 8;             // chunks in transit from a rank in a lane
inline constexpr std::chrono::seconds kAnswer(1);       // the longest wait for a rank's answer
inline std::atomic<bool> call_failed = false;

struct Call {
  std::vector<Transport::Piece> give, take;
  Transport::Done done;
  std::vector<std::uint64_t> given, taken;  // bytes passed to MPI, by rank
  std::uint64_t left = 0;                   // bytes not yet transferred, in both directions
};

// A rank's state, as it is sent to another rank.
struct Note {
  std::array<std::uint64_t, kLanes> room = {};   // chunks that it has posted receives for
  std::array<std::uint64_t, kLanes> given = {};  // chunks that it has begun to send
  bool last = false;                             // the rank sends nothing more
  Transport::Post post;
};

struct Peer {
  Note own, heard;                              // to send to the rank; received from it
  std::array<std::uint64_t, kLanes> came = {};  // chunks that have arrived whole
  std::uint64_t giving = 0;                     // chunks in transit to it
  bool news = false, telling = false;
};

// In progress in MPI.
struct Operation {
  enum class What { kHear, kTell, kGive, kTake } what;
  std::uint32_t peer = 0;
  std::size_t lane = 0;
  std::uint64_t size_bytes = 0;
  bool is_small = false, cancelled = false, over = false;
  std::unique_ptr<std::byte[]> own = nullptr;  // the memory that MPI uses; null: the program's
};
using What = Operation::What;

inline std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return "MPI error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

// Duplicates of the program's communicator: one for each lane, one for notes.
class Communicators {
 public:
  explicit Communicators(MPI_Comm communicator) {
    for (MPI_Comm& own : all_) {
      const int code = MPI_Comm_dup(communicator, &own);
      if (code != MPI_SUCCESS)
        throw Error(Code::kIo, "MPI_Comm_dup: " + text_of(code) + "; no transport was made");
      MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    }
  }
  MPI_Comm of(std::size_t lane) const noexcept { return all_[lane]; }
  MPI_Comm notes() const noexcept { return all_[kLanes]; }
  void free() noexcept {
    for (MPI_Comm& own : all_) MPI_Comm_free(&own);
  }

 private:
  std::array<MPI_Comm, kLanes + 1> all_;
};

// The last post of each rank, readable by any thread.
class Posts {
 public:
  explicit Posts(std::uint32_t world_size) : of_all_(world_size) {}
  void replace(std::uint32_t rank, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    Transport::Post& post = of_all_[rank];
    ++post.number;
    post.size_bytes = static_cast<std::uint32_t>(std::min(bytes.size(), post.bytes.size()));
    std::copy_n(bytes.data(), post.size_bytes, post.bytes.data());
  }
  void heard(std::uint32_t rank, const Transport::Post& post) {
    const std::lock_guard lock(mutex_);
    if (post.number > of_all_[rank].number) of_all_[rank] = post;
  }
  Transport::Post of(std::uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    return of_all_[rank];
  }
  void read(std::span<Transport::Post> of_all) const {
    const std::lock_guard lock(mutex_);
    std::ranges::copy(of_all_, of_all.begin());
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Transport::Post> of_all_;
};

// This rank's calls and notes. For one thread only.
class Traffic {
 public:
  Traffic(const Communicators& communicators, std::uint32_t rank, std::uint32_t world_size,
          std::chrono::milliseconds stand_still, Posts& posts);
  void begin(std::size_t lane, Call call);
  void tell_post();
  // Ends every call with this error, once MPI no longer uses its memory.
  void close(const std::string& error);
  // Moves what can be moved; returns whether anything moved.
  bool advance();
  bool closed() const noexcept { return closing_ && !pending(); }
  const std::string& error() const noexcept { return error_; }
  bool pending() const noexcept {
    return std::ranges::any_of(calls_, [](const auto& calls) { return !calls.empty(); });
  }
  // Whether chunks are in transit, so that polling pays off.
  bool moving() const noexcept;
  // After close(): says farewell. Whether all others have answered, and MPI holds nothing.
  bool leave();

 private:
  bool test();
  void ended(const Operation& operation, const MPI_Status& status, int code);
  void hear(const Operation& operation, const MPI_Status& status);
  void listen();
  void tell(std::uint32_t peer);
  void take(std::size_t lane, std::uint32_t peer);
  void give(std::size_t lane, std::uint32_t peer);
  void finish_closing();
  void drain(std::size_t lane, std::uint32_t peer);
  bool parted() const noexcept;
  void require_motion() const;
  void end(std::size_t lane, const char* error);
  bool receive(Operation operation, void* data, std::uint64_t size_bytes, int source,
               MPI_Comm communicator);
  bool send(decltype(&MPI_Isend) how, Operation operation, const void* data,
            std::uint64_t size_bytes, MPI_Comm communicator);
  bool started(const char* function, int code, MPI_Request request, Operation operation);

  const Communicators& communicators_;
  const std::uint32_t rank_;
  const std::chrono::milliseconds stand_still_;
  Posts& posts_;
  std::vector<Peer> peers_;
  std::array<std::deque<Call>, kLanes> calls_;  // the first of each lane is in progress
  std::vector<MPI_Request> requests_;
  std::vector<Operation> operations_;  // of requests_
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  bool closing_ = false, leaving_ = false;
  std::string error_;
  Clock::time_point moved_at_;
};

inline Traffic::Traffic(const Communicators& communicators, std::uint32_t rank,
                        std::uint32_t world_size, std::chrono::milliseconds stand_still,
                        Posts& posts)
    : communicators_(communicators),
      rank_(rank),
      stand_still_(stand_still),
      posts_(posts),
      peers_(world_size) {
  listen();
}

inline bool Traffic::receive(Operation operation, void* data, std::uint64_t size_bytes, int source,
                             MPI_Comm communicator) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Irecv(data, static_cast<int>(size_bytes), MPI_BYTE, source, 0, communicator, &request);
  return started("MPI_Irecv", code, request, std::move(operation));
}

inline bool Traffic::send(decltype(&MPI_Isend) how, Operation operation, const void* data,
                          std::uint64_t size_bytes, MPI_Comm communicator) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = how(data, static_cast<int>(size_bytes), MPI_BYTE,
                       static_cast<int>(operation.peer), 0, communicator, &request);
  return started("MPI_Isend", code, request, std::move(operation));
}

inline bool Traffic::started(const char* function, int code, MPI_Request request,
                             Operation operation) {
  if (code != MPI_SUCCESS) {
    close(std::string(function) + ": " + text_of(code));
    return false;
  }
  requests_.push_back(request);
  operations_.push_back(std::move(operation));
  return true;
}

inline void Traffic::listen() {
  Operation operation = {.what = What::kHear, .own = std::make_unique<std::byte[]>(sizeof(Note))};
  void* const data = operation.own.get();
  receive(std::move(operation), data, sizeof(Note), MPI_ANY_SOURCE, communicators_.notes());
}

// Synchronous, so that it ends when the other rank has read it.
inline void Traffic::tell(std::uint32_t peer) {
  Peer& to = peers_[peer];
  const bool last = (leaving_ || to.heard.last) && to.giving == 0;
  if ((!to.news && !last) || to.telling || to.own.last) return;
  to.own.last = last;
  to.own.post = posts_.of(rank_);
  to.news = false;
  const std::size_t size =
      offsetof(Note, post) + offsetof(Transport::Post, bytes) + to.own.post.size_bytes;
  Operation operation = {
      .what = What::kTell, .peer = peer, .own = std::make_unique<std::byte[]>(size)};
  const void* const data = std::memcpy(operation.own.get(), &to.own, size);
  to.telling = send(MPI_Issend, std::move(operation), data, size, communicators_.notes());
}

inline void Traffic::hear(const Operation& operation, const MPI_Status& status) {
  const auto peer = static_cast<std::uint32_t>(status.MPI_SOURCE);
  Note& note = peers_[peer].heard;
  std::memcpy(static_cast<void*>(&note), operation.own.get(), sizeof(Note));
  posts_.heard(peer, note.post);
  listen();
}

inline void Traffic::tell_post() {
  for (Peer& peer : peers_) peer.news = true;
}

inline void Traffic::begin(std::size_t lane, Call call) {
  call.given.resize(peers_.size());
  call.taken.resize(peers_.size());
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != rank_) call.left += call.give[r].size_bytes + call.take[r].size_bytes;
  }
  calls_[lane].push_back(std::move(call));
}

inline void Traffic::take(std::size_t lane, std::uint32_t peer) {
  if (calls_[lane].empty()) return;
  Call& call = calls_[lane].front();
  const Transport::Piece& piece = call.take[peer];
  const bool is_small = piece.size_bytes <= kSmallBytes;
  Peer& from = peers_[peer];
  std::uint64_t& at = call.taken[peer];
  while (at < piece.size_bytes && from.own.room[lane] - from.came[lane] < kWindow && !closing_) {
    const std::uint64_t size = std::min(piece.size_bytes - at, kChunkBytes);
    Operation operation = {
        .what = What::kTake, .peer = peer, .lane = lane, .size_bytes = size, .is_small = is_small};
    std::byte* const data = static_cast<std::byte*>(piece.data) + at;
    const bool started =
        receive(std::move(operation), data, size, static_cast<int>(peer), communicators_.of(lane));
    at += size;
    if (is_small || !started) continue;
    ++from.own.room[lane];
    from.news = true;
  }
}

// A small piece for a rank that gives nothing in return is sent synchronously. Otherwise calls
// could run ahead of that rank without limit. Chunks wait until the other rank has read this rank's
// notes: if a chunk came together with the note of room, the poll that reads both would copy the
// chunk, and the other rank's own would wait behind it.
inline void Traffic::give(std::size_t lane, std::uint32_t peer) {
  if (calls_[lane].empty()) return;
  Call& call = calls_[lane].front();
  const Transport::Piece& piece = call.give[peer];
  const bool is_small = piece.size_bytes <= kSmallBytes;
  Peer& to = peers_[peer];
  if (!is_small && (to.news || to.telling)) return;
  std::uint64_t& at = call.given[peer];
  while (at < piece.size_bytes && !to.heard.last && !closing_ &&
         (is_small || to.own.given[lane] < to.heard.room[lane])) {
    const std::uint64_t size = std::min(piece.size_bytes - at, kChunkBytes);
    Operation operation = {
        .what = What::kGive, .peer = peer, .lane = lane, .size_bytes = size, .is_small = is_small};
    const void* data = static_cast<const std::byte*>(piece.data) + at;
    if (is_small) {
      operation.own = std::make_unique<std::byte[]>(size);
      data = std::memcpy(operation.own.get(), data, size);
    }
    const auto how = is_small && call.take[peer].size_bytes == 0 ? MPI_Issend : MPI_Isend;
    const bool started = send(how, std::move(operation), data, size, communicators_.of(lane));
    at += size;
    if (is_small || !started) continue;
    ++to.own.given[lane];
    ++to.giving;
    to.news = true;
  }
}

// A rank announces room before it sends chunks, and does both after every poll. When MPI finds a
// chunk, that poll may copy all of it, and the ranks should copy at the same time.
inline bool Traffic::advance() {
  bool any = test();
  const auto world = static_cast<std::uint32_t>(peers_.size());
  for (std::uint32_t i = 1; i < world; ++i) {
    const std::uint32_t peer = (rank_ + i) % world;
    for (std::size_t lane = 0; lane < kLanes; ++lane) take(lane, peer);
    tell(peer);
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::uint32_t i = 1; i < world; ++i) give(lane, (rank_ + i) % world);
    if (closing_ || calls_[lane].empty() || calls_[lane].front().left > 0) continue;
    end(lane, nullptr);
    any = true;
  }
  if (closing_) finish_closing();
  return any;
}

inline bool Traffic::test() {
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                ended_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) close("MPI_Testsome: " + text_of(code));
  if (count == MPI_UNDEFINED || count <= 0) return false;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(ended_[static_cast<std::size_t>(i)]);
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    operations_[at].over = true;
    const Operation operation = std::move(operations_[at]);
    ended(operation, status, code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (operations_[i].over) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      operations_[kept] = std::move(operations_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(kept), operations_.end());
  return true;
}

inline void Traffic::ended(const Operation& operation, const MPI_Status& status, int code) {
  int cancelled = 0, size = 0;
  if (operation.cancelled) MPI_Test_cancelled(&status, &cancelled);
  Peer& peer = peers_[operation.peer];
  if (operation.own == nullptr) moved_at_ = Clock::now();
  if (operation.what == What::kTell) peer.telling = false;
  if (operation.what == What::kGive && !operation.is_small) --peer.giving;
  if (cancelled != 0) return;
  if (code != MPI_SUCCESS) {
    const bool in = operation.what == What::kHear || operation.what == What::kTake;
    return close((in ? "from rank " : "to rank ") + std::to_string(operation.peer) + ": " +
                 text_of(code));
  }
  if (operation.what == What::kHear) return hear(operation, status);
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
  if (!calls_[operation.lane].empty()) calls_[operation.lane].front().left -= operation.size_bytes;
}

inline void Traffic::end(std::size_t lane, const char* error) {
  const Transport::Done done = calls_[lane].front().done;
  calls_[lane].pop_front();
  if (error != nullptr) call_failed = true;
  done.function(done.context, error);
}

inline bool Traffic::moving() const noexcept {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    if (peer.giving > 0) return true;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (peer.heard.given[lane] > peer.came[lane]) return true;
    }
    return false;
  });
}

inline void Traffic::close(const std::string& error) {
  if (closing_) return;
  closing_ = true;
  error_ = error;
  moved_at_ = Clock::now();
}

// MPI either cancels a receive, or a chunk for it is already in transit and arrives.
inline void Traffic::finish_closing() {
  bool in_use = false;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Operation& operation = operations_[i];
    if (operation.own != nullptr) continue;
    in_use = true;
    if (operation.what != What::kTake || operation.cancelled) continue;
    operation.cancelled = true;
    MPI_Cancel(&requests_[i]);
  }
  if (in_use) return require_motion();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    while (!calls_[lane].empty()) end(lane, error_.c_str());
    for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) drain(lane, peer);
  }
}

inline void Traffic::require_motion() const {
  if (Clock::now() - moved_at_ < stand_still_) return;
  for (const Operation& operation : operations_) {
    if (operation.own != nullptr) continue;
    std::fprintf(stderr,
                 "headrace: rank %u has ended its calls (%s), but a chunk of one is still under "
                 "way %s rank %u, which has stood still for %lld ms. MPI uses the memory, so the "
                 "call cannot end; this process does.\n",
                 rank_, error_.c_str(), operation.what == What::kGive ? "to" : "from",
                 operation.peer, static_cast<long long>(stand_still_.count()));
    std::terminate();
  }
}

// Receives chunks for cancelled receives into the transport's own memory, so that the calls that
// sent them can end.
inline void Traffic::drain(std::size_t lane, std::uint32_t peer) {
  Peer& from = peers_[peer];
  while (from.came[lane] < from.heard.given[lane]) {
    Operation operation = {.what = What::kTake,
                           .peer = peer,
                           .lane = lane,
                           .own = std::make_unique<std::byte[]>(kChunkBytes)};
    void* const data = operation.own.get();
    ++from.came[lane];
    receive(std::move(operation), data, kChunkBytes, static_cast<int>(peer),
            communicators_.of(lane));
  }
}

// No rank sends anything more, to this rank or from it.
inline bool Traffic::parted() const noexcept {
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    const Peer& peer = peers_[r];
    if (r != rank_ && (!peer.heard.last || !peer.own.last || peer.telling)) return false;
  }
  return true;
}

inline bool Traffic::leave() {
  leaving_ = true;
  const auto end = Clock::now() + kAnswer;
  for (auto pause = std::chrono::microseconds(1); !parted() && Clock::now() < end;) {
    if (advance()) pause = std::chrono::microseconds(1);
    std::this_thread::sleep_for(pause = std::min(pause * 2, std::chrono::microseconds(1000)));
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (operations_[i].what != What::kHear) continue;
    operations_[i].cancelled = true;
    MPI_Cancel(&requests_[i]);
  }
  while (!requests_.empty() && test()) {
  }
  if (requests_.empty()) return parted();
  // MPI still uses these: for a rank that is gone, or has not received them.
  static std::mutex mutex;
  static auto& kept = *new std::vector<Operation>;
  const std::lock_guard lock(mutex);
  std::ranges::move(operations_, std::back_inserter(kept));
  return false;
}
}  // namespace mpi_detail
}  // namespace headrace
