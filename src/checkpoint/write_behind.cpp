// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/write_behind.hpp"

#include <algorithm>
#include <utility>

#include "async/thread.hpp"
#include "base/units.hpp"

namespace headrace::checkpoint {
namespace {
constexpr std::size_t kWriters = 4;
}  // namespace

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
      begin_piece(file, at);
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

// With the bytes of its first page that have come before.
void WriteBehind::begin_piece(std::uint32_t file, std::uint64_t at) {
  filling_ = &empty_piece();
  filling_->file = file;
  filling_->at = at;
  filling_->first = at % base::kIoAlignment;
  filling_->size = 0;
  const auto before = std::ranges::find_if(edges_, [&](const Edge& edge) {
    return edge.file == file && edge.page == at / base::kIoAlignment && edge.begin == 0 &&
           edge.end == filling_->first;
  });
  if (before == edges_.end()) return;
  std::copy_n(before->bytes.data(), before->end, filling_->memory);
  filling_->size = filling_->first;
  filling_->at -= filling_->first;
  filling_->first = 0;
  edges_.erase(before);
}

// Its whole pages.
void WriteBehind::hand_over() {
  if (filling_ == nullptr) return;
  Piece& piece = *std::exchange(filling_, nullptr);
  const auto cut = [&](std::size_t from, std::size_t size) {
    keep_edge(piece.file, piece.at + from, {piece.data() + from, size});
    piece.size -= size;
  };
  if (const std::size_t tail = piece.end() % base::kIoAlignment; tail > 0 && tail < piece.size)
    cut(piece.size - tail, tail);
  if (piece.first > 0 || piece.size < base::kIoAlignment) {
    const std::size_t head = std::min(piece.size, base::kIoAlignment - piece.first);
    cut(0, head);
    piece.at += head;
    piece.first += head;
  }
  {
    const std::lock_guard lock(mutex_);
    if (piece.size > 0) {
      full_.push_back(&piece);
    } else {
      empty_.push_back(&piece);
    }
  }
  changed_.notify_all();
}

void WriteBehind::keep_edge(std::uint32_t file, std::uint64_t at,
                            std::span<const std::byte> bytes) {
  const std::uint64_t page = at / base::kIoAlignment;
  const std::size_t begin = at % base::kIoAlignment, end = begin + bytes.size();
  auto edge = std::ranges::find_if(
      edges_, [&](const Edge& other) { return other.file == file && other.page == page; });
  if (edge != edges_.end() && edge->end != begin && edge->begin != end) {
    write_edge(*edge);
    edges_.erase(edge);
    edge = edges_.end();
  }
  if (edge == edges_.end()) {
    if (edges_.size() == kMostEdges) {
      write_edge(edges_.front());
      edges_.pop_front();
    }
    edge = edges_.insert(edges_.end(), Edge{file, page, begin, begin, {}});
  }
  std::ranges::copy(bytes, edge->bytes.data() + begin);
  edge->begin = std::min(edge->begin, begin);
  edge->end = std::max(edge->end, end);
}

void WriteBehind::write_edge(const Edge& edge) {
  files_[edge.file].write(std::span(edge.bytes).subspan(edge.begin, edge.end - edge.begin),
                          edge.page * base::kIoAlignment + edge.begin);
}

void WriteBehind::finish() {
  hand_over();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return empty_.size() == pieces_.size(); });
  if (error_) std::rethrow_exception(error_);
  for (const Edge& edge : edges_) write_edge(edge);
  edges_.clear();
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
