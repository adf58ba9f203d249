// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_memory.hpp"

#include "headrace/error.hpp"

namespace headrace::device::cuda {
Memory::Memory(const CudaAllocator& allocator) : allocator_(allocator) {
  if ((allocator.allocate == nullptr) == (allocator.deallocate == nullptr)) return;
  throw Error(Code::kInvalidArgument,
              "a CudaAllocator has one function of two: memory could not be taken, or not given "
              "back. Give both, or neither.");
}

void* Memory::allocate(std::size_t size_bytes, cudaStream_t stream) noexcept {
  void* data = nullptr;
  if (allocator_.allocate != nullptr) {
    data = allocator_.allocate(allocator_.context, size_bytes);
  } else if (cudaMalloc(&data, size_bytes == 0 ? 1 : size_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  if (data == nullptr) return nullptr;
  if (cudaMemsetAsync(data, 0, size_bytes, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess)
    return data;
  (void)cudaGetLastError();
  deallocate(data, size_bytes);
  return nullptr;
}

void Memory::deallocate(void* data, std::size_t size_bytes) noexcept {
  if (data == nullptr) return;
  if (allocator_.deallocate != nullptr) {
    (void)cudaDeviceSynchronize();  // as cudaFree does by itself
    allocator_.deallocate(allocator_.context, data, size_bytes);
  } else {
    (void)cudaFree(data);
    (void)cudaGetLastError();
  }
}
}  // namespace headrace::device::cuda
