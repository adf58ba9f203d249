// SPDX-License-Identifier: Apache-2.0
#include "async/task.hpp"

#include <new>

namespace headrace::async::detail {
namespace {
struct alignas(16) FrameHeader {
  FrameArena* arena;  // null: the heap
};
static_assert(sizeof(FrameHeader) == 16);
}  // namespace

void* take_frame(std::size_t size_bytes) {
  FrameArena* const arena = FrameArena::current();
  const std::size_t whole = size_bytes + sizeof(FrameHeader);
  void* const memory = arena != nullptr ? arena->take(whole) : ::operator new(whole);
  return ::new (memory) FrameHeader{arena} + 1;
}

void give_back_frame(void* frame, std::size_t size_bytes) noexcept {
  FrameHeader* const header = static_cast<FrameHeader*>(frame) - 1;
  FrameArena* const arena = header->arena;
  if (arena != nullptr) {
    arena->give_back(header, size_bytes + sizeof(FrameHeader));
  } else {
    ::operator delete(header);
  }
}
}  // namespace headrace::async::detail
