// SPDX-License-Identifier: Apache-2.0
// cuda_pins.hpp: registers host memory with CUDA, and splits copies at the ends of registrations.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>

#include "device/cuda_context.hpp"

namespace headrace::device::cuda {
// Registers large ranges in pieces, since a registration of 512 GiB or more fails in some drivers.
// No copy may reach past the end of a piece. Threads: any, with the GPU in use (Context::Use).
class Pins {
 public:
  explicit Pins(Context& context, std::size_t piece_bytes = std::size_t{1} << 30)
      : context_(context), piece_bytes_(piece_bytes) {}

  // Throws kUnsupported, with nothing of the range registered.
  void pin(void* data, std::size_t size_bytes);
  void unpin(void* data, std::size_t size_bytes) noexcept;
  // Queues copies of the whole range.
  void copy(cudaStream_t stream, void* target, const void* source, std::size_t size_bytes);

 private:
  // The number of bytes from `address` that lie in one registration, or in none; at most
  // size_bytes.
  std::size_t stretch(const void* address, std::size_t size_bytes);

  Context& context_;
  const std::size_t piece_bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> pieces_;  // begin, bytes
};
}  // namespace headrace::device::cuda
