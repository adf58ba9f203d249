// SPDX-License-Identifier: Apache-2.0
// cuda_pins.hpp: host memory that is registered with CUDA, and copies that know where it ends.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>

#include "device/cuda_context.hpp"

namespace headrace::device::cuda {
// Large ranges are registered in pieces: one registration of 512 GiB or more fails in some drivers.
// No copy may reach over the end of one.
// Threads: any, with the GPU in use (Context::Use).
class Pins {
 public:
  explicit Pins(Context& context, std::size_t piece_bytes = std::size_t{1} << 30)
      : context_(context), piece_bytes_(piece_bytes) {}

  // Throws kUnsupported; nothing of the range is registered then.
  void pin(void* data, std::size_t size_bytes);
  void unpin(void* data, std::size_t size_bytes) noexcept;
  // Queues copies of all of it.
  void copy(cudaStream_t stream, void* target, const void* source, std::size_t size_bytes);

 private:
  // Bytes from `address` that lie in one registration, or in none; at most size_bytes.
  std::size_t stretch(const void* address, std::size_t size_bytes);

  Context& context_;
  const std::size_t piece_bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> pieces_;  // begin, bytes
};
}  // namespace headrace::device::cuda
