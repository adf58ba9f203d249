// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/write_behind.hpp"

#include <algorithm>
#include <utility>

#include "async/thread.hpp"
#include "base/units.hpp"

namespace headrace::checkpoint {
namespace {
constexpr std::size_t kWriters = 2;
}  // namespace

std::byte* WriteBehind::Piece::data() const noexcept { return memory + at % base::kIoAlignment; }
// A piece ends with a page, so that the next one begins with one.
std::size_t WriteBehind::Piece::room() const noexcept {
  return kPieceBytes - at % base::kIoAlignment - size;
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    full_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// With the first piece: a small checkpoint needs them too, an engine that is never saved does not.
void WriteBehind::start() {
  if (memory_.empty()) {
    own_ = std::make_unique<pinned::Arena>(kPieces * kPieceBytes, 1);
    memory_ = own_->bytes();
  }
  pieces_.resize(kPieces);
  for (std::size_t i = 0; i < kPieces; ++i) {
    pieces_[i].memory = memory_.subspan(i * kPieceBytes, kPieceBytes).data();
    empty_.push_back(&pieces_[i]);
  }
  for (std::size_t i = 0; i < kWriters; ++i) {
    threads_.push_back(
        async::start_thread("headrace-save" + std::to_string(i), [this] { write_pieces(); }));
  }
}

void WriteBehind::write(std::uint32_t file, std::uint64_t at, std::span<const std::byte> bytes) {
  if (threads_.empty()) start();
  while (!bytes.empty()) {
    const bool follows = filling_ != nullptr && filling_->file == file && filling_->end() == at;
    if (!follows || filling_->room() == 0) {
      hand_over();
      filling_ = &empty_piece();
      filling_->file = file;
      filling_->at = at;
      filling_->size = 0;
    }
    const auto part = bytes.first(std::min(bytes.size(), filling_->room()));
    std::ranges::copy(part, filling_->data() + filling_->size);
    filling_->size += part.size();
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

WriteBehind::Piece& WriteBehind::empty_piece() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !empty_.empty(); });
  if (error_) std::rethrow_exception(error_);
  Piece* const piece = empty_.back();
  empty_.pop_back();
  return *piece;
}

void WriteBehind::hand_over() {
  if (filling_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    full_.push_back(std::exchange(filling_, nullptr));
  }
  changed_.notify_all();
}

void WriteBehind::finish() {
  hand_over();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return empty_.size() == pieces_.size(); });
  if (error_) std::rethrow_exception(error_);
}

// After an error, the rest is taken and not written: the caller learns of it soon.
void WriteBehind::write_pieces() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !full_.empty(); });
    if (full_.empty()) return;
    Piece* const piece = full_.front();
    full_.pop_front();
    if (!error_) {
      lock.unlock();
      std::exception_ptr error;
      try {
        files_[piece->file].write_around_cache({piece->data(), piece->size}, piece->at);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (!error_) error_ = error;
    }
    empty_.push_back(piece);
    changed_.notify_all();
  }
}
}  // namespace headrace::checkpoint
