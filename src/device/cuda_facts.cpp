// SPDX-License-Identifier: Apache-2.0
// cuda_facts.cpp: the machine's GPUs and their driver, and the reason if none can be used.
#include <cuda_runtime_api.h>

#include <exception>

#include "device/cuda_context.hpp"
#include "device/cuda_kernels.hpp"
#include "headrace/cuda.hpp"

namespace headrace {
namespace {
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string why_none(const CudaFacts& facts, cudaError_t error) {
  if (facts.driver_version == 0) {
    return "this machine has no NVIDIA driver (libcuda.so.1 was not found): the device is the CPU. "
           "Install the driver that goes with the GPU; in a container start it with GPU access.";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "NVIDIA's driver serves CUDA " + version_text(facts.driver_version) +
           ", and this build needs " + version_text(facts.runtime_version) +
           ": install a newer driver, or build with an older toolkit";
  }
  if (error == cudaErrorNoDevice) {
    return "NVIDIA's driver is here, and shows no GPU: see whether CUDA_VISIBLE_DEVICES hides it, "
           "whether this container was given one, and what nvidia-smi says";
  }
  return std::string("NVIDIA's driver answers ") + cudaGetErrorName(error) + " (" +
         cudaGetErrorString(error) + "): see what nvidia-smi says";
}

CudaGpu facts_of(int ordinal) {
  CudaGpu gpu;
  gpu.ordinal = ordinal;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) {
    gpu.name = properties.name;
    gpu.compute_major = properties.major;
    gpu.compute_minor = properties.minor;
    gpu.memory_bytes = properties.totalGlobalMem;
    gpu.copy_engines = properties.asyncEngineCount;
  }
  char bus[32] = "";
  if (cudaDeviceGetPCIBusId(bus, sizeof(bus), ordinal) == cudaSuccess) gpu.pci_bus_id = bus;
  int node = -1;
  if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, ordinal) == cudaSuccess)
    gpu.numa_node = node;
  gpu.served = device::cuda::serves(device::cuda::kernel_architectures(), gpu.compute_major,
                                    gpu.compute_minor);
  return gpu;
}

// Makes a context on each GPU.
void ask_free_memory(CudaFacts& facts) {
  int before = 0;
  (void)cudaGetDevice(&before);
  for (CudaGpu& gpu : facts.gpus) {
    std::size_t free_bytes = 0, total_bytes = 0;
    if (cudaSetDevice(gpu.ordinal) == cudaSuccess &&
        cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
      gpu.free_bytes = free_bytes;
    (void)cudaGetLastError();
  }
  (void)cudaSetDevice(before);
}

void look(CudaFacts& facts) {
  facts.built = true;
  facts.architectures = device::cuda::kernel_architectures();
  (void)cudaRuntimeGetVersion(&facts.runtime_version);
  (void)cudaDriverGetVersion(&facts.driver_version);
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (counted != cudaSuccess || count == 0) {
    facts.missing = why_none(facts, counted == cudaSuccess ? cudaErrorNoDevice : counted);
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) facts.gpus.push_back(facts_of(ordinal));
  (void)cudaGetLastError();
}
}  // namespace

CudaFacts cuda_facts(CudaLook how) noexcept {
  CudaFacts facts;
  try {
    look(facts);
    if (how == CudaLook::kWithFreeMemory) ask_free_memory(facts);
  } catch (const std::exception& error) {
    facts.missing = error.what();
  }
  return facts;
}
}  // namespace headrace
