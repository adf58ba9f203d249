// SPDX-License-Identifier: Apache-2.0
// cuda_on_gpu.cpp: tests on a GPU; without one they are skipped, with the reason.
#include <gtest/gtest.h>

#include <cstdio>

#include "device/cuda_under_test.hpp"

#ifdef HEADRACE_CUDA
#include <cuda_runtime_api.h>

namespace headrace::device {
std::shared_ptr<Device> make_cuda_under_test(std::uint64_t, const CudaOptions& options) {
  return make_cuda_device(options);
}

Stream make_foreign_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  return {reinterpret_cast<std::uintptr_t>(stream)};
}
}  // namespace headrace::device
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const headrace::CudaFacts facts = headrace::cuda_facts(); !facts.missing.empty()) {
    std::printf("skipped: %s\n", facts.missing.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
