// SPDX-License-Identifier: Apache-2.0
// cuda_engine_test: what an engine takes of a GPU and of its link, and what becomes of it when the
// GPU fails. On the simulated GPU, which counts.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "device/computing_device.hpp"
#include "device/cuda_overhead.hpp"
#include "device/cuda_under_test.hpp"
#include "device/simulated_cuda.hpp"
#include "headrace/engine.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
using device::simulated_cuda::counters;

Settings all_nvme(const std::string& directory) {
  Settings s;
  s.tile_elements = 65536;
  s.io_block_bytes = 128 * 1024;
  s.nvme_paths = {directory};
  s.offload_optimizer = s.offload_parameters = OffloadDevice::kNvme;
  return s;
}

TEST(CudaEngine, HoldsOnTheGpuWhatThePlanSaysAndPinsTheArena) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_cuda_device(1);
  {
    Engine engine(all_nvme(directory.string()), {.device = device});
    testing::Mlp network(engine, *device, {.layers = 6});
    for (int step = 0; step < 3; ++step) network.train_step();
    // What the network itself has there comes beside it.
    const std::uint64_t own = counters().allocated_bytes - engine.plan().device_bytes;
    EXPECT_EQ(counters().allocated_bytes_max, engine.plan().device_bytes + own);
    EXPECT_LE(own, 6 * (2 * 300 * 300 + 6 * 300 + 3 * 4096u));
    EXPECT_GT(counters().registered_bytes, device->overhead().host_bytes);
    EXPECT_GE(engine.plan().host_bytes, counters().registered_bytes);
    engine.close();
  }
  EXPECT_EQ(counters().allocated_bytes, device->overhead().device_bytes);
  EXPECT_EQ(counters().registered_bytes, device->overhead().host_bytes);
}

TEST(CudaEngine, KeepsToTheDevicesBudgetOrIsRefused) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_cuda_device(1);
  Settings settings = all_nvme(directory.string());
  const testing::MlpOptions options{.layers = 6};
  const auto device_bytes = [&] {
    Engine engine(settings, {.device = device});
    testing::Mlp network(engine, *device, options);
    network.train_step();
    return engine.plan().device_bytes;
  };
  const std::uint64_t wanted = device_bytes();
  settings.device_budget_bytes = wanted - 1;
  const std::uint64_t fewer = device_bytes();
  EXPECT_LT(fewer, wanted);
  settings.device_budget_bytes = device->overhead().device_bytes + 4096;
  for (const UpdateOn on : {UpdateOn::kCpu, UpdateOn::kDevice}) {
    settings.update_on = on;
    try {
      (void)device_bytes();
      FAIL() << "no gather slot fits";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kOutOfBudget);
      const std::string text = error.what();
      EXPECT_NE(text.find("headrace.device_budget_bytes to"), std::string::npos) << text;
      EXPECT_NE(text.find("gather slots"), std::string::npos) << text;
      EXPECT_EQ(text.find("headrace.update_on") != std::string::npos, on == UpdateOn::kDevice)
          << text;
    }
  }
}

// 2 bytes down per parameter and micro-batch; up, what is gathered and not there any more.
TEST(CudaEngine, SendsEachGradientOverTheLinkOnce) {
  for (const std::uint32_t accumulation : {1u, 4u}) {
    const auto device = device::make_computing_cuda_device(1);
    Settings settings;
    settings.tile_elements = 65536;
    settings.offload_parameters = OffloadDevice::kCpu;
    settings.gradient_accumulation_steps = accumulation;
    Engine engine(settings, {.device = device});
    const testing::MlpOptions options{.layers = 6, .accumulation = accumulation};
    testing::Mlp network(engine, *device, options);
    network.train_step();
    network.train_step();
    const auto before = counters();
    network.train_step();  // an even step: all parameters have gradients
    const auto after = counters();
    const double elements = static_cast<double>(engine.plan().parameters) * accumulation;
    // The biases' are f32; so is what the test itself brings to the device and back.
    const double own = 6.0 * 4 * options.width * accumulation * (options.batch * 4 + 2);
    const double down = static_cast<double>(after.to_host_bytes - before.to_host_bytes);
    const double up = static_cast<double>(after.to_gpu_bytes - before.to_gpu_bytes);
    EXPECT_GE(down, 2 * elements);
    EXPECT_LE(down, 2 * elements + own);
    EXPECT_LE(up, 4 * elements + own + 6 * 4096 * 2.0 * accumulation);
  }
}

