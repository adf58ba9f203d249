// SPDX-License-Identifier: Apache-2.0
// memory_test: the memory that a save and a load take, of an engine whose
// values are ten times what it may hold in memory.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "base/units.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/engine.hpp"
#include "platform/machine.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
using base::kMiB;
constexpr std::uint64_t kBudgetBytes = 24 * kMiB;
constexpr std::uint64_t kRestBytes = 4 * kMiB;             // stacks, and the manifest
constexpr std::int64_t kElements = std::int64_t{1} << 20;  // of a parameter
constexpr std::uint32_t kTrained = 4, kFrozen = 96;
constexpr std::uint64_t kValueBytes = kElements * (14 * kTrained + 2 * kFrozen);
static_assert(kValueBytes >= 10 * kBudgetBytes);

// A trained parameter's gradients stay in memory, so most are frozen.
std::unique_ptr<Engine> make_engine(const std::string& drive) {
  Settings settings;
  settings.tile_elements = 65536;
  settings.nvme_paths = {drive};
  settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
  settings.host_budget_bytes = kBudgetBytes;
  auto engine = std::make_unique<Engine>(settings);
  for (std::uint32_t g = 0; g < kTrained + kFrozen; ++g) {
    engine->add_group(
        "g" + std::to_string(g),
        {{.name = "w", .dtype = DType::kBf16, .shape = {kElements}, .frozen = g >= kTrained}});
  }
  engine->freeze();
  return engine;
}

void fill(Engine& engine) {
  std::uint16_t next = 0;
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load(GroupId{g}, [&](ParameterId, std::span<std::byte> values) {
      for (std::size_t at = 0; at < values.size(); at += sizeof next) {
        const std::uint16_t finite = next++ & 0x3fff;
        std::memcpy(values.data() + at, &finite, sizeof finite);
      }
    });
  }
}

void expect_peak(const Engine& engine, std::uint64_t before, std::uint64_t buffers) {
  EXPECT_LE(engine.plan().host_bytes, kBudgetBytes);
  const std::uint64_t most = engine.plan().host_bytes + buffers + kRestBytes;
  EXPECT_LE(platform::peak_resident_bytes() - before, most)
      << "plan " << engine.plan().host_bytes << ", before " << before;
}

// The peak is that of what follows.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

TEST(CheckpointMemory, IsThatOfThePlanAndTheBuffersWhateverTheSizeOfTheValues) {
  const testing::TemporaryDirectory drive, saved;
  const std::string folder = saved.string() + "/a";
  std::uint64_t before = platform::resident_bytes();
  auto engine = make_engine(drive.string());
  fill(*engine);
  forget_peak();
  save_checkpoint(*engine, folder);
  expect_peak(*engine, before, engine->plan().save_bytes);
  const std::string parameters = engine->hash_parameters(), state = engine->hash_optimizer_state();
  engine.reset();

  before = platform::resident_bytes();
  engine = make_engine(drive.string());
  forget_peak();
  load_checkpoint(*engine, folder);
  expect_peak(*engine, before, engine->plan().load_bytes);
  EXPECT_EQ(engine->hash_parameters(), parameters);
  EXPECT_EQ(engine->hash_optimizer_state(), state);
}
}  // namespace
}  // namespace headrace
