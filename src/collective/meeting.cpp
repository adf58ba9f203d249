// SPDX-License-Identifier: Apache-2.0
#include "collective/meeting.hpp"

#include <utility>

#include "headrace/error.hpp"

namespace headrace::collective {
Meeting::Meeting(std::uint32_t world_size, std::chrono::milliseconds deadline)
    : deadline_(deadline), posted_(world_size), arrived_(world_size), left_(world_size) {}

void Meeting::fail(std::string text) {
  if (!failed_) why_ = std::move(text);
  failed_ = true;
  changed_.notify_all();
}

std::string Meeting::missing_ranks() const {
  std::string text;
  for (std::uint32_t rank = 0; rank < arrived_.size(); ++rank) {
    if (!arrived_[rank]) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return text;
}

void Meeting::arrive(std::uint32_t rank, Call call) {
  for (std::uint32_t other = 0; other < posted_.size() && !failed_; ++other) {
    if (arrived_[other] && !same_call(posted_[other], call))
      fail(mismatch_text(rank, call, other, posted_[other]));
    if (left_[other]) fail(left_text(other, call));
  }
  posted_[rank] = std::move(call);
  arrived_[rank] = true;
  ++arrivals_;
}

void Meeting::meet(std::uint32_t rank, Call call) {
  std::unique_lock lock(mutex_);
  if (failed_) throw Error(Code::kPeerLost, why_);
  arrive(rank, std::move(call));
  if (failed_) throw Error(Code::kPeerLost, why_);
  const std::uint64_t before = meetings_;
  if (arrivals_ == posted_.size()) {
    arrivals_ = 0;
    arrived_.assign(arrived_.size(), false);
    reading_ = static_cast<std::uint32_t>(posted_.size());
    ++meetings_;
    changed_.notify_all();
    return;
  }
  const auto over = [&] { return meetings_ != before || failed_; };
  const bool in_time = changed_.wait_for(lock, deadline_, over);
  if (meetings_ != before) return;  // complete, whatever has happened since
  if (!in_time) {
    fail(missing_text(missing_ranks(), posted_[rank],
                      static_cast<std::uint64_t>(deadline_.count())));
  }
  throw Error(Code::kPeerLost, why_);
}

void Meeting::part() {
  std::unique_lock lock(mutex_);
  if (--reading_ == 0) changed_.notify_all();
  changed_.wait(lock, [&] { return reading_ == 0; });
}

void Meeting::abort(std::uint32_t rank, std::string_view why) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    fail(abort_text(rank, why));
  } catch (...) {  // no memory for the text: the abort holds without it
    failed_ = true;
    changed_.notify_all();
  }
}

void Meeting::leave(std::uint32_t rank) noexcept {
  const std::lock_guard lock(mutex_);
  left_[rank] = true;
  if (arrivals_ == 0) return;
  for (std::uint32_t other = 0; other < posted_.size(); ++other) {
    if (!arrived_[other] || failed_) continue;
    try {
      fail(left_text(rank, posted_[other]));
    } catch (...) {
      failed_ = true;
      changed_.notify_all();
    }
  }
}
}  // namespace headrace::collective
