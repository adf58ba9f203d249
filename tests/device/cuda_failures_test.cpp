// SPDX-License-Identifier: Apache-2.0
// cuda_failures_test.cpp: failures of a GPU, its driver and its memory, and the bytes that cross
// the link.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_kernels.hpp"
#include "device/cuda_pins.hpp"
#include "device/device_bytes.hpp"
#include "device/simulated_cuda.hpp"
#include "headrace/error.hpp"

namespace headrace::device {
namespace {
using simulated_cuda::counters;
using simulated_cuda::plug_in;

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}
std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A gradient's way to host memory, and the sums over its pieces.
Accumulation landing(const DeviceBytes& from, std::vector<std::uint16_t>& sum,
                     std::vector<GradientPiece>& pieces) {
  return {.source = from.data(),
          .sum = sum.data(),
          .elements = sum.size(),
          .pieces = pieces.data(),
          .first_piece_elements = 65536,
          .piece_elements = 65536};
}

TEST(CudaGpu, SaysWhyThereIsNone) {
  struct Row {
    cudaError_t error;
    int driver;
    const char* words;
  };
  for (const Row& row : {Row{cudaErrorInsufficientDriver, 0, "no NVIDIA driver"},
                         Row{cudaErrorInsufficientDriver, 12040, "serves CUDA 12.4"},
                         Row{cudaErrorNoDevice, 13000, "CUDA_VISIBLE_DEVICES"},
                         Row{cudaErrorUnknown, 13000, "nvidia-smi"}}) {
    plug_in({.missing = row.error, .driver_version = row.driver});
    EXPECT_NE(cuda_facts().missing.find(row.words), std::string::npos) << cuda_facts().missing;
    EXPECT_NE(text_of([] { (void)make_cuda_device(); }).find(row.words), std::string::npos);
    EXPECT_EQ(code_of([] { (void)make_cuda_device(); }), Code::kUnsupported);
  }
}

TEST(CudaGpu, IsRefusedWhereTheBuildHasNoKernelsForIt) {
  plug_in({.compute_major = 7, .compute_minor = 5});
  EXPECT_FALSE(cuda_facts().gpus.at(0).served);
  const std::string text = text_of([] { (void)make_cuda_device(); });
  EXPECT_NE(text.find("compute capability 7.5"), std::string::npos) << text;
  EXPECT_NE(text.find("HEADRACE_CUDA_ARCHITECTURES=native"), std::string::npos) << text;
}

TEST(CudaGpu, IsServedByItsOwnKernelsAndNewerOnesByPtx) {
  const auto serves = [](int major, int minor) {
    return cuda::serves("80 86 90 100", major, minor);
  };
  EXPECT_TRUE(serves(8, 0));
  EXPECT_TRUE(serves(8, 6));
  EXPECT_TRUE(serves(8, 9));  // 86's code
  EXPECT_TRUE(serves(9, 0));
  EXPECT_TRUE(serves(12, 0));  // PTX of 100
  EXPECT_FALSE(serves(7, 5));
  EXPECT_FALSE(cuda::serves("90", 8, 9));
  EXPECT_FALSE(cuda::serves("", 9, 0));
}

// Each of the calls that making a device needs fails once: nothing may be left behind.
TEST(CudaDevice, LeavesNothingBehindWhereItCannotBeMade) {
  std::uint64_t failed = 0;
  for (const char* function :
       {"cudaDeviceGetStreamPriorityRange", "cudaStreamCreateWithPriority",
        "cudaEventCreateWithFlags", "cudaMalloc", "cudaHostRegister", "cudaHostGetDevicePointer"}) {
    for (std::uint64_t calls = 0; calls < 5; ++calls) {
      plug_in();
      simulated_cuda::fail_call(function, cudaErrorMemoryAllocation, calls);
      const Code code = code_of([] { (void)make_cuda_device(); });
      failed += code != Code::kOk ? 1 : 0;
      const simulated_cuda::Counters left = counters();
      EXPECT_EQ(left.streams, 0u) << function << " " << calls;
      EXPECT_EQ(left.events, 0u) << function << " " << calls;
      EXPECT_EQ(left.allocated_bytes, 0u) << function << " " << calls;
      EXPECT_EQ(left.registered_bytes, 0u) << function << " " << calls;
    }
  }
  EXPECT_EQ(failed, 28u);  // four streams, and of all else more than five
}

TEST(CudaDevice, GivesEverythingBack) {
  plug_in();
  {
    const auto device = make_cuda_device();
    EXPECT_EQ(counters().allocated_bytes, device->overhead().device_bytes);
    EXPECT_EQ(counters().registered_bytes, device->overhead().host_bytes);
    const Stream stream = device->create_stream();
    const DeviceBytes bytes(*device, 1000);
    for (int i = 0; i < 100; ++i) {
      device->fill_zero(stream, bytes.data(), 1000);
      device->wait({}, device->record(stream));
    }
    device->destroy_stream(stream);
  }
  const simulated_cuda::Counters left = counters();
  EXPECT_EQ(left.streams, 0u);
  EXPECT_EQ(left.events, 0u);
  EXPECT_EQ(left.allocated_bytes, 0u);
  EXPECT_EQ(left.registered_bytes, 0u);
}

TEST(CudaDevice, GivesUrgentStreamsThePriorityAndUsesEachAgainForItsKind) {
  plug_in();
  const auto device = make_cuda_device();
  const Stream normal = device->create_stream(), urgent = device->create_urgent_stream();
  EXPECT_EQ(simulated_cuda::priority_of(normal.handle), 0);
  EXPECT_EQ(simulated_cuda::priority_of(urgent.handle), simulated_cuda::kUrgent);
  device->destroy_stream(normal);
  const Stream other = device->create_urgent_stream();
  EXPECT_EQ(simulated_cuda::priority_of(other.handle), simulated_cuda::kUrgent);
  EXPECT_EQ(device->create_stream().handle, normal.handle);
  device->destroy_stream(other);
  EXPECT_EQ(device->create_urgent_stream().handle, other.handle);
}

TEST(CudaDevice, SleepsWhileItWaitsForTheGpu) {
  plug_in({.late_microseconds_max = 500});
  const auto device = make_cuda_device();
  const Stream stream = device->create_stream();
  const DeviceBytes gradient(*device, 4000);
  std::vector<float> sum(1000, 1.0f);
  std::atomic<bool> notified = false;
  const std::uint64_t before = counters().spinning_waits;
  device->fill_zero(stream, gradient.data(), 4000);
  device->accumulate(stream, {.source = gradient.data(),
                              .source_dtype = DType::kF32,
                              .sum = sum.data(),
                              .sum_dtype = DType::kF32,
                              .elements = sum.size()});
  device->notify(
      stream, [](void* flag) noexcept { *static_cast<std::atomic<bool>*>(flag) = true; },
      &notified);
  device->synchronize(stream);
  EXPECT_EQ(counters().spinning_waits, before);
  EXPECT_TRUE(notified.load());
  EXPECT_EQ(sum, std::vector<float>(1000, 0.0f));
}

// Events that the GPU has passed are used again.
TEST(CudaDevice, HasAsManyEventsAsPointsThatAreStillToCome) {
  plug_in({.late_microseconds_max = 0});
  const auto device = make_cuda_device();
  const std::uint64_t before = counters().events;
  for (int i = 0; i < 1000; ++i) {
    device->wait({}, device->record({}));
    device->synchronize({});
  }
  EXPECT_LE(counters().events - before, 2u);
}

TEST(CudaDevice, TakesMemoryFromTheProgramsAllocator) {
  plug_in();
  struct Pool {
    std::uint64_t given = 0, taken_back = 0;
  } pool;
  CudaOptions options;
  options.allocator = {&pool,
                       [](void* context, std::size_t size_bytes) {
                         void* data = nullptr;
                         if (cudaMalloc(&data, size_bytes) != cudaSuccess) return data;
                         static_cast<Pool*>(context)->given += size_bytes;
                         return data;
                       },
                       [](void* context, void* data, std::size_t size_bytes) {
                         static_cast<Pool*>(context)->taken_back += size_bytes;
                         (void)cudaFree(data);
                       }};
  const auto device = make_cuda_device(options);
  {
    const DeviceBytes bytes(*device, 5000);
    EXPECT_NE(bytes.data(), nullptr);
    EXPECT_EQ(device->allocate(std::size_t{1} << 40), nullptr);
    EXPECT_EQ(pool.given, 5000u);
  }
  EXPECT_EQ(pool.taken_back, 5000u);
  options.allocator.deallocate = nullptr;
  EXPECT_EQ(code_of([&] { (void)make_cuda_device(options); }), Code::kInvalidArgument);
}

TEST(CudaDevice, PinsNothingWhereItCannotPinAll) {
  plug_in();
  const auto device = make_cuda_device();
  const std::uint64_t before = counters().registered_bytes;
  std::vector<std::byte> memory(100'000);
  simulated_cuda::fail_call("cudaHostRegister", cudaErrorMemoryAllocation);
  const std::string text = text_of([&] { device->pin(memory.data(), memory.size()); });
  EXPECT_NE(text.find("cannot be pinned"), std::string::npos) << text;
  EXPECT_EQ(counters().registered_bytes, before);
  device->pin(memory.data(), memory.size());
  EXPECT_EQ(counters().registered_bytes, before + memory.size());
  device->unpin(memory.data(), memory.size());
  EXPECT_EQ(counters().registered_bytes, before);
}

// Whatever code a refused pin comes with: servers refuse large ones with cudaErrorOperatingSystem.
TEST(CudaDevice, GoesOnUnpinnedWhereTheSystemRefusesAPin) {
  for (const cudaError_t error :
       {cudaErrorOperatingSystem, cudaErrorLaunchOutOfResources, cudaErrorSystemNotReady,
        cudaErrorCudartUnloading, cudaErrorNotSupported, cudaErrorUnknown}) {
    plug_in();
    const auto device = make_cuda_device();
    std::vector<std::byte> memory(100'000);
    simulated_cuda::fail_call("cudaHostRegister", error);
    EXPECT_EQ(code_of([&] { device->pin(memory.data(), memory.size()); }), Code::kUnsupported)
        << error;
    const DeviceBytes bytes(*device, memory.size());
    device->copy({}, bytes.data(), memory.data(), memory.size());
    EXPECT_EQ(code_of([&] { device->synchronize({}); }), Code::kOk) << error;
  }
}

// The same of every call that work is queued by, in turn.
TEST(CudaFailure, IsAskedOfTheGpuAndNotReadOffTheCode) {
  const std::vector<std::string> functions = {"cudaMemcpyAsync",          "cudaMemsetAsync",
                                              "cudaEventRecord",          "cudaStreamWaitEvent",
                                              "cudaLaunchHostFunc",       "launch_cast",
                                              "launch_measure",           "cudaStreamSynchronize",
                                              "cudaEventCreateWithFlags", "cudaStreamIsCapturing"};
  for (const std::string& function : functions) {
    for (const cudaError_t error : {cudaErrorOperatingSystem, cudaErrorLaunchOutOfResources,
                                    cudaErrorSystemNotReady, cudaErrorIllegalAddress}) {
      SCOPED_TRACE(function + " " + std::to_string(error));
      plug_in();
      const auto device = make_cuda_device();
      const DeviceBytes bytes(*device, 4096);
      std::vector<std::uint16_t> sum(1024);
      std::vector<GradientPiece> pieces(1);
      device->pin(sum.data(), sum.size() * 2);
      const auto work = [&] {
        device->fill_zero({}, bytes.data(), 4096);
        device->accumulate({}, landing(bytes, sum, pieces));
        device->copy({}, sum.data(), bytes.data(), 4096 / 2);
        device->wait({}, device->record({}));
        device->synchronize({});
      };
      work();
      simulated_cuda::fail_call(function.c_str(), error);
      const Code code = code_of(work);
      if (error == cudaErrorIllegalAddress) {
        EXPECT_TRUE(code == Code::kFailed || code == Code::kOk);
      } else {
        EXPECT_TRUE(code == Code::kWrongState || code == Code::kOk);
        EXPECT_EQ(code_of(work), Code::kOk);
      }
      device->unpin(sum.data(), sum.size() * 2);
    }
  }
}

// A landing that fails on its way leaves nothing under way towards memory that its caller may free.
TEST(CudaFailure, OfALandingLeavesNoCopyBehind) {
  for (const char* function : {"launch_measure", "cudaLaunchHostFunc", "cudaEventRecord"}) {
    for (std::uint64_t calls = 0; calls < 3; ++calls) {
      plug_in({.late_microseconds_max = 20'000});
      const auto device = make_cuda_device();
      const DeviceBytes bytes(*device, 4096);
      std::vector<std::uint16_t> sum(1024);
      std::vector<GradientPiece> pieces(1);
      device->pin(sum.data(), sum.size() * 2);
      device->synchronize({});
      simulated_cuda::fail_call(function, cudaErrorLaunchOutOfResources, calls);
      const Code code = code_of([&] { device->accumulate({}, landing(bytes, sum, pieces)); });
      if (code == Code::kOk) device->synchronize({});
      std::ranges::fill(sum, std::uint16_t{0x7777});
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      EXPECT_TRUE(std::ranges::all_of(sum, [](std::uint16_t v) { return v == 0x7777; }))
          << function << " " << calls;
      device->unpin(sum.data(), sum.size() * 2);
    }
  }
}

TEST(CudaPins, CopiesEndWhereRegistrationsDo) {
  plug_in();
  cuda::Context context(0);
  cuda::Pins pins(context, 4096);
  std::vector<std::byte> memory(20'000), back(20'000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, memory.size()), cudaSuccess);
  pins.pin(memory.data() + 1000, 15'000);  // the ends are not
  pins.copy(nullptr, device, memory.data(), memory.size());
  pins.copy(nullptr, back.data(), device, back.size());
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  pins.unpin(memory.data() + 1000, 15'000);
  EXPECT_EQ(back, memory);
  EXPECT_EQ(counters().registered_bytes, 0u);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(CudaPins, TakeNothingBackHalfWay) {
  plug_in();
  cuda::Context context(0);
  cuda::Pins pins(context, 4096);
  std::vector<std::byte> memory(20'000);
  simulated_cuda::fail_call("cudaHostRegister", cudaErrorMemoryAllocation, 3);
  EXPECT_EQ(code_of([&] { pins.pin(memory.data(), memory.size()); }), Code::kUnsupported);
  EXPECT_EQ(counters().registered_bytes, 0u);
}

// What a gradient costs of the link: never more than it has, whatever the sum is.
TEST(CudaLink, CarriesEachGradientOnce) {
  constexpr std::uint64_t kElements = 1 << 20;
  struct Row {
    DType source, sum;
    bool overwrite;
    std::uint64_t bytes;  // of an element
  };
  for (const Row& row :
       {Row{DType::kBf16, DType::kBf16, true, 2}, Row{DType::kBf16, DType::kF32, true, 2},
        Row{DType::kBf16, DType::kF32, false, 2}, Row{DType::kBf16, DType::kBf16, false, 2},
        Row{DType::kF32, DType::kBf16, true, 2}, Row{DType::kF32, DType::kF32, false, 4}}) {
    plug_in({.late_microseconds_max = 0});
    const auto device = make_cuda_device();
    const DeviceBytes gradient(*device, kElements * 4);
    std::vector<std::byte> sum(kElements * 4);
    std::vector<GradientPiece> pieces(16);
    device->pin(sum.data(), sum.size());
    device->accumulate({}, {.source = gradient.data(),
                            .source_dtype = row.source,
                            .sum = sum.data(),
                            .sum_dtype = row.sum,
                            .elements = kElements,
                            .overwrite = row.overwrite,
                            .pieces = pieces.data(),
                            .first_piece_elements = 65536,
                            .piece_elements = 65536});
    device->synchronize({});
    const std::uint64_t of_pieces = counters().to_host_bytes - kElements * row.bytes;
    EXPECT_LE(of_pieces, 16 * sizeof(GradientPiece)) << name_of(row.source) << name_of(row.sum);
    EXPECT_EQ(counters().to_gpu_bytes, 0u);
    EXPECT_EQ(counters().unregistered_copies, 0u);
    device->unpin(sum.data(), sum.size());
  }
}

TEST(CudaFailure, IsThrownByEveryCallWithTheOperationsBeforeIt) {
  plug_in();
  const auto device = make_cuda_device();
  const Stream stream = device->create_stream();
  DeviceBytes bytes(*device, 4096);
  std::vector<std::byte> host(4096);
  device->pin(host.data(), host.size());
  const auto copy = [&] {
    device->copy(stream, host.data(), bytes.data(), host.size());
    device->synchronize(stream);
  };
  copy();  // one operation that certainly came before
  simulated_cuda::fail_gpu(stream.handle, cudaErrorIllegalAddress);
  std::string text;
  while (text.empty()) text = text_of(copy);
  EXPECT_NE(text.find("cudaErrorIllegalAddress"), std::string::npos) << text;
  EXPECT_NE(text.find("copy of 4 KiB on stream"), std::string::npos) << text;
  EXPECT_NE(text.find("start it again"), std::string::npos) << text;
  EXPECT_EQ(text_of([&] { (void)device->record(stream); }), text);
  EXPECT_EQ(text_of([&] { device->fill_zero({}, bytes.data(), 10); }), text);
  EXPECT_EQ(text_of([&] { device->synchronize({}); }), text);
  EXPECT_EQ(code_of([&] { (void)device->create_stream(); }), Code::kFailed);
  device->unpin(host.data(), host.size());
}

// Pinning may be the first call that is told of it: what helps is not more memory then.
TEST(CudaFailure, IsNotTakenForALackOfMemoryToPin) {
  plug_in();
  const auto device = make_cuda_device();
  std::vector<std::byte> host(4096);
  simulated_cuda::fail_call("cudaHostRegister", cudaErrorIllegalAddress);
  const std::string text = text_of([&] { device->pin(host.data(), host.size()); });
  EXPECT_NE(text.find("pinning host memory: cudaErrorIllegalAddress"), std::string::npos) << text;
  EXPECT_NE(text.find("start it again"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { device->synchronize({}); }), Code::kFailed);
}

// CUDA's own rule, which no compiler checks.
TEST(CudaNotify, MayNotCallCuda) {
  plug_in();
  const auto device = make_cuda_device();
  device->notify(
      {}, [](void*) noexcept { (void)cudaStreamQuery(nullptr); }, nullptr);
  device->synchronize({});
  while (counters().calls_in_host_functions == 0) std::this_thread::yield();
  EXPECT_EQ(counters().calls_in_host_functions, 1u);
  EXPECT_EQ(code_of([&] { device->synchronize({}); }), Code::kOk);
}

// CUDA itself calls nothing that is queued behind an error.
TEST(CudaFailure, LeavesNoNotificationOut) {
  plug_in();
  std::atomic<int> called = 0;
  const auto count = [](void* context) noexcept { ++*static_cast<std::atomic<int>*>(context); };
  auto device = make_cuda_device();
  const Stream stream = device->create_stream();
  device->notify(stream, count, &called);
  device->synchronize(stream);
  EXPECT_EQ(called.load(), 1);
  simulated_cuda::fail_gpu(stream.handle, cudaErrorIllegalAddress);
  int queued = 1;
  try {
    for (; queued < 20; ++queued) device->notify(stream, count, &called);
  } catch (const Error&) {  // once it is known
  }
  for (int tries = 0; tries < 1000 && called.load() < queued; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(called.load(), queued);
  device.reset();
  EXPECT_EQ(called.load(), queued);
}

TEST(CudaFailure, OfOneCallIsNotTheGpus) {
  plug_in();
  const auto device = make_cuda_device();
  const DeviceBytes bytes(*device, 4096);
  simulated_cuda::fail_call("cudaMemsetAsync", cudaErrorInvalidValue);
  EXPECT_EQ(code_of([&] { device->fill_zero({}, bytes.data(), 10); }), Code::kWrongState);
  EXPECT_EQ(code_of([&] { device->fill_zero({}, bytes.data(), 10); }), Code::kOk);
  simulated_cuda::fail_call("launch_cast", cudaErrorMemoryAllocation);
  std::vector<std::uint16_t> sum(10);
  const Accumulation work{.source = bytes.data(), .sum = sum.data(), .elements = 10};
  EXPECT_EQ(code_of([&] { device->accumulate({}, work); }), Code::kOutOfBudget);
  EXPECT_EQ(code_of([&] { device->accumulate({}, work); }), Code::kOk);
  device->synchronize({});
}
}  // namespace
}  // namespace headrace::device
