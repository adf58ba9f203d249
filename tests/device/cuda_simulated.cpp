// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "device/computing_device.hpp"
#include "device/cuda_under_test.hpp"
#include "device/simulated_cuda.hpp"

namespace headrace::device {
std::shared_ptr<Device> make_cuda_under_test(std::uint64_t seed, const CudaOptions& options,
                                             std::uint32_t hardware_queues) {
  simulated_cuda::plug_in(
      {.seed = seed, .late_microseconds_max = 50, .hardware_queues = hardware_queues});
  return make_cuda_device(options);
}

std::vector<std::uint32_t> hardware_queues_under_test() { return {0, 1, 2, 8, 32}; }

std::shared_ptr<ComputingDevice> make_computing_cuda_device(std::uint64_t seed) {
  const std::vector<std::uint32_t> queues = hardware_queues_under_test();
  return std::make_shared<DeviceWithLaunch>(
      make_cuda_under_test(seed, {}, queues[seed % queues.size()]),
      [](Stream stream, std::function<void()> kernel) {
        simulated_cuda::launch(stream.handle, std::move(kernel));
      });
}

Stream make_foreign_stream() {
  cudaStream_t stream = nullptr;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return {reinterpret_cast<std::uintptr_t>(stream)};
}
}  // namespace headrace::device
