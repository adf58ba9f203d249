// SPDX-License-Identifier: Apache-2.0
#include "gpu.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>

#include <cstdlib>

#include "failures.hpp"
#include "headrace/cuda.hpp"

namespace train_gpt {
namespace {
constexpr const char* kTorchCuda = "libtorch_cuda.so";

void load_torch_cuda() {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;  // linked, or loaded before
  if (::dlopen(kTorchCuda, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* const why = ::dlerror();
  throw MissingDevice(std::string("LibTorch's CUDA part cannot be loaded (") +
                      (why == nullptr ? kTorchCuda : why) +
                      "): the run was not started. It needs the torch wheel's GPU packages, which "
                      "`./quickstart --cuda` fetches, or `pip install torch` brings.");
}
}  // namespace

std::string open_device(const Options& options) {
  const at::Device device = device_of(options);
  if (device.is_cpu()) return "cpu";
  const headrace::CudaFacts facts = headrace::cuda_facts();
  if (!facts.missing.empty()) throw MissingDevice(no_device_text(options.device, facts.missing));
  const auto ordinal = static_cast<std::size_t>(device.index() < 0 ? 0 : device.index());
  if (ordinal >= facts.gpus.size()) {
    throw MissingDevice("--device " + options.device + ": this process sees " +
                        std::to_string(facts.gpus.size()) +
                        " GPUs, numbered from 0: the run was not started. Name one of them, or let "
                        "CUDA_VISIBLE_DEVICES show more.");
  }
  // Products of cuBLAS are the same every time with a workspace of a fixed size.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // The engine's streams and torch's share hardware queues, 8 unless said otherwise, and what
  // shares one is held up by what waits ahead of it.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  load_torch_cuda();
  // With warn_only fused attention sums its gradients in any order.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // All is written before it is read here; filling it first would cost a pass over each tensor.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return facts.gpus[ordinal].name + " (cuda:" + std::to_string(ordinal) + ")";
}

std::uint64_t device_peak_bytes(at::Device device) {
  if (device.is_cpu()) return 0;
  auto* const memory = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (memory == nullptr) return 0;
  const c10::DeviceIndex index = device.index() < 0 ? c10::DeviceIndex{0} : device.index();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::uint64_t>(memory->getDeviceStats(index).allocated_bytes[kAll].peak);
}
}  // namespace train_gpt
