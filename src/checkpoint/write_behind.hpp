// SPDX-License-Identifier: Apache-2.0
// write_behind.hpp: writes pieces of files while the caller prepares the next ones.
//
// A piece is copied to a buffer. Pieces that follow each other in a file share one. Threads write
// full buffers, around the page cache, where each costs another copy. They write whole pages: what
// is left of a page at a buffer's ends waits for the bytes beside it. A write of less than a page
// goes through the cache, and waits for all other writes to its file.
//
// Example: the caller gives bytes [100, 2 MiB - 10) of file 0, and then bytes of file 1. The first
// buffer takes what lies before 1 MiB, and a thread begins to write it, without its first page. A
// second buffer takes the rest, and a thread begins to write it when file 1 needs the third, but
// without its last page, which is not full. That begins the buffer of the bytes from 2 MiB - 10 on.
#pragma once
#include <array>
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
  static constexpr std::size_t kPieces = 8, kPieceBytes = base::kMiB;
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
    std::size_t first = 0, size = 0;  // in memory

    std::byte* data() const noexcept { return memory + first; }
    std::uint64_t end() const noexcept { return at + size; }
    // A piece ends with a page, so that the next one begins with one.
    std::size_t room() const noexcept { return kPieceBytes - first - size; }
  };
  // A part of a page.
  struct Edge {
    std::uint32_t file = 0;
    std::uint64_t page = 0;  // its number
    std::size_t begin = 0, end = 0;
    std::array<std::byte, base::kIoAlignment> bytes;
  };
  static constexpr std::size_t kMostEdges = 16;  // a tile's streams have one each

  void start();
  Piece& empty_piece();
  void begin_piece(std::uint32_t file, std::uint64_t at);
  void hand_over();
  void keep_edge(std::uint32_t file, std::uint64_t at, std::span<const std::byte> bytes);
  void write_edge(const Edge& edge);
  void write_pieces() noexcept;

  std::vector<File>& files_;
  std::span<std::byte> memory_;
  std::unique_ptr<pinned::Arena> own_;  // on huge pages: small ones halve a drive's speed
  std::vector<Piece> pieces_;
  Piece* filling_ = nullptr;
  std::deque<Edge> edges_;  // the oldest first
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<Piece*> empty_;
  std::deque<Piece*> full_;
  std::exception_ptr error_;
  bool ending_ = false;
};
}  // namespace headrace::checkpoint
