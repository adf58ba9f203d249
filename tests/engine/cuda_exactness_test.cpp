// SPDX-License-Identifier: Apache-2.0
// cuda_exactness_test: the same network trained with its parameters on a GPU, in host memory, on
// NVMe and divided by a budget: every placement must give the CPU's hashes, also through
// checkpoints, sleep and stores.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "device/cuda_under_test.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
enum class Placement { kDevice, kHost, kNvme, kMixed };
constexpr const char* kPlacements[] = {"device", "host", "NVMe", "mixed"};

struct Row {
  Placement placement;
  UpdateMode mode;
  std::uint32_t accumulation;
  DType dtype;
  UpdateOn on = UpdateOn::kCpu;
  MomentCodec moments = MomentCodec::kF32;
  std::uint64_t tile_elements = 65536;
  std::uint32_t width = 300;
};

std::string text_of(const Row& row) {
  return std::string(kPlacements[static_cast<int>(row.placement)]) +
         (row.mode == UpdateMode::kDefer ? ", deferred" : "") +
         (row.on == UpdateOn::kDevice ? ", updated on the GPU, " : ", ") + name_of(row.dtype) +
         ", accumulation " + std::to_string(row.accumulation);
}

Settings settings_of(const Row& row, const std::string& directory) {
  Settings s;
  s.tile_elements = row.tile_elements;
  s.update_slots = 2;
  s.io_block_bytes = 128 * 1024;
  s.update_threads = 2;
  s.update_mode = row.mode;
  s.update_on = row.on;
  s.moments = row.moments;
  s.gradient_accumulation_steps = row.accumulation;
  s.offload_parameters = OffloadDevice::kCpu;
  if (row.placement == Placement::kDevice) s.offload_parameters = OffloadDevice::kNone;
  if (row.placement == Placement::kNvme || row.placement == Placement::kMixed) {
    s.nvme_paths = {directory};
    s.offload_optimizer = OffloadDevice::kNvme;
    s.offload_parameters = OffloadDevice::kNvme;
  }
  if (row.placement == Placement::kMixed) s.update_slots = s.prefetch_groups = 1;
  return s;
}

// The sanitizer legs look for races, not for drift: fewer steps and rows.
bool pairwise() {
  const char* matrix = std::getenv("HEADRACE_MATRIX");
  return matrix != nullptr && std::string(matrix) == "pairwise";
}

std::string train(const Row& row, const std::shared_ptr<device::ComputingDevice>& device) {
  const testing::TemporaryDirectory directory;
  const testing::MlpOptions options{.layers = row.width > 1000 ? 1u : 3u,
                                    .width = row.width,
                                    .accumulation = row.accumulation,
                                    .max_norm = 0.05f,
                                    .dtype = row.dtype};
  Settings settings = settings_of(row, directory.string());
  if (row.placement == Placement::kMixed) {
    for (double share = 0; share < 0.05 || share > 0.95;) {
      settings.host_budget_bytes += 1 << 19;
      try {
        Engine engine(settings, {.device = device});
        const testing::Mlp network(engine, *device, options);
        share = engine.plan().resident_share_of_state;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kOutOfBudget) << error.what();
      }
    }
  }
  Engine engine(settings, {.device = device});
  testing::Mlp network(engine, *device, options);
  for (int step = 0; step < (pairwise() ? 2 : 5); ++step) network.train_step();
  const std::string hashes = engine.hash_parameters() + engine.hash_optimizer_state();
  engine.close();
  EXPECT_EQ(directory.entries(), 0u);
  return hashes;
}

TEST(CudaExactness, EveryPlacementGivesTheCpusHashes) {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    if (pairwise() && dtype == DType::kF16) continue;
    for (const std::uint32_t accumulation : {1u, 3u}) {
      if (pairwise() && accumulation == 1) continue;
      const std::string expected =
          train({Placement::kHost, UpdateMode::kBarrier, accumulation, dtype},
                device::make_computing_host());
      for (const Placement placement :
           {Placement::kDevice, Placement::kHost, Placement::kNvme, Placement::kMixed}) {
        for (const UpdateMode mode : {UpdateMode::kBarrier, UpdateMode::kDefer}) {
          // Half of the rows each, so that every other value meets both.
          const bool here = (static_cast<int>(placement) + static_cast<int>(mode) +
                             static_cast<int>(accumulation / 2) + static_cast<int>(dtype)) %
                                2 ==
                            0;
          const Row row{placement, mode, accumulation, dtype,
                        here ? UpdateOn::kCpu : UpdateOn::kDevice};
          SCOPED_TRACE(text_of(row) + ", seed " + std::to_string(seed));
          EXPECT_EQ(train(row, device::make_computing_cuda_device(seed++)), expected);
        }
      }
    }
  }
}

TEST(CudaExactness, UpdatesOnTheGpuGiveTheCpusMomentsOfFewerBits) {
  for (const MomentCodec moments : {MomentCodec::kBf16, MomentCodec::kBlock8}) {
    Row row{Placement::kHost, UpdateMode::kBarrier, 1, DType::kBf16, UpdateOn::kCpu, moments};
    const std::string expected = train(row, device::make_computing_host());
    row.on = UpdateOn::kDevice;
    for (const Placement placement : {Placement::kHost, Placement::kNvme}) {
      row.placement = placement;
      SCOPED_TRACE(text_of(row));
      EXPECT_EQ(train(row, device::make_computing_cuda_device(7)), expected);
    }
  }
}

