// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "device/cuda_under_test.hpp"
#include "device/simulated_cuda.hpp"

namespace headrace::device {
std::shared_ptr<Device> make_cuda_under_test(std::uint64_t seed, const CudaOptions& options) {
  simulated_cuda::plug_in({.seed = seed, .late_microseconds_max = 50});
  return make_cuda_device(options);
}

Stream make_foreign_stream() {
  cudaStream_t stream = nullptr;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return {reinterpret_cast<std::uintptr_t>(stream)};
}
}  // namespace headrace::device
