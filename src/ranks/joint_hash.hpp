// SPDX-License-Identifier: Apache-2.0
// joint_hash.hpp: one hash over data that several ranks hold, as if one rank held all of it.
//
// The bytes stay where they are. The hash's state goes from owner to owner, in the order in which
// one rank would hash:
//
//   rank 0  hashes its half of 'w', gives the state
//   rank 1  goes on with that state: its half of 'w', then all of 'b', gives the state
//   both    have the state of all of it, and so the same hash
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/hash.hpp"
#include "ranks/rank_calls.hpp"

namespace headrace::ranks {
// Every rank makes the same calls in the same order. With one rank, it is a plain hash.
class JointHash {
 public:
  // `call` names it in errors, and outlives the object. The ranks have already agreed on the call.
  JointHash(RankCalls& ranks, const char* call);

  // Runs add(hash) on rank `owner` alone, for its data. If that throws, this rank's next call here
  // rethrows it, and the others' next calls throw kPeerLost, naming the rank and its error.
  template <class Add>
  void add(std::uint32_t owner, const Add& add) {
    if (owner != owner_) hand_over(owner);
    if (owner != rank_ || error_) return;
    try {
      add(hash_);
    } catch (...) {
      if (world_size_ == 1) throw;
      error_ = std::current_exception();
    }
  }
  std::string hex();

 private:
  struct Message {
    kernels::Hash128::State state = {};
    std::uint32_t failed = 0;
    std::array<char, 252> error = {};
  };
  void hand_over(std::uint32_t to);

  RankCalls& ranks_;
  const char* const call_;
  const std::uint32_t rank_, world_size_;
  kernels::Hash128 hash_;
  std::uint32_t owner_ = 0;
  std::exception_ptr error_;
  std::vector<Message> messages_;
};
}  // namespace headrace::ranks
