// SPDX-License-Identifier: Apache-2.0
// arena.hpp: the one mapping that all of an engine's host memory is cut from.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.hpp"
#include "headrace/device.hpp"

namespace headrace::pinned {
// Anonymous, 2 MiB aligned, on huge pages where the machine gives them, populated here (so that
// running out is an error now, not a kill later), not inherited by fork (MADV_DONTFORK) nor dumped.
// Bytes are zero. Throws headrace::Error kOutOfBudget when the kernel refuses.
class Arena {
 public:
  Arena(std::uint64_t size_bytes, std::uint32_t populate_threads);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::uint64_t size_bytes() const noexcept { return bytes_.size(); }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  std::span<std::byte> range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const noexcept {
    return bytes_.subspan(offset_bytes, size_bytes);
  }
  // Page-locks all of it for `device`, which outlives this; what Device::pin() throws comes
  // through, and the arena serves without.
  void pin(Device& device) {
    device.pin(bytes_.data(), bytes_.size());
    pinned_by_ = &device;
  }
  // Keeps the mapping for ever: the kernel may still write into it.
  void leak() noexcept { leaked_ = true; }

 private:
  std::span<std::byte> bytes_;
  Device* pinned_by_ = nullptr;
  bool leaked_ = false;
};
}  // namespace headrace::pinned
