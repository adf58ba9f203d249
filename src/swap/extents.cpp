// SPDX-License-Identifier: Apache-2.0
#include "swap/extents.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "base/units.hpp"

namespace headrace::swap {
ExtentAllocator::ExtentAllocator(std::uint32_t file, std::uint64_t file_size_bytes)
    : file_(file), file_bytes_(file_size_bytes) {
  HEADRACE_CHECK(file_size_bytes % base::kIoAlignment == 0, "a swap file is made of whole pages");
}

std::optional<Extent> ExtentAllocator::allocate(std::uint64_t size_bytes) {
  HEADRACE_CHECK(size_bytes > 0, "an extent has at least one byte");
  if (size_bytes > file_bytes_) return std::nullopt;  // so that rounding does not overflow
  const std::uint64_t size = base::align_up(size_bytes, base::kIoAlignment);
  std::uint64_t at = full_to_;
  for (auto next = allocated_.lower_bound(at); next != allocated_.end(); ++next) {
    if (next->first - at >= size) break;
    at = next->first + next->second;
  }
  if (file_bytes_ - at < size) return std::nullopt;
  allocated_.emplace(at, size);
  if (at == full_to_) full_to_ += size;
  return Extent{file_, at, size};
}

bool ExtentAllocator::take(const Extent& extent) {
  const std::uint64_t begin = extent.offset_bytes;
  if (extent.size_bytes > file_bytes_ || begin > file_bytes_ - extent.size_bytes) return false;
  const auto after = allocated_.lower_bound(begin);
  if (after != allocated_.end() && after->first < begin + extent.size_bytes) return false;
  if (after != allocated_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second > begin) return false;
  }
  allocated_.emplace(begin, extent.size_bytes);
  for (auto next = allocated_.find(full_to_); next != allocated_.end();
       next = allocated_.find(full_to_))
    full_to_ += next->second;
  return true;
}

void ExtentAllocator::free(const Extent& extent) {
  const auto owned = allocated_.find(extent.offset_bytes);
  HEADRACE_CHECK(
      extent.file == file_ && owned != allocated_.end() && owned->second == extent.size_bytes,
      "only a whole allocated extent of this file can be freed");
  allocated_.erase(owned);
  full_to_ = std::min(full_to_, extent.offset_bytes);
}

std::uint64_t ExtentAllocator::free_bytes() const noexcept {
  std::uint64_t left = file_bytes_;
  for (const auto& [offset, size] : allocated_) left -= size;
  return left;
}
}  // namespace headrace::swap
