// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_test.cpp: the simulated GPUs have teeth: what shares on a real one shares here,
// and what belongs to one GPU is refused on another.
#include <gtest/gtest.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "device/simulated_cuda.hpp"

namespace headrace::device::simulated_cuda_test {
namespace {
using simulated_cuda::counters;
using simulated_cuda::launch;
using simulated_cuda::plug_in;

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}
std::uintptr_t handle(cudaStream_t stream) { return reinterpret_cast<std::uintptr_t>(stream); }

TEST(SimulatedCuda, HostFunctionsHoldUpEachOtherAndNotTheGpu) {
  plug_in();
  struct Gate {
    std::atomic<bool> reached = false, open = false;
  } gate;
  std::atomic<int> called = 0;
  const std::array streams = {make_stream(), make_stream(), make_stream()};
  const auto waits = [](void* data) {
    auto* const at = static_cast<Gate*>(data);
    at->reached = true;
    at->reached.notify_all();
    at->open.wait(false);
  };
  const auto counts = [](void* number) { ++*static_cast<std::atomic<int>*>(number); };
  ASSERT_EQ(cudaLaunchHostFunc(streams[0], waits, &gate), cudaSuccess);
  gate.reached.wait(false);
  ASSERT_EQ(cudaLaunchHostFunc(streams[1], counts, &called), cudaSuccess);
  bool passed = false;
  launch(handle(streams[2]), [&] { passed = true; });
  ASSERT_EQ(cudaStreamSynchronize(streams[2]), cudaSuccess);
  EXPECT_TRUE(passed);
  EXPECT_EQ(called.load(), 0);
  gate.open = true;
  gate.open.notify_all();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(called.load(), 1);
  EXPECT_EQ(counters().host_functions, 2u);
}

// The numbers of the streams in the order in which their kernels ran.
std::vector<int> order_of_kernels(std::uint32_t hardware_queues) {
  plug_in({.seed = 3, .hardware_queues = hardware_queues});
  const std::array streams = {make_stream(), make_stream()};
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) {
    for (int s = 0; s < 2; ++s) launch(handle(streams[s]), [&order, s] { order.push_back(s); });
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return order;
}

TEST(SimulatedCuda, StreamsThatShareAHardwareQueueRunInTheOrderQueued) {
  std::vector<int> in_turns;
  for (int i = 0; i < 100; ++i) in_turns.push_back(i % 2);
  EXPECT_EQ(order_of_kernels(1), in_turns);
  EXPECT_NE(order_of_kernels(2), in_turns);
  EXPECT_NE(order_of_kernels(0), in_turns);
}

// By the CPU time of its thread. Half of those that only sleep may count as long: a machine that
// stands still for a moment charges it to whoever was working.
TEST(SimulatedCuda, CountsHostFunctionsThatWorkLong) {
  constexpr std::uint64_t kCalls = 20;
  plug_in({.late_microseconds_max = 0});
  const auto works = [](void*) {
    const auto now = [] {
      timespec time{};
      (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    };
    const auto end =
        now() + std::chrono::microseconds(2 * simulated_cuda::kHostFunctionMicroseconds);
    while (now() < end) {
    }
  };
  const auto sleeps = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  for (std::uint64_t i = 0; i < kCalls; ++i)
    ASSERT_EQ(cudaLaunchHostFunc(nullptr, sleeps, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LE(counters().long_host_functions, kCalls / 2);
  const std::uint64_t before = counters().long_host_functions;
  for (std::uint64_t i = 0; i < kCalls; ++i)
    ASSERT_EQ(cudaLaunchHostFunc(nullptr, works, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(counters().long_host_functions - before, kCalls);
  EXPECT_EQ(counters().host_functions, 2 * kCalls);
}

TEST(SimulatedCuda, RefusesWhatBelongsToAnotherGpuAsCudaDoes) {
  plug_in({.gpus = 2});
  void* on_0 = nullptr;
  void* on_1 = nullptr;
  const cudaStream_t stream = make_stream();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&on_0, 4096), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t other = make_stream();
  ASSERT_EQ(cudaMalloc(&on_1, 4096), cudaSuccess);
  // Work on the GPU that is not current, and a record across GPUs.
  EXPECT_EQ(launch(handle(stream), [] {}), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(on_0, 0, 4096, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
  // Copies, waits and looks are served whichever is current.
  EXPECT_EQ(cudaMemcpyAsync(on_0, on_1, 4096, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaFree(on_0), cudaSuccess);
  EXPECT_EQ(cudaFree(on_1), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(SimulatedCuda, RegistersWholePagesOnceAndNoMoreThanTheSystemGives) {
  plug_in({.registered_bytes_max = 8192, .registration_refused_by = cudaErrorOperatingSystem});
  alignas(4096) static std::byte memory[5 * 4096];
  EXPECT_EQ(cudaHostRegister(memory, 100, 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(memory + 200, 100, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostRegister(memory + 4096, 8192, 0), cudaErrorOperatingSystem);
  EXPECT_EQ(cudaHostRegister(memory + 4096, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(memory), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(memory + 200, 100, 0), cudaSuccess);
}
}  // namespace
}  // namespace headrace::device::simulated_cuda_test
