// SPDX-License-Identifier: Apache-2.0
// cuda_on_gpu.cpp: tests on a GPU; without one they are skipped, with the reason.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "device/computing_device.hpp"
#include "device/cuda_under_test.hpp"

#ifdef HEADRACE_CUDA
#include <cuda_runtime_api.h>

namespace headrace::device {
std::shared_ptr<Device> make_cuda_under_test(std::uint64_t, const CudaOptions& options,
                                             std::uint32_t) {
  return make_cuda_device(options);
}

std::vector<std::uint32_t> hardware_queues_under_test() { return {0}; }

// In managed memory, which the host may touch too.
std::shared_ptr<ComputingDevice> make_computing_cuda_device(std::uint64_t) {
  int touches = 0;
  (void)cudaDeviceGetAttribute(&touches, cudaDevAttrConcurrentManagedAccess, 0);
  if (touches == 0) {
    std::printf("skipped: the host cannot touch this GPU's managed memory while it works\n");
    std::exit(77);
  }
  CudaOptions options;
  options.allocator = {nullptr,
                       [](void*, std::size_t size_bytes) {
                         void* data = nullptr;
                         return cudaMallocManaged(&data, size_bytes) == cudaSuccess ? data
                                                                                    : nullptr;
                       },
                       [](void*, void* data, std::size_t) { (void)cudaFree(data); }};
  return std::make_shared<DeviceWithLaunch>(
      make_cuda_device(options), [](Stream stream, std::function<void()> kernel) {
        auto* const held = new std::function<void()>(std::move(kernel));
        EXPECT_EQ(cudaLaunchHostFunc(
                      reinterpret_cast<cudaStream_t>(stream.handle),
                      [](void* function) {
                        const std::unique_ptr<std::function<void()>> mine(
                            static_cast<std::function<void()>*>(function));
                        (*mine)();
                      },
                      held),
                  cudaSuccess);
      });
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
  const int code = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  // Where each has said why it cannot run here, so does the program.
  const bool none_ran =
      all.skipped_test_count() > 0 && all.skipped_test_count() == all.test_to_run_count();
  return code == 0 && none_ran ? 77 : code;
}