// Updated on the GPU: weight, residual and two moments there and back, and the gradient there
// again.
TEST(CudaEngine, SendsTheStateOverTheLinkOnceEachWay) {
  const auto link_bytes_of_a_step = [](UpdateOn on) {
    const auto device = device::make_computing_cuda_device(1);
    Settings settings;
    settings.tile_elements = 65536;
    settings.offload_parameters = OffloadDevice::kCpu;
    settings.update_on = on;
    Engine engine(settings, {.device = device});
    testing::Mlp network(engine, *device, {.layers = 6});
    network.train_step();
    network.train_step();
    engine.finish_step();
    const auto before = counters();
    network.train_step();  // an even step: all parameters have gradients
    engine.finish_step();
    const auto after = counters();
    const auto elements = static_cast<double>(engine.plan().parameters);
    return std::pair(static_cast<double>(after.to_gpu_bytes - before.to_gpu_bytes) / elements,
                     static_cast<double>(after.to_host_bytes - before.to_host_bytes) / elements);
  };
  const auto [up, down] = link_bytes_of_a_step(UpdateOn::kCpu);
  const auto [more_up, more_down] = link_bytes_of_a_step(UpdateOn::kDevice);
  // The biases' tiles are padded.
  EXPECT_GE(more_up - up, 14);
  EXPECT_LE(more_up - up, 14.7);
  EXPECT_GE(more_down - down, 12);
  EXPECT_LE(more_down - down, 12.6);
}

TEST(CudaEngine, TriesBothPlacesForUpdatesAndStaysWithOne) {
  const auto train = [](UpdateOn on, std::string& said, std::uint64_t& on_device) {
    const auto device = device::make_computing_cuda_device(1);
    Settings settings;
    settings.tile_elements = 65536;
    settings.offload_parameters = OffloadDevice::kCpu;
    settings.update_on = on;
    Engine engine(settings, {.device = device, .log = [&](LogLevel, std::string_view line) {
                               said += std::string(line) + "\n";
                             }});
    testing::Mlp network(engine, *device, {.layers = 3});
    for (int step = 0; step < 9; ++step) network.train_step();
    on_device = engine.stats().steps_updated_on_device;
    return engine.hash_parameters() + engine.hash_optimizer_state();
  };
  std::string said;
  std::uint64_t on_device = 0;
  const std::string expected = train(UpdateOn::kCpu, said, on_device);
  EXPECT_EQ(on_device, 0u);
  EXPECT_EQ(train(UpdateOn::kDevice, said, on_device), expected);
  EXPECT_EQ(on_device, 9u);
  EXPECT_EQ(said.find("from here on"), std::string::npos) << said;
  EXPECT_EQ(train(UpdateOn::kAuto, said, on_device), expected);
  EXPECT_NE(said.find("from here on"), std::string::npos) << said;
  EXPECT_EQ(on_device, said.find(": there from here on") == std::string::npos ? 3u : 6u) << said;
}

// A GPU that is late in everything: the steps that it updates take many times as long, and no step
// is charged with another's time.
TEST(CudaEngine, MeasuresWhatUpdatesTakeOnEitherSide) {
  using device::simulated_cuda::launch;
  device::simulated_cuda::plug_in({.late_microseconds_max = 4000});
  const auto device = std::make_shared<device::DeviceWithLaunch>(
      make_cuda_device(), [](Stream stream, std::function<void()> kernel) {
        launch(stream.handle, std::move(kernel));
      });
  std::string said;
  Settings settings;
  settings.tile_elements = 65536;
  settings.offload_parameters = OffloadDevice::kCpu;
  settings.update_on = UpdateOn::kAuto;
  Engine engine(settings, {.device = device, .log = [&](LogLevel, std::string_view line) {
                             said += std::string(line) + "\n";
                           }});
  testing::Mlp network(engine, *device, {.layers = 1});
  for (int step = 0; step < 8; ++step) network.train_step();
  EXPECT_EQ(engine.stats().steps_updated_on_device, 3u);
  double cpu = 0, gpu = 0;
  const std::size_t at = said.find("updates: ");
  ASSERT_NE(at, std::string::npos) << said;
  ASSERT_EQ(std::sscanf(said.c_str() + at, "updates: %lf G elements/s on the CPU, %lf", &cpu, &gpu),
            2)
      << said;
  EXPECT_GT(cpu, 3 * gpu) << said;
}

