// SPDX-License-Identifier: Apache-2.0
// extents.hpp: allocates the ranges of a swap file.
#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace headrace::swap {
struct Extent {
  std::uint32_t file = 0;  // index of the drive
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// First fit over one file of fixed size; offsets and sizes are multiples of kIoAlignment. It does
// only the bookkeeping. One thread.
class ExtentAllocator {
 public:
  ExtentAllocator(std::uint32_t file, std::uint64_t file_size_bytes);
  std::optional<Extent> allocate(std::uint64_t size_bytes);  // rounded up to kIoAlignment
  // Takes this one, for a file that was written earlier. False: it overlaps another, or the end.
  bool take(const Extent& extent);
  void free(const Extent& extent);  // checks that it was allocated
  std::uint64_t free_bytes() const noexcept;

 private:
  std::uint32_t file_;
  std::uint64_t file_bytes_;
  std::uint64_t full_to_ = 0;                         // everything before it is allocated
  std::map<std::uint64_t, std::uint64_t> allocated_;  // offset -> size
};
}  // namespace headrace::swap
