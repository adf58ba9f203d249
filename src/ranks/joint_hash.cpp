// SPDX-License-Identifier: Apache-2.0
#include "ranks/joint_hash.hpp"

#include <algorithm>
#include <string_view>

#include "headrace/error.hpp"

namespace headrace::ranks {
JointHash::JointHash(RankCalls& ranks, const char* call)
    : ranks_(ranks),
      call_(call),
      rank_(ranks.collective().rank()),
      world_size_(ranks.collective().world_size()),
      messages_(world_size_ > 1 ? world_size_ : 0) {}

// Every rank gets the state, so that whoever is next has it.
void JointHash::hand_over(std::uint32_t to) {
  Message mine;
  if (owner_ == rank_) {
    mine.state = hash_.state();
    mine.failed = error_ != nullptr;
    try {
      if (error_) std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      const std::string_view text = error.what();
      std::copy_n(text.data(), std::min(text.size(), mine.error.size() - 1), mine.error.begin());
    }
  }
  ranks_.collective().exchange(ranks_.next(call_), std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(messages_)));
  if (error_) std::rethrow_exception(error_);
  const Message& from_owner = messages_[owner_];
  if (from_owner.failed != 0) {
    throw Error(Code::kPeerLost, std::string(call_) + ": rank " + std::to_string(owner_) +
                                     " could not read what it holds, so there is no hash: " +
                                     from_owner.error.data());
  }
  hash_.set_state(from_owner.state);
  owner_ = to;
}

std::string JointHash::hex() {
  if (world_size_ > 1) hand_over(0);
  return hash_.hex();
}
}  // namespace headrace::ranks