// As on the CPU: bytes of the state that somebody changed are not trained on.
TEST(CudaEngine, StopsAtADamagedChunkOfState) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_cuda_device(1);
  Settings settings = all_nvme(directory.string());
  settings.offload_parameters = OffloadDevice::kCpu;
  settings.update_on = UpdateOn::kDevice;
  Engine engine(settings, {.device = device});
  testing::Mlp network(engine, *device, {});
  network.train_step();
  engine.finish_step();
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.string())) {
    if (entry.path().extension() == ".swap") path = entry.path().string();
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  // In the moments; headers, of a page each, have a checksum of their own.
  for (std::streamoff at = 300'000; at < size; at += 500'000) {
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
  }
  file.close();
  std::string text;
  try {
    network.train_step();
    engine.finish_step();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt);
    text = error.what();
  }
  EXPECT_NE(text.find("the checksum differs"), std::string::npos) << text;
}

TEST(CudaEngine, PlansWhatUpdatesTakeOfTheGpu) {
  const auto device = device::make_computing_cuda_device(1);
  Settings settings;
  settings.offload_parameters = OffloadDevice::kCpu;
  std::uint64_t of_network = 0;
  const auto plan_bytes = [&] {
    Engine engine(settings, {.device = device});
    const testing::Mlp network(engine, *device, {});
    of_network = counters().allocated_bytes - engine.plan().device_bytes;
    return engine.plan().device_bytes;
  };
  const std::uint64_t without = plan_bytes();
  const std::uint64_t then = of_network;
  settings.update_on = UpdateOn::kDevice;
  const std::uint64_t with = plan_bytes();
  EXPECT_GT(with, without);
  EXPECT_EQ(of_network, then);
  settings.update_on = UpdateOn::kAuto;
  EXPECT_EQ(plan_bytes(), with);
  settings.device_budget_bytes = with - 1;  // no gather slot is given up for them
  EXPECT_EQ(plan_bytes(), without);
}

