// SPDX-License-Identifier: Apache-2.0
// cuda_memory.hpp: a GPU's memory, from cudaMalloc or the program's allocator.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

#include "headrace/cuda.hpp"

namespace headrace::device::cuda {
// Threads: any, with the GPU in use (Context::Use).
class Memory {
 public:
  // Throws kInvalidArgument for an allocator with only one of its two functions.
  explicit Memory(const CudaAllocator& allocator);

  // Zero-filled, on `stream`; null if there is no memory left.
  void* allocate(std::size_t size_bytes, cudaStream_t stream) noexcept;
  void deallocate(void* data, std::size_t size_bytes) noexcept;

 private:
  const CudaAllocator allocator_;
};
}  // namespace headrace::device::cuda
