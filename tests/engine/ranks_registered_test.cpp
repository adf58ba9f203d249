// SPDX-License-Identifier: Apache-2.0
// ranks_registered_test: engines over an NCCL that knows their memory
// (NcclOptions::register_memory).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/computing_device.hpp"
#include "support/rank_engines.hpp"

namespace headrace::ranks_registered_test {
namespace {
using namespace rank_engines;

// As a GPU's, its memory is none of the host's, so slots and buckets are not in the arena.
class MemoryApart final : public device::ForwardingDevice<ComputingDevice> {
 public:
  explicit MemoryApart(const std::shared_ptr<ComputingDevice>& to)
      : ForwardingDevice(to), launches_(to) {}
  bool shares_host_memory() const noexcept override { return false; }
  void launch(Stream stream, std::function<void()> kernel) override {
    launches_->launch(stream, std::move(kernel));
  }

 private:
  const std::shared_ptr<ComputingDevice> launches_;
};

void train(Engine& engine, std::uint32_t rank) {
  std::vector<std::uint16_t> bf16(300 * 300, static_cast<std::uint16_t>(0x3c00 + rank));
  std::vector<float> f32(300, 0.25f + static_cast<float>(rank));
  for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
  for (std::uint32_t g = kGroups; g-- > 0;) {
    (void)engine.gather({g});
    for (const ParameterId id : engine.parameters({g})) {
      if (id == kFrozen) continue;
      const DType dtype = engine.spec(id).dtype;
      const void* const gradient =
          dtype == DType::kF32 ? static_cast<const void*>(f32.data()) : bf16.data();
      engine.add_gradient(id, gradient, dtype);
    }
  }
  engine.step({.learning_rate = 1e-2f});
}

struct Outcome {
  std::string hash;
  int launched = 0, launched_registered = 0, registrations = 0;
};

// Two steps, then a third one after all have slept.
Outcome outcome_of(std::uint32_t ranks, const Settings& settings, bool registers) {
  std::vector<std::shared_ptr<ComputingDevice>> devices;
  for (std::uint32_t r = 0; r < ranks; ++r)
    devices.push_back(
        std::make_shared<MemoryApart>(collective::nccl_device(NcclFlavour::kLate, r + 1)));
  const auto world = collective::nccl_world(
      make_thread_transports(ranks), devices, /*may_block=*/false,
      [&](std::uint32_t, NcclOptions& options) {
        options.register_memory = registers;
        options.warn = [](const std::string& line) { ADD_FAILURE() << line; };
      });
  Outcome outcome;
  std::vector<std::string> hashes(ranks);
  const auto count = [&](auto* of_world) { return of_world(world.id.data()); };
  const auto errors = run_ranks(
      over_nccl(world), [&](std::uint32_t) { return settings; },
      [&](Rank& rank) {
        register_model(rank.engine);
        rank.engine.freeze();
        load_all(rank.engine);
        for (int step = 0; step < 2; ++step) train(rank.engine, rank.number);
        rank.engine.sleep(::testing::TempDir());
        rank.engine.wake();
        train(rank.engine, rank.number);
        hashes[rank.number] = rank.engine.hash_parameters() + rank.engine.hash_optimizer_state();
        if (rank.number == 0)
          outcome.registrations = count(SIMULATED_NCCL(simulated_nccl_registrations));
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
  outcome.hash = hashes[0];
  outcome.launched = count(SIMULATED_NCCL(simulated_nccl_launched));
  outcome.launched_registered = count(SIMULATED_NCCL(simulated_nccl_launched_registered));
  EXPECT_EQ(count(SIMULATED_NCCL(simulated_nccl_registrations)), 0) << "after close";
  return outcome;
}

// Slots, packed parameters, buckets, what is taken from others, and sums of nodes.
TEST(RanksRegistered, PassNothingElse) {
  Settings plain = accumulating(1), each = plain, nodes = plain, sums = plain, packed = plain;
  each.rank_agreement = RankOrder::kEach;
  nodes.zero_hpz_partition_size = 2;
  sums.hierarchical_reduce_ranks = 2;
  packed.zero_quantized_weights = packed.zero_quantized_gradients = true;
  for (const auto& [ranks, settings] :
       {std::pair{2u, plain}, {2u, each}, {3u, plain}, {4u, nodes}, {4u, sums}, {2u, packed}}) {
    const Outcome with = outcome_of(ranks, settings, true);
    EXPECT_GT(with.registrations, 0);
    EXPECT_GT(with.launched, 0);
    EXPECT_EQ(with.launched_registered, with.launched);
    const Outcome without = outcome_of(ranks, settings, false);
    EXPECT_EQ(with.hash, without.hash);
    EXPECT_EQ(without.launched_registered, 0);
  }
}
}  // namespace
}  // namespace headrace::ranks_registered_test
