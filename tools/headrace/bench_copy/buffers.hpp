// SPDX-License-Identifier: Apache-2.0
// buffers.hpp: memory on both sides of the link that copies go between, for the length of a run.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bench_copy/transfers.hpp"
#include "headrace/device.hpp"

namespace headrace::tools {
// Four in host memory, two of them pinned, and two on the device, all of one size. A buffer on
// either side serves copies to the device, another those to the host, so that both may go at once.
class CopyBuffers {
 public:
  struct Needed {
    std::uint64_t host_bytes = 0, pinned_bytes = 0, device_bytes = 0;
  };
  // With what the device keeps for itself.
  static Needed needed(const Device& device, std::uint64_t bytes_each);

  // Throws headrace::Error: kOutOfBudget, and what Device::pin() throws.
  CopyBuffers(Device& device, std::uint64_t bytes_each);
  ~CopyBuffers();
  CopyBuffers(const CopyBuffers&) = delete;
  CopyBuffers& operator=(const CopyBuffers&) = delete;

  // `way` is one of both.
  std::span<std::byte> host(Way way, HostMemory memory) const {
    return {static_cast<std::byte*>(host_[index(way) + 2 * static_cast<std::size_t>(memory)]),
            bytes_};
  }
  std::byte* device(Way way) const { return static_cast<std::byte*>(device_memory_[index(way)]); }

 private:
  static std::size_t index(Way way) { return way == Way::kToDevice ? 0 : 1; }
  void free_all() noexcept;

  Device& device_;
  const std::uint64_t bytes_;
  std::array<void*, 4> host_{};  // pinned ones first
  std::array<bool, 2> pinned_{};
  std::array<void*, 2> device_memory_{};
};
}  // namespace headrace::tools
