// SPDX-License-Identifier: Apache-2.0
// headrace/torch/cuda.hpp: a CUDA device for Offload that shares torch's memory.
//
//   const at::Device gpu(at::kCUDA, 0);
//   headrace::torch::Offload offload(settings, {.device = headrace::torch::make_cuda_device(gpu)},
//                                    gpu);
//
// The program must link or load the CUDA part of LibTorch (libtorch_cuda).
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <memory>

#include "headrace/cuda.hpp"
#include "headrace/torch/place.hpp"

namespace headrace::torch {
// Makes a device with headrace::make_cuda_device(), and lets it take the memory for parameters from
// torch's caching allocator. So torch's memory limit and statistics include that memory.
// Throws what headrace::make_cuda_device() throws, and kUnsupported if torch does not see `gpu`.
inline std::shared_ptr<Device> make_cuda_device(at::Device gpu) {
  struct TorchMemory {
    at::Device device;
    static void* allocate(void* context, std::size_t size_bytes) {
      const at::Device device = static_cast<TorchMemory*>(context)->device;
      try {
        const c10::DeviceGuard guard(device);
        void* const data = c10::GetAllocator(c10::kCUDA)->raw_allocate(size_bytes);
        // Work of the memory's earlier users may still be queued on the stream for which torch
        // allocated it.
        detail::Place(device).torch_stream().synchronize();
        return data;
      } catch (...) {  // out of memory, or a failed GPU, which the engine's next call reports
        return nullptr;
      }
    }
    static void deallocate(void* context, void* data, std::size_t) {
      try {
        const c10::DeviceGuard guard(static_cast<TorchMemory*>(context)->device);
        c10::GetAllocator(c10::kCUDA)->raw_deallocate(data);
      } catch (...) {  // the GPU has failed: its memory is freed with the process
      }
    }
  };
  const detail::Place place(gpu);
  at::globalContext().lazyInitDevice(c10::kCUDA);  // otherwise the allocator does not exist yet
  auto memory = std::make_shared<TorchMemory>(TorchMemory{place.device()});
  CudaOptions options;
  options.ordinal = place.device().index();
  options.allocator = {memory.get(), &TorchMemory::allocate, &TorchMemory::deallocate};
  std::shared_ptr<Device> device = headrace::make_cuda_device(options);
  return {device.get(), [device, memory](Device*) mutable {
            device.reset();
            memory.reset();
          }};
}
}  // namespace headrace::torch
