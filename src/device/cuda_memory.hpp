// SPDX-License-Identifier: Apache-2.0
// cuda_memory.hpp: a GPU's memory, by cudaMalloc or the program's allocator.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

#include "headrace/cuda.hpp"

namespace headrace::device::cuda {
// Threads: any, with the GPU in use (Context::Use).
class Memory {
 public:
  // Throws kInvalidArgument for an allocator with one function of two.
  explicit Memory(const CudaAllocator& allocator);

  // Zero-filled by way of `stream`; null when there is none left.
  void* allocate(std::size_t size_bytes, cudaStream_t stream) noexcept;
  void deallocate(void* data, std::size_t size_bytes) noexcept;

 private:
  const CudaAllocator allocator_;
};
}  // namespace headrace::device::cuda
