// SPDX-License-Identifier: Apache-2.0
// write_behind.hpp: writes pieces of files while the caller prepares the next ones.
//
// A piece is copied to a buffer. Pieces that follow each other in a file share one. Threads write
// full buffers, around the page cache, where each costs another copy.
//
// Example: the caller gives bytes [100, 3 MiB) of file 0, and then bytes of file 1. The first
// buffer takes what lies before 2 MiB, and a thread begins to write it. A second buffer takes the
// rest, and a thread begins to write it when file 1 needs the third.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/files.hpp"
#include "pinned/arena.hpp"

namespace headrace::checkpoint {
// For one thread.
class WriteBehind {
 public:
  static constexpr std::size_t kPieces = 4, kPieceBytes = 2 * base::kMiB;
  // `files` outlives it, and does not change. `memory`: of kPieces pieces, aligned to pages; empty:
  // its own.
  explicit WriteBehind(std::vector<File>& files, std::span<std::byte> memory = {})
      : files_(files), memory_(memory) {}
  ~WriteBehind();  // what was not written by then is dropped
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Waits if all buffers are full. Throws the error of an earlier write.
  void write(std::uint32_t file, std::uint64_t at, std::span<const std::byte> bytes);
  // Returns when all is written. Throws the first error.
  void finish();

 private:
  // Bytes of a file, which lie in memory as they do in the file's pages.
  struct Piece {
    std::byte* memory = nullptr;
    std::uint32_t file = 0;
    std::uint64_t at = 0;
    std::size_t size = 0;

    std::byte* data() const noexcept;
    std::uint64_t end() const noexcept { return at + size; }
    std::size_t room() const noexcept;
  };
  void start();
  Piece& empty_piece();
  void hand_over();
  void write_pieces() noexcept;

  std::vector<File>& files_;
  std::span<std::byte> memory_;
  std::unique_ptr<pinned::Arena> own_;  // on huge pages: small ones halve a drive's speed
  std::vector<Piece> pieces_;
  Piece* filling_ = nullptr;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<Piece*> empty_;
  std::deque<Piece*> full_;
  std::exception_ptr error_;
  bool ending_ = false;
};
}  // namespace headrace::checkpoint
