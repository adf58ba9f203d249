// SPDX-License-Identifier: Apache-2.0
// buffered_window.hpp: prevents a file without O_DIRECT from filling the page cache.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::swap {
// Starts write-back early, leaves at most some 64 MiB of writes dirty, and drops written and read
// pages from the cache. Does nothing for a file opened with O_DIRECT. One thread.
class BufferedWindow {
 public:
  explicit BufferedWindow(int fd) noexcept;
  // Returns 0, or the errno with which the kernel failed to write back earlier writes.
  int wrote(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept;
  void read(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept;

 private:
  struct Range {
    std::uint64_t offset_bytes, size_bytes;
  };
  int write_back_oldest() noexcept;

  int fd_;
  bool direct_;
  std::array<Range, 64> dirty_;  // a ring
  std::size_t first_ = 0, count_ = 0;
  std::uint64_t dirty_bytes_ = 0;
};
}  // namespace headrace::swap
