// SPDX-License-Identifier: Apache-2.0
// cuda_gpus_test.cpp: a CUDA device among what else the process has of CUDA: other GPUs, threads
// that never called it, graphs that are captured, and host functions that wait for each other.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/device_bytes.hpp"
#include "device/simulated_cuda.hpp"
#include "headrace/error.hpp"

namespace headrace::device::cuda_gpus_test {
namespace {
using simulated_cuda::counters;
using simulated_cuda::has_context;
using simulated_cuda::plug_in;

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {Code::kOk, ""};
}

int current() {
  int ordinal = -1;
  EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess);
  return ordinal;
}

// All that a device is for: values there and back, a gradient on top of them, a notification.
// `then` is called after each of its calls.
void use(
    Device& device, const std::function<void()>& then = [] {}) {
  constexpr std::uint64_t kElements = 50'000;
  const Stream own = device.create_stream();
  then();
  for (const Stream stream : {own, Stream{}}) {
    const DeviceBytes bytes(device, kElements * 4);
    then();
    const std::vector<float> values(kElements, 3);
    std::vector<float> sum(kElements, 4);
    std::atomic<bool> notified = false;
    device.copy(stream, bytes.data(), values.data(), kElements * 4);
    then();
    device.accumulate(stream, {.source = bytes.data(),
                               .source_dtype = DType::kF32,
                               .sum = sum.data(),
                               .sum_dtype = DType::kF32,
                               .elements = kElements,
                               .overwrite = false});
    then();
    device.wait({}, device.record(stream));
    then();
    device.notify(
        stream, [](void* flag) noexcept { *static_cast<std::atomic<bool>*>(flag) = true; },
        &notified);
    then();
    device.fill_zero(stream, bytes.data(), kElements * 4);
    then();
    device.synchronize(stream);
    then();
    EXPECT_EQ(sum, std::vector<float>(kElements, 7));
    EXPECT_TRUE(notified.load());
  }
  std::vector<std::byte> pinned(1000);
  device.pin(pinned.data(), pinned.size());
  then();
  device.unpin(pinned.data(), pinned.size());
  then();
  device.destroy_stream(own);
  then();
}

TEST(CudaGpus, LeaveTheCallersGpuCurrentThatIsAnother) {
  plug_in({.gpus = 2});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const auto device = make_cuda_device({.ordinal = 1, .allocator = {}});
    EXPECT_EQ(current(), 0);
    EXPECT_STREQ(device->name(), "Simulated GPU (cuda:1)");
    use(*device, [] { EXPECT_EQ(current(), 0); });
  }
  EXPECT_EQ(current(), 0);
  EXPECT_TRUE(has_context(1));
  EXPECT_EQ(counters().streams, 0u);
  EXPECT_EQ(counters().events, 0u);
}

// Nor may the engine's threads make a context on a GPU that the program does not use.
TEST(CudaGpus, TakeNothingOfAGpuThatNobodyUses) {
  plug_in({.gpus = 2});
  const auto device = make_cuda_device({.ordinal = 1, .allocator = {}});
  use(*device);
  std::thread([&] { use(*device); }).join();
  EXPECT_TRUE(has_context(1));
  EXPECT_FALSE(has_context(0));
}

TEST(CudaGpus, ServeADeviceEachAndFailAlone) {
  plug_in({.gpus = 2});
  const auto first = make_cuda_device();
  const auto second = make_cuda_device({.ordinal = 1, .allocator = {}});
  std::thread beside([&] { use(*second); });
  use(*first);
  beside.join();
  const Stream stream = second->create_stream();
  simulated_cuda::fail_gpu(stream.handle, cudaErrorIllegalAddress);
  Code code = Code::kOk;
  while (code == Code::kOk) code = error_of([&] { second->synchronize(stream); }).code();
  EXPECT_EQ(code, Code::kFailed);
  use(*first);
}

TEST(CudaGraph, IsNotTheEnginesToFillAndTheTextSaysWhatIs) {
  plug_in();
  const auto device = make_cuda_device();
  const DeviceBytes bytes(*device, 4096);
  std::vector<float> host(1024);
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
  const Stream stream{reinterpret_cast<std::uintptr_t>(captured)};
  const Event event = device->record({});
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  const std::vector<std::function<void()>> calls = {
      [&] { device->copy(stream, host.data(), bytes.data(), 4096); },
      [&] { device->fill_zero(stream, bytes.data(), 4096); },
      [&] { device->wait(stream, event); },
      [&] { (void)device->record(stream); },
      [&] { device->synchronize(stream); },
      [&] {
        device->notify(
            stream, [](void*) noexcept {}, nullptr);
      },
      [&] {
        device->accumulate(stream, {.source = bytes.data(),
                                    .source_dtype = DType::kF32,
                                    .sum = host.data(),
                                    .sum_dtype = DType::kF32,
                                    .elements = 1024});
      }};
  for (const auto& call : calls) {
    const Error error = error_of(call);
    EXPECT_EQ(error.code(), Code::kWrongState);
    const std::string text = error.what();
    EXPECT_NE(text.find("captures a CUDA graph on this stream"), std::string::npos) << text;
    EXPECT_NE(text.find("before the capture begins or after it has ended"), std::string::npos)
        << text;
  }
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  for (const auto& call : calls) EXPECT_EQ(error_of(call).code(), Code::kOk);
  device->synchronize(stream);
}

// The share of its host functions that are long, of a device that takes gradients of this kind.
double long_share(bool overwrite) {
  constexpr std::uint64_t kElements = std::uint64_t{4} << 20;
  plug_in({.late_microseconds_max = 0});
  const auto device = make_cuda_device({.ordinal = 0, .allocator = {}, .host_threads = 1});
  const DeviceBytes gradient(*device, kElements * 2);
  std::vector<std::uint16_t> sum(kElements);
  std::vector<GradientPiece> pieces(kElements / 65536);
  for (int arrival = 0; arrival < 10; ++arrival) {
    device->accumulate({}, {.source = gradient.data(),
                            .sum = sum.data(),
                            .elements = kElements,
                            .overwrite = overwrite,
                            .pieces = pieces.data(),
                            .first_piece_elements = 65536,
                            .piece_elements = 65536});
  }
  device->synchronize({});
  return static_cast<double>(counters().long_host_functions) /
         static_cast<double>(counters().host_functions);
}

// All others wait for one that is long. A sum that the host adds to is; what else lands is not.
TEST(CudaHostFunctions, AreLongWhereTheHostAddsToASum) {
  EXPECT_GT(long_share(false), 0.5);
  EXPECT_LT(long_share(true), 0.5);
}

// As a busy driver does it: a copy from memory that is not pinned waits for the stream.
TEST(CudaDevice, GivesTheSameWhereUnpinnedCopiesWait) {
  plug_in({.pageable_copies_wait = true});
  const auto device = make_cuda_device();
  use(*device);
}
}  // namespace
}  // namespace headrace::device::cuda_gpus_test