TEST(CudaEngine, LeavesUpdatesToTheCpuWhereTheGpuIsFull) {
  const auto device = device::make_computing_cuda_device(1);
  std::string said;
  Settings settings;
  settings.offload_parameters = OffloadDevice::kCpu;
  const auto freeze = [&](UpdateOn on) {
    settings.update_on = on;
    Engine engine(settings, {.device = device, .log = [&](LogLevel, std::string_view line) {
                               said += std::string(line) + "\n";
                             }});
    engine.add_group("g", {{"w", DType::kBf16, {100'000}, {}}});
    // The gather slots come first.
    device::simulated_cuda::fail_call("cudaMalloc", cudaErrorMemoryAllocation, 1);
    engine.freeze();
    EXPECT_EQ(engine.plan().to_text().find("updates on the device"), std::string::npos);
    EXPECT_EQ(counters().allocated_bytes, engine.plan().device_bytes);
  };
  freeze(UpdateOn::kAuto);
  EXPECT_NE(said.find("has no room for an update's slots: the CPU updates"), std::string::npos)
      << said;
  try {
    freeze(UpdateOn::kDevice);
    FAIL() << "it was asked for";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfBudget);
    EXPECT_NE(std::string(error.what()).find("3 slots"), std::string::npos) << error.what();
  }
}

TEST(CudaEngine, SaysOnceThatMemoryCannotBePinnedAndGoesOn) {
  const auto device = device::make_computing_cuda_device(1);
  std::string said;
  Settings settings;
  settings.offload_parameters = OffloadDevice::kCpu;
  Engine engine(settings, {.device = device, .log = [&](LogLevel level, std::string_view line) {
                             if (level == LogLevel::kWarning) said += std::string(line) + "\n";
                           }});
  device::simulated_cuda::fail_call("cudaHostRegister", cudaErrorMemoryAllocation);
  testing::Mlp network(engine, *device, {});
  network.train_step();
  EXPECT_NE(said.find("cannot be pinned"), std::string::npos) << said;
  EXPECT_EQ(said.find("cannot be pinned"), said.rfind("cannot be pinned"));
  engine.close();
}

// What training on such a GPU ends in, and the warnings on the way.
std::string trained_on(const device::simulated_cuda::GpuOptions& gpu, UpdateOn update_on,
                       std::string& warnings) {
  const testing::TemporaryDirectory directory;
  device::simulated_cuda::plug_in(gpu);
  const auto device = std::make_shared<device::DeviceWithLaunch>(
      make_cuda_device(), [](Stream stream, std::function<void()> kernel) {
        device::simulated_cuda::launch(stream.handle, std::move(kernel));
      });
  Settings settings = all_nvme(directory.string());
  settings.update_on = update_on;
  Engine engine(settings, {.device = device, .log = [&](LogLevel level, std::string_view line) {
                             if (level == LogLevel::kWarning) warnings += std::string(line) + "\n";
                           }});
  testing::Mlp network(engine, *device, {.layers = 4});
  for (int step = 0; step < 3; ++step) network.train_step();
  return engine.hash_parameters() + engine.hash_optimizer_state();
}

// As far as the system lets it: the device's own memory is pinned, and the engine's is not. Copies
// from there may then wait for all that is queued before them.
TEST(CudaEngine, GivesTheSameBitsWhereTheSystemPinsNoMore) {
  for (const UpdateOn on : {UpdateOn::kCpu, UpdateOn::kDevice}) {
    std::string warnings;
    const std::string expected = trained_on({}, on, warnings);
    EXPECT_EQ(warnings, "");
    for (const cudaError_t error : {cudaErrorOperatingSystem, cudaErrorMemoryAllocation}) {
      warnings.clear();
      EXPECT_EQ(trained_on({.registered_bytes_max = headrace::cuda_overhead().host_bytes,
                            .registration_refused_by = error,
                            .pageable_copies_wait = true},
                           on, warnings),
                expected);
      EXPECT_GT(counters().unregistered_copies, 0u);
      EXPECT_NE(warnings.find("cannot be pinned (cudaError"), std::string::npos) << warnings;
    }
  }
}

// All host functions wait for one that works long. Those of a step whose gradients come once do
// not; the quarter is for what a machine that stands still charges to whoever was working.
TEST(CudaEngine, WorksLongInNoHostFunction) {
  for (const UpdateOn on : {UpdateOn::kCpu, UpdateOn::kDevice}) {
    std::string warnings;
    (void)trained_on({.late_microseconds_max = 0}, on, warnings);
    EXPECT_GT(counters().host_functions, 20u);
    EXPECT_LT(4 * counters().long_host_functions, counters().host_functions);
  }
}

TEST(CudaEngine, IsMadeAsTheDocumentsSay) {
  device::simulated_cuda::plug_in();
  const Settings settings;
  // [device]
  std::shared_ptr<headrace::Device> gpu = headrace::make_cuda_device({.ordinal = 0});
  headrace::Engine engine(settings, {.device = gpu});
  // [/device]
  EXPECT_EQ(std::string(gpu->name()), "Simulated GPU (cuda:0)");
}

// Whenever it fails: a call says so, with the cause; close() ends; nothing is left on the drive.
TEST(CudaEngine, EndsWithTheCauseWhenTheGpuFails) {
  for (std::uint64_t at = 0; at < 16; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    const testing::TemporaryDirectory directory;
    const auto device = device::make_computing_cuda_device(at + 1);
    Settings settings = all_nvme(directory.string());
    if (at % 2 == 1) settings.update_on = UpdateOn::kDevice;
    Engine engine(settings, {.device = device});
    testing::Mlp network(engine, *device, {.layers = 4});
    network.train_step();
    std::string cause;
    device::simulated_cuda::fail_call("cudaMemcpyAsync", cudaErrorIllegalAddress, 3 * at);
    try {
      for (int step = 0; step < 10; ++step) network.train_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFailed);
      cause = error.what();
    }
    EXPECT_NE(cause.find("cudaErrorIllegalAddress"), std::string::npos) << cause;
    try {
      engine.close();
    } catch (const Error&) {  // may repeat it
    }
    EXPECT_EQ(directory.entries(), 0u);
  }
}

TEST(CudaEngine, EndsWithTheCauseWhenTheGpuFailsBehindItsBack) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const testing::TemporaryDirectory directory;
    const auto device = device::make_computing_cuda_device(seed);
    const Stream stream = device::make_foreign_stream();
    std::string cause;
    {
      Settings settings = all_nvme(directory.string());
      if (seed % 2 == 0) settings.update_on = UpdateOn::kDevice;
      Engine engine(settings, {.device = device});
      testing::Mlp network(engine, *device, {.layers = 4});
      network.train_step();
      device::simulated_cuda::fail_gpu(stream.handle, cudaErrorIllegalAddress);
      try {
        for (int step = 0; step < 20; ++step) network.train_step();
      } catch (const Error& error) {
        cause = error.what();
      }
    }
    EXPECT_NE(cause.find("cudaErrorIllegalAddress"), std::string::npos) << cause;
    EXPECT_EQ(directory.entries(), 0u);
  }
}
}  // namespace
}  // namespace headrace
