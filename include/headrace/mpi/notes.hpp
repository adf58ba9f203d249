// SPDX-License-Identifier: Apache-2.0
// headrace/mpi/notes.hpp: what the ranks tell each other beside the pieces: who has room, who has
// sent, who leaves, and their posts.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/mpi/requests.hpp"
#include "headrace/transport.hpp"

namespace headrace {
namespace mpi_detail {
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
  bool late_news = false;  // only a rank that drains needs it: told when nothing moves
};

// This rank's state towards each other rank, and the notes about it that are in transit. For one
// thread only.
class Notes {
 public:
  Notes(const Communicators& communicators, Requests& requests, std::uint32_t rank,
        std::uint32_t world_size, Posts& posts)
      : communicators_(communicators),
        requests_(requests),
        rank_(rank),
        posts_(posts),
        peers_(world_size) {
    listen();
  }
  Peer& operator[](std::uint32_t rank) noexcept { return peers_[rank]; }
  std::uint32_t rank() const noexcept { return rank_; }
  std::uint32_t world_size() const noexcept { return static_cast<std::uint32_t>(peers_.size()); }
  // The post has changed: every rank is to hear of it.
  void post_changed();
  // Sends a note to the rank, unless it would say nothing new or one is in transit. `quiet`:
  // nothing has moved for a while.
  void tell(std::uint32_t peer, bool quiet);
  // A note has come.
  void hear(const Operation& operation, const MPI_Status& status);
  // From now on, notes say that this rank sends nothing more, once that holds.
  void leave() noexcept { leaving_ = true; }
  // Whether no rank sends anything more, to this rank or from it.
  bool parted() const noexcept;
  // Whether chunks are in transit.
  bool moving() const noexcept;

 private:
  void listen();

  const Communicators& communicators_;
  Requests& requests_;
  const std::uint32_t rank_;
  Posts& posts_;
  std::vector<Peer> peers_;
  bool leaving_ = false;
};

inline void Notes::post_changed() {
  for (Peer& peer : peers_) peer.news = true;
}

inline void Notes::listen() {
  Operation operation = {.what = What::kHear, .own = std::make_unique<std::byte[]>(sizeof(Note))};
  void* const data = operation.own.get();
  requests_.receive(std::move(operation), data, sizeof(Note), MPI_ANY_SOURCE,
                    communicators_.notes());
}

// Synchronous, so that it ends when the other rank has read it.
inline void Notes::tell(std::uint32_t peer, bool quiet) {
  Peer& to = peers_[peer];
  const bool last = (leaving_ || to.heard.last) && to.giving == 0;
  const bool news = to.news || (quiet && to.late_news);
  if ((!news && !last) || to.telling || to.own.last) return;
  to.own.last = last;
  to.own.post = posts_.of(rank_);
  to.news = to.late_news = false;
  const std::size_t size =
      offsetof(Note, post) + offsetof(Transport::Post, bytes) + to.own.post.size_bytes;
  Operation operation = {
      .what = What::kTell, .peer = peer, .own = std::make_unique<std::byte[]>(size)};
  const void* const data = std::memcpy(operation.own.get(), &to.own, size);
  to.telling = requests_.send(MPI_Issend, std::move(operation), data, size, communicators_.notes());
}

inline void Notes::hear(const Operation& operation, const MPI_Status& status) {
  const auto peer = static_cast<std::uint32_t>(status.MPI_SOURCE);
  Note& note = peers_[peer].heard;
  std::memcpy(static_cast<void*>(&note), operation.own.get(), sizeof(Note));
  posts_.heard(peer, note.post);
  listen();
}

inline bool Notes::moving() const noexcept {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    if (peer.giving > 0) return true;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (peer.heard.given[lane] > peer.came[lane]) return true;
    }
    return false;
  });
}

inline bool Notes::parted() const noexcept {
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    const Peer& peer = peers_[r];
    if (r != rank_ && (!peer.heard.last || !peer.own.last || peer.telling)) return false;
  }
  return true;
}
}  // namespace mpi_detail
}  // namespace headrace
