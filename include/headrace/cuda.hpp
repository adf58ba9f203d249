// SPDX-License-Identifier: Apache-2.0
// headrace/cuda.hpp: an NVIDIA GPU as the engine's device, and the list of the machine's GPUs.
//
//   headrace::Engine engine(settings, {.device = headrace::make_cuda_device({.ordinal = 0})});
//
// Needs a build with HEADRACE_CUDA and, at run time, the NVIDIA driver; no other header needs
// either. This file includes no CUDA header: a Stream's handle is a cudaStream_t, which may be any
// of the program's streams.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headrace/device.hpp"

namespace headrace {
// The program's own allocator for device memory, so that the engine and the program share one pool.
// It is called on the threads that freeze and close the engine.
struct CudaAllocator {
  void* context = nullptr;
  // Returns 256-byte aligned memory, usable on every stream at once; null when there is none left.
  void* (*allocate)(void* context, std::size_t size_bytes) = nullptr;
  void (*deallocate)(void* context, void* data, std::size_t size_bytes) = nullptr;
};

struct CudaOptions {
  // The GPU's number among those in CUDA_VISIBLE_DEVICES, counted from 0. Use one process per GPU:
  // let each process see only its own GPU, as number 0, or give the GPU's number here.
  int ordinal = 0;
  CudaAllocator allocator = {};  // both functions null: cudaMalloc
  // The number of threads that add up gradients in host memory. They do this if gradients are
  // accumulated, or if the sum has a wider dtype than the gradient. 0: a quarter of the CPUs that
  // this process may use, but at least 1 and at most 8.
  std::uint32_t host_threads = 0;
};

// Makes a device for one or several engines. The destructor of the device waits for the work that
// the engines left queued.
//   Streams  0 is CUDA's default stream. You may pass any cudaStream_t of the same GPU. Streams
//            that create_stream() makes do not wait for the default one. The engine orders its work
//            on the stream that it is given. Its copies run beside that stream, on streams of their
//            own. Work queued through this device waits for earlier work queued through it, and so
//            does synchronize(). The program's own kernels do not wait for that work.
//   Memory   overhead(): 24 MiB on the GPU and as much in pinned host memory. Gradients leave the
//            GPU through this memory. The driver's context, some 300 to 600 MB of GPU memory, is
//            not counted.
//   Errors   CUDA reports many errors later than they occur. The device keeps the first error. The
//            call that meets this error, and every later call, throw it as kFailed. The text names
//            the operation that met the error and the operations queued before that one. No engine
//            waits for a GPU that has failed. A CUDA context does not recover, so restart the
//            process.
// Throws kUnsupported for a build without HEADRACE_CUDA, a driver that is missing or too old, an
//        ordinal that no GPU has, or a GPU that the kernels were not compiled for. kOutOfBudget if
//        there is no room for the overhead.
std::shared_ptr<Device> make_cuda_device(const CudaOptions& options = {});

// The memory that make_cuda_device() takes, for use in plans. The result is the same in every
// build.
DeviceOverhead cuda_overhead() noexcept;

struct CudaGpu {
  int ordinal = 0;
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "0000:1b:00.0"
  int compute_major = 0, compute_minor = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;  // 0: not asked for
  int copy_engines = 0;          // 2: both directions at once
  int numa_node = -1;            // of the nearest host memory; -1: unknown
  bool served = false;           // the build has kernels for it
};
struct CudaFacts {
  bool built = false;         // with HEADRACE_CUDA
  int runtime_version = 0;    // of the build; 13000: CUDA 13.0
  int driver_version = 0;     // the newest CUDA that the driver supports; 0: no driver
  std::string architectures;  // the kernels' targets: "80 86 89 90 100 120"
  std::vector<CudaGpu> gpus;
  std::string missing;  // why there is no usable GPU, and how to fix it; empty: there is one
};
// Only a process with a context on a GPU can read that GPU's free memory. Creating the context
// takes tenths of a second, and the context occupies some 300 to 600 MB of GPU memory until the
// process ends.
enum class CudaLook { kWithoutContext, kWithFreeMemory };
CudaFacts cuda_facts(CudaLook how = CudaLook::kWithoutContext) noexcept;
}  // namespace headrace
