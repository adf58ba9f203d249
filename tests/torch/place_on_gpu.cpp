// SPDX-License-Identifier: Apache-2.0
// place_on_gpu.cpp: the adapter on torch's own CUDA part and this machine's first GPU; skipped,
// with the reason, where one of them is missing.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headrace/torch/cuda.hpp"
#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/place_under_test.hpp"

namespace headrace_test {
std::shared_ptr<headrace::Device> make_place_device(std::uint64_t, Late) {
  return headrace::torch::make_cuda_device(place_under_test());
}

// Some 10 ms of it: the CPU queues a whole step meanwhile.
void fall_behind(Late late) {
  if (late != Late::kFar) return;
  static const auto* const matrix =  // torch is gone before statics are
      new torch::Tensor(torch::ones({1024, 1024}).to(place_under_test()));
  const torch::NoGradGuard no_gradients;
  torch::Tensor product = torch::empty_like(*matrix);
  for (int i = 0; i < 200; ++i) torch::mm_out(product, *matrix, *matrix);
}

namespace {
using headrace::Code;
using headrace::Error;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// All that the GPU has left but for this much.
class Hoard {
 public:
  explicit Hoard(std::size_t left_bytes) {
    torch::Tensor left = take(left_bytes);
    for (std::size_t bytes = 4096 * kMiB; bytes >= kMiB; bytes /= 2) {
      try {
        for (;;) held_.push_back(take(bytes));
      } catch (const c10::Error&) {  // no room for one more of these
      }
    }
    left.reset();
    give_back();
  }
  ~Hoard() {
    held_.clear();
    give_back();
  }
  Hoard(const Hoard&) = delete;
  Hoard& operator=(const Hoard&) = delete;

 private:
  static torch::Tensor take(std::size_t bytes) {
    return torch::empty({static_cast<std::int64_t>(bytes)},
                        torch::TensorOptions(place_under_test()).dtype(torch::kByte));
  }
  // To the driver: torch keeps what tensors leave.
  static void give_back() {
    dynamic_cast<c10::DeviceAllocator&>(*c10::GetAllocator(c10::kCUDA)).emptyCache();
  }
  std::vector<torch::Tensor> held_;
};

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

TEST(PlaceOnGpu, WithoutRoomThereIsNoDeviceAndLaterThereIs) {
  const auto make = [] { (void)headrace::torch::make_cuda_device(place_under_test()); };
  make();  // what the driver loads once is there
  {
    const Hoard hoard(kMiB);
    EXPECT_EQ(code_of(make), Code::kOutOfBudget);
  }
  EXPECT_EQ(code_of(make), Code::kOk);
}

TEST(PlaceOnGpu, WithoutRoomForTheEngineFreezeIsRefusedAndTorchGoesOn) {
  const auto device = headrace::torch::make_cuda_device(place_under_test());
  headrace::Settings settings;
  settings.offload_optimizer = settings.offload_parameters = headrace::OffloadDevice::kCpu;
  const auto freeze = [&] {
    headrace::torch::Offload offload(settings, {.device = device}, place_under_test());
    for (int i = 0; i < 2; ++i)  // 128 MiB each
      offload.add_group("mlp." + std::to_string(i), [] { return Mlp(1024, 16384, 1024); });
    offload.freeze();
  };
  {
    const Hoard hoard(64 * kMiB);
    EXPECT_EQ(code_of(freeze), Code::kOutOfBudget);
    EXPECT_EQ(torch::ones({100}).to(place_under_test()).sum().item<float>(), 100);
  }
  EXPECT_EQ(code_of(freeze), Code::kOk);
}

// Why there can be no test here; empty: torch's CUDA part is there, and gives the same bits every
// time.
std::string open_gpu() {
  if (const headrace::CudaFacts facts = headrace::cuda_facts(); !facts.missing.empty())
    return facts.missing;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) &&
      ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return std::string("LibTorch's CUDA part cannot be loaded: ") + ::dlerror();
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return {};
}
}  // namespace
}  // namespace headrace_test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string missing = headrace_test::open_gpu(); !missing.empty()) {
    std::printf("skipped: %s\n", missing.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
