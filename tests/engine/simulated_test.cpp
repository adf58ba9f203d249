// SPDX-License-Identifier: Apache-2.0
// simulated_test: the engine's coroutines under a virtual clock, with a drive whose transfers end
// in any order: no deadlock, the same bits, for any seed. A deadlock is an error of the simulated
// conductor, a read of anything but the generation last written one of the engine.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/engine_core.hpp"
#include "support/drive_simulated.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
struct Shape {
  std::uint32_t update_slots;
  std::uint32_t prefetch_groups;
  bool parameters_on_nvme;
  std::vector<double> drive_shares = {1};
};

std::string train(std::uint64_t seed, const Shape& shape) {
  const testing::TemporaryDirectory directory;
  Settings s;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = shape.parameters_on_nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  s.nvme_paths.assign(shape.drive_shares.size(), directory.string());
  s.drive_shares = shape.drive_shares;
  s.tile_elements = 65536;
  s.update_slots = shape.update_slots;
  s.prefetch_groups = shape.prefetch_groups;
  engine::EngineParts parts;
  parts.update_threads = 0;
  parts.make_conductor = [=] { return async::make_conductor_simulated({.seed = seed}); };
  parts.make_drive = [=](async::Conductor& conductor, swap::DriveOptions drive) {
    return std::make_unique<testing::DriveSimulated>(conductor, seed * 7 + 1 + drive.index);
  };
  const auto device = device::make_device_host();
  Engine engine(std::make_unique<EngineCore>(s, EngineOptions{.device = device}, parts));
  testing::Mlp network(engine, *device, {.layers = 3, .width = 280, .batch = 1, .max_norm = 0.05f});
  for (int step = 0; step < 3; ++step) network.train_step();
  std::string hash = engine.hash_parameters() + engine.hash_optimizer_state();
  engine.close();
  return hash;
}

TEST(EngineSimulated, EverySeedAndSlotCountEndsInTheSameBits) {
  const char* text = std::getenv("HEADRACE_SIMULATED_SEEDS");
  const std::uint64_t seeds = text == nullptr ? 40 : std::strtoull(text, nullptr, 10);
  const std::string expected = train(0, {4, 2, true});
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const Shape& shape :
         {Shape{1, 0, true}, Shape{2, 1, false}, Shape{3, 4, true}, Shape{3, 2, true, {1, 4, 2}}}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(shape.update_slots) +
                   " update slots, " + std::to_string(shape.drive_shares.size()) + " drives");
      ASSERT_EQ(train(seed, shape), expected);
    }
  }
}
}  // namespace
}  // namespace headrace
