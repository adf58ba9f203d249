// SPDX-License-Identifier: Apache-2.0
// arena.hpp: the single mapping that holds all of an engine's host memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.hpp"
#include "headrace/device.hpp"

namespace headrace::pinned {
// An anonymous mapping, 2 MiB aligned, on huge pages if the machine provides them. It is zeroed and
// populated here, so that a lack of memory is an error now and not a kill later, and neither
// inherited by fork (MADV_DONTFORK) nor dumped. May throw headrace::Error kOutOfBudget.
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
  // Page-locks all of it for `device`, which outlives the arena. If Device::pin() throws, this
  // throws the same, and the arena remains usable.
  void pin(Device& device) {
    device.pin(bytes_.data(), bytes_.size());
    pinned_by_ = &device;
  }
  // Gives the pages back to the system, not pinned any more. The addresses remain. Nothing may
  // touch them before populate(), which gives a range zeroed pages again, and returns an errno or
  // 0. Several threads may populate different ranges.
  void discard() noexcept;
  int populate(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept;
  // Throws as the constructor does where that failed.
  [[noreturn]] void refuse_populating(int sys_errno) const;
  // Keeps the mapping until the process ends: the kernel may still write into it.
  void leak() noexcept { leaked_ = true; }

 private:
  std::span<std::byte> bytes_;
  Device* pinned_by_ = nullptr;
  bool leaked_ = false;
};
}  // namespace headrace::pinned
