// SPDX-License-Identifier: Apache-2.0
// staging.hpp: pinned host memory for a device's bytes if a transport cannot access the device's
// memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "headrace/device.hpp"

namespace headrace::collective {
class Staging {
 public:
  // Throws kOutOfBudget if the host has no room. For 0 bytes it allocates nothing.
  Staging(std::shared_ptr<Device> device, std::uint64_t size_bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  // The size of one of `parts` equal parts: a multiple of 256 bytes.
  std::uint64_t part_bytes(std::uint32_t parts) const noexcept;
  std::byte* part(std::uint32_t index, std::uint32_t parts) const noexcept {
    return data_ + index * part_bytes(parts);
  }

 private:
  std::shared_ptr<Device> device_;
  std::uint64_t size_bytes_;
  std::byte* data_ = nullptr;
};
}  // namespace headrace::collective
