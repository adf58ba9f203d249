// SPDX-License-Identifier: Apache-2.0
#include "device/host_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/units.hpp"

namespace headrace::device {
namespace {
constexpr std::size_t kSmallAlignment = 256;
constexpr std::size_t kPage = 4096;

std::size_t mapped_bytes(std::size_t size_bytes) { return base::align_up(size_bytes, kPage); }

// Maps one huge page more than is needed and gives the ends back, so that the range starts on a 2
// MiB boundary.
void* map_aligned(std::size_t size_bytes) noexcept {
  const std::size_t kept = mapped_bytes(size_bytes);
  if (kept < size_bytes || kept + base::kHugePage < kept) return nullptr;
  void* mapping = ::mmap(nullptr, kept + base::kHugePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t head = base::align_up(address, base::kHugePage) - address;
  if (head != 0) ::munmap(begin, head);
  const std::size_t tail = base::kHugePage - head;
  if (tail != 0) ::munmap(begin + head + kept, tail);
  // Advice: where the kernel knows it not, pages are small or inherited, and nothing else changes.
  (void)::madvise(begin + head, kept, MADV_HUGEPAGE);
  (void)::madvise(begin + head, kept, MADV_DONTFORK);
  return begin + head;
}
}  // namespace

void* allocate_host_memory(std::size_t size_bytes) noexcept {
  if (size_bytes >= base::kHugePage) return map_aligned(size_bytes);
  const std::size_t rounded =
      size_bytes == 0 ? kSmallAlignment : base::align_up(size_bytes, kSmallAlignment);
  void* data = std::aligned_alloc(kSmallAlignment, rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return data;
}

void free_host_memory(void* data, std::size_t size_bytes) noexcept {
  if (data == nullptr) return;
  if (size_bytes >= base::kHugePage) {
    ::munmap(data, mapped_bytes(size_bytes));
  } else {
    std::free(data);
  }
}
}  // namespace headrace::device
