// SPDX-License-Identifier: Apache-2.0
// io_buffer.hpp: a small separate buffer for a probe or a file's first bytes, aligned for O_DIRECT.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/units.hpp"

namespace headrace::swap {
struct FreeIoBuffer {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using IoBuffer = std::unique_ptr<std::byte, FreeIoBuffer>;

// Zeroed. size_bytes: a multiple of base::kIoAlignment.
inline IoBuffer make_io_buffer(std::size_t size_bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(base::kIoAlignment, size_bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, size_bytes);
  return IoBuffer(memory);
}
}  // namespace headrace::swap