// A chunk is 2^20 elements at most: here a tile has two, and the second is not whole.
TEST(CudaExactness, ATileThatGoesThereInChunksGivesTheCpusHashes) {
  for (const MomentCodec moments : {MomentCodec::kF32, MomentCodec::kBlock8}) {
    if (pairwise() && moments == MomentCodec::kF32) continue;
    Row row{Placement::kHost, UpdateMode::kBarrier,   1,   DType::kBf16, UpdateOn::kCpu,
            moments,          std::uint64_t{1} << 21, 1100};
    const std::string expected = train(row, device::make_computing_host());
    row.on = UpdateOn::kDevice;
    for (const Placement placement : {Placement::kHost, Placement::kNvme}) {
      row.placement = placement;
      SCOPED_TRACE(text_of(row));
      EXPECT_EQ(train(row, device::make_computing_cuda_device(9)), expected);
    }
  }
}

testing::MlpOptions network_of(const Row& row) {
  return {.width = row.width, .max_norm = 0.05f, .dtype = row.dtype};
}

// Two steps, and a checkpoint after them.
std::string save(const Row& row, const std::shared_ptr<device::ComputingDevice>& device,
                 const std::string& checkpoint) {
  const testing::TemporaryDirectory directory;
  Engine engine(settings_of(row, directory.string()), {.device = device});
  testing::Mlp network(engine, *device, network_of(row));
  network.train_step();
  network.train_step();
  save_checkpoint(engine, checkpoint);
  return engine.hash_parameters() + engine.hash_optimizer_state();
}

// From there, and through a sleep.
std::string go_on(const Row& row, const std::shared_ptr<device::ComputingDevice>& device,
                  const std::string& checkpoint) {
  const testing::TemporaryDirectory directory;
  Engine engine(settings_of(row, directory.string()), {.device = device});
  testing::Mlp network(engine, *device, network_of(row));
  load_checkpoint(engine, checkpoint);
  network.train_step();
  engine.sleep(directory.string());
  engine.wake();
  network.train_step();
  return engine.hash_parameters() + engine.hash_optimizer_state();
}

// In the middle, the engine is closed and its store is opened again.
std::string resume(const Row& row, std::uint64_t seed) {
  const testing::TemporaryDirectory directory;
  Settings settings = settings_of(row, directory.string());
  settings.nvme_paths = {directory.string()};
  settings.durable_every = 1;
  settings.store = "on-gpu";
  std::string hashes;
  for (int half = 0; half < 2; ++half) {
    const auto device = device::make_computing_cuda_device(seed + half);
    Engine engine(settings, {.device = device, .log = [](auto, auto) {}});
    testing::Mlp network(engine, *device, network_of(row));
    EXPECT_EQ(network.steps(), half == 0 ? 0u : 2u);
    network.train_step();
    network.train_step();
    hashes = engine.hash_parameters() + engine.hash_optimizer_state();
    engine.close();
  }
  return hashes;
}

std::string four_steps_on_the_cpu(const Row& row) {
  const auto device = device::make_computing_host();
  Engine engine(settings_of(row, ""), {.device = device});
  testing::Mlp network(engine, *device, network_of(row));
  for (int step = 0; step < 4; ++step) network.train_step();
  return engine.hash_parameters() + engine.hash_optimizer_state();
}

TEST(CudaExactness, CheckpointsSleepAndStoresGiveTheCpusHashes) {
  const Row cpu{Placement::kHost, UpdateMode::kBarrier, 1, DType::kBf16};
  const testing::TemporaryDirectory checkpoints;
  const std::string from_cpu = checkpoints.string() + "/cpu";
  const std::string saved = save(cpu, device::make_computing_host(), from_cpu);
  const std::string expected = go_on(cpu, device::make_computing_host(), from_cpu);
  const std::string undisturbed = four_steps_on_the_cpu(cpu);
  std::uint64_t seed = 21;
  for (const Placement placement : {Placement::kDevice, Placement::kHost, Placement::kNvme}) {
    for (const UpdateOn on : {UpdateOn::kCpu, UpdateOn::kDevice}) {
      const Row row{placement, UpdateMode::kDefer, 1, DType::kBf16, on};
      SCOPED_TRACE(text_of(row) + ", seed " + std::to_string(seed));
      const std::string from_gpu = checkpoints.string() + "/gpu" + std::to_string(seed);
      EXPECT_EQ(save(row, device::make_computing_cuda_device(seed++), from_gpu), saved);
      EXPECT_EQ(go_on(row, device::make_computing_cuda_device(seed++), from_cpu), expected);
      EXPECT_EQ(go_on(cpu, device::make_computing_host(), from_gpu), expected);
      EXPECT_EQ(resume(row, seed++), undisturbed);
    }
  }
}
}  // namespace
}  // namespace headrace
