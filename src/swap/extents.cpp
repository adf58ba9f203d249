// SPDX-License-Identifier: Apache-2.0
#include "swap/extents.hpp"

#include <iterator>

#include "base/check.hpp"
#include "base/units.hpp"

namespace headrace::swap {
ExtentAllocator::ExtentAllocator(std::uint32_t file, std::uint64_t file_size_bytes) : file_(file) {
  HEADRACE_CHECK(file_size_bytes % base::kIoAlignment == 0, "a swap file is made of whole pages");
  if (file_size_bytes > 0) free_.emplace(0, file_size_bytes);
}

std::optional<Extent> ExtentAllocator::allocate(std::uint64_t size_bytes) {
  HEADRACE_CHECK(size_bytes > 0, "an extent has at least one byte");
  if (size_bytes > free_bytes())
    return std::nullopt;  // also keeps the rounding below from overflowing
  const std::uint64_t size = base::align_up(size_bytes, base::kIoAlignment);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, available] = *range;
    if (available < size) continue;
    free_.erase(range);
    if (available > size) free_.emplace(offset + size, available - size);
    allocated_.emplace(offset, size);
    return Extent{file_, offset, size};
  }
  return std::nullopt;
}

void ExtentAllocator::free(const Extent& extent) {
  const auto owned = allocated_.find(extent.offset_bytes);
  HEADRACE_CHECK(
      extent.file == file_ && owned != allocated_.end() && owned->second == extent.size_bytes,
      "only a whole allocated extent of this file can be freed");
  allocated_.erase(owned);
  auto range = free_.emplace(extent.offset_bytes, extent.size_bytes).first;
  if (const auto after = std::next(range);
      after != free_.end() && range->first + range->second == after->first) {
    range->second += after->second;
    free_.erase(after);
  }
  if (range == free_.begin()) return;
  if (const auto before = std::prev(range); before->first + before->second == range->first) {
    before->second += range->second;
    free_.erase(range);
  }
}

std::uint64_t ExtentAllocator::free_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& [offset, size] : free_) sum += size;
  return sum;
}
}  // namespace headrace::swap
