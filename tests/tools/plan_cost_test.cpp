// SPDX-License-Identifier: Apache-2.0
// plan_cost_test: what a step takes, against cases worked out by hand, and over random models.
#include "plan/cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::tools::plan_cost_test {
namespace {
constexpr std::uint64_t kTile = 65536;
constexpr std::uint64_t kCommitRecord = 4096;

// Groups of so many tiles of bf16 each.
// A group's tiles are trained, but for the last `frozen` of it.
partition::Partition model_of(const std::vector<int>& tiles, std::uint32_t world = 1,
                              const std::vector<int>& frozen = {}) {
  std::vector<partition::GroupShape> groups;
  for (std::size_t g = 0; g < tiles.size(); ++g) {
    partition::GroupShape& group = groups.emplace_back();
    const int kept = g < frozen.size() ? std::min(frozen[g], tiles[g]) : 0;
    for (const bool is_frozen : {false, true}) {
      const std::int64_t rows = is_frozen ? kept : tiles[g] - kept;
      if (rows > 0)
        group.parameters.push_back(
            {"weight", DType::kBf16, {rows, static_cast<std::int64_t>(kTile)}, {}, is_frozen});
    }
  }
  return partition::make_partition(groups, kTile, 0, world);
}

struct Case {
  explicit Case(partition::Partition parts) : partition(std::move(parts)) {
    inputs.partition = &partition;
    inputs.groups.resize(partition.group_sections.size());
    inputs.settings.nvme_paths = {"/drive"};
    inputs.settings.tile_elements = partition.tile_elements;
    inputs.settings.update_mode = UpdateMode::kBarrier;
    work.groups.resize(partition.group_sections.size(), {1e9, 2e9});
    work.tokens = 1000;
    rates = {.nvme_read = 2e9, .nvme_write = 1e9, .memory = 1e12, .update = 1e9, .flops = 1e12};
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  void offload(OffloadDevice parameters, OffloadDevice state) {
    inputs.settings.offload_parameters = parameters;
    inputs.settings.offload_optimizer = state;
  }
  void commit_every(std::uint64_t steps) {
    inputs.settings.durable_every = steps;
    inputs.commit_bytes = kCommitRecord;
  }
  residency::Plan plan() const { return residency::make_plan(inputs); }
  Prediction run() {
    work.prefetch_groups = inputs.settings.prefetch_groups;
    work.micro_batches = inputs.settings.gradient_accumulation_steps;
    work.device_shares_host_memory = inputs.device_shares_host_memory;
    return predict(plan(), partition, work, rates);
  }

  partition::Partition partition;
  residency::PlanInputs inputs;
  StepWork work;
  Rates rates;
};

constexpr double kWeights = 2.0 * kTile;         // of one tile, bytes
constexpr double kRecord = 4096 + 10.0 * kTile;  // residual and two f32 moments

TEST(Cost, IsComputeGradientsAndUpdateWhereAllIsInMemory) {
  Case c(model_of({2, 3}));
  c.rates.memory = 1e9;
  const Prediction p = c.run();
  EXPECT_DOUBLE_EQ(p.forward.seconds, 2e-3);
  // Gradients are read once and written once, 2 bytes each.
  EXPECT_DOUBLE_EQ(p.backward.seconds, 4e-3 + 5 * kTile * 4 / 1e9);
  EXPECT_DOUBLE_EQ(p.update.seconds, 5 * kTile / 1e9);
  EXPECT_DOUBLE_EQ(p.step_seconds, p.forward.seconds + p.backward.seconds + p.update.seconds);
  EXPECT_EQ(p.bound, Bound::kCompute);
  EXPECT_EQ(p.free_tokens, 0);
  EXPECT_EQ(p.nvme_read_bytes + p.nvme_written_bytes + p.network_bytes, 0);
}
TEST(Cost, TakesBackwardAtARateOfItsOwn) {
  Case c(model_of({2, 3}));
  const Prediction at_one = c.run();
  c.rates.backward_flops = c.rates.flops / 2;
  const Prediction p = c.run();
  EXPECT_DOUBLE_EQ(p.forward.seconds, at_one.forward.seconds);
  EXPECT_DOUBLE_EQ(p.backward.seconds, at_one.backward.seconds + 4e-3);
}

TEST(Cost, OneUpdateSlotReadsUpdatesAndWritesInTurn) {
  Case c(model_of({4}));
  c.offload(OffloadDevice::kCpu, OffloadDevice::kNvme);
  c.inputs.settings.update_slots = 1;
  const double one = kRecord / 2e9 + kTile / 1e9 + kRecord / 1e9;
  EXPECT_NEAR(c.run().update.seconds, 4 * one, 1e-12);
}

TEST(Cost, AnUpdateOnTheDeviceIsBoundByTheLinkOrTheHostsMemory) {
  Case c(model_of({40}));
  c.inputs.device_shares_host_memory = false;
  c.inputs.settings.update_on = UpdateOn::kDevice;
  c.offload(OffloadDevice::kCpu, OffloadDevice::kCpu);
  c.rates.link = 1e9;
  c.rates.update = 1;  // of the CPU, which has nothing to do
  const double there = 14 * kTile / 1e9, back = 12 * kTile / 1e9;
  Prediction p = c.run();
  EXPECT_NEAR(p.update.seconds, 40 * there + there + back, 1e-12);
  EXPECT_NEAR(p.update.of(StepLane::kCopyToDevice), 40 * there, 1e-12);
  EXPECT_NEAR(p.update.of(StepLane::kCopyToHost), 40 * back, 1e-12);
  EXPECT_EQ(p.update.of(StepLane::kUpdate), 0);
  EXPECT_EQ(p.update.bound(), Bound::kCopies);
  c.rates.memory = 1e9;
  EXPECT_NEAR(c.run().update.seconds, 41 * (there + back), 1e-12);
  EXPECT_EQ(c.run().update.bound(), Bound::kMemory);
  c.rates.memory = 1e12;
  c.inputs.settings.update_on = UpdateOn::kAuto;
  EXPECT_TRUE(c.run().updates_on_device);
  c.rates.update = 40 * kTile / p.update.seconds;  // as fast: nothing moves for noise
  EXPECT_FALSE(c.run().updates_on_device);
  EXPECT_NEAR(c.run().update.seconds, p.update.seconds, 1e-12);
  c.rates.update *= 0.9;
  EXPECT_TRUE(c.run().updates_on_device);
  c.inputs.settings.update_on = UpdateOn::kDevice;
  c.offload(OffloadDevice::kCpu, OffloadDevice::kNvme);
  c.rates.verify = 1e8;  // records are verified and sealed by the CPU
  p = c.run();
  EXPECT_NEAR(p.update.of(StepLane::kUpdate), 40 * 2 * kRecord / 1e8, 1e-12);
  EXPECT_EQ(p.update.bound(), Bound::kUpdate);
}

TEST(Cost, SeveralUpdateSlotsLeaveTheBusiestLane) {
  Case c(model_of({40}));
  c.offload(OffloadDevice::kCpu, OffloadDevice::kNvme);
  const double drive = 40 * (kRecord / 2e9 + kRecord / 1e9);
  EXPECT_NEAR(c.run().update.seconds, drive, 1e-12);
  EXPECT_EQ(c.run().update.bound(), Bound::kNvme);
  c.rates.nvme_mixed = 2e9;  // both at once: 1 GB/s each way
  EXPECT_NEAR(c.run().update.seconds, 40 * kRecord / 1e9, 1e-12);
  c.rates.nvme_mixed = 9e9;  // no more than twice the slower way
  EXPECT_NEAR(c.run().update.seconds, 40 * kRecord / 1e9, 1e-12);
  c.rates.update_checked = 1e7;  // slower than the drives: the first read and last write remain
  EXPECT_NEAR(c.run().update.seconds, 40 * kTile / 1e7 + kRecord / 2e9 + kRecord / 1e9, 1e-12);
  EXPECT_EQ(c.run().update.bound(), Bound::kUpdate);
  c.work.checksums = false;
  EXPECT_NEAR(c.run().update.seconds, 40 * kRecord / 1e9, 1e-12);
}

TEST(Cost, WithoutPrefetchEveryGroupIsWaitedForButTheOneStillGathered) {
  Case c(model_of({1, 1, 1}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kCpu);
  c.inputs.settings.prefetch_groups = 0;
  c.rates.memory = 0;
  const double read = kWeights / 2e9;
  const Prediction p = c.run();
  EXPECT_NEAR(p.forward.seconds, 3 * (read + 1e-3), 1e-12);
  EXPECT_NEAR(p.backward.seconds, 2 * read + 3 * 2e-3, 1e-12);
}

TEST(Cost, PrefetchHidesReadsThatComputeOutlasts) {
  Case c(model_of({1, 1, 1, 1, 1, 1}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kCpu);
  c.rates.memory = 0;
  const double read = kWeights / 2e9;  // a fifteenth of compute
  const Prediction p = c.run();
  EXPECT_NEAR(p.forward.seconds, read + 6e-3, 1e-12);  // the first one is waited for
  EXPECT_NEAR(p.backward.seconds, 12e-3, 1e-12);       // the last three are still there
  // The other way round the drive never rests: a group is there when it is read.
  c.rates.flops = 1e15;
  const Prediction bound = c.run();
  EXPECT_NEAR(bound.forward.seconds, 6 * read + 1e-6, 1e-9);
  EXPECT_EQ(bound.forward.bound(), Bound::kNvme);
}

TEST(Cost, VerifyingTakesTheCoresThatComputeNeedsWhereTheDeviceIsTheCpu) {
  Case c(model_of({1, 1, 1, 1, 1, 1}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kCpu);
  c.rates.memory = 0;
  const double without = c.run().forward.seconds;
  c.rates.verify = 1e9;
  EXPECT_NEAR(c.run().forward.seconds, without + 6 * kWeights / 1e9, 1e-12);
  c.inputs.device_shares_host_memory = false;
  c.rates.link = 1e12;
  EXPECT_LT(c.run().forward.seconds, without + kWeights / 1e9 + 1e-6);
}

TEST(Cost, CheckpointingComputesForwardTwice) {
  Case c(model_of({1, 1}));
  const Prediction without = c.run();
  c.work.checkpointing = true;
  EXPECT_NEAR(c.run().backward.seconds, without.backward.seconds + 2e-3, 1e-12);
}

TEST(Cost, WeightsAndGradientsCrossTheLinkToADeviceOfItsOwn) {
  Case c(model_of({1, 1}));
  c.inputs.device_shares_host_memory = false;
  c.rates.link = 1e8;  // 1.3 ms a group
  const double one = kWeights / 1e8;
  const Prediction p = c.run();
  // With three slots but two groups, both copies begin at once, one behind the other.
  EXPECT_NEAR(p.forward.seconds, std::max(2 * one, one + 1e-3) + 1e-3, 1e-9);
  // Gathered already; the last gradient leaves after the last backward.
  EXPECT_NEAR(p.backward.seconds, 4e-3 + one, 1e-9);
}

TEST(Cost, FreeBatchIsWhereComputeLastsAsLongAsTheReads) {
  Case c(model_of({1, 1, 1, 1, 1, 1}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kCpu);
  const double read = kWeights / 2e9;
  // Forward: six reads beside 6 ms; backward: three beside 12 ms, so forward decides.
  EXPECT_NEAR(c.run().free_tokens, 1000 * 6 * read / 6e-3, 1e-9);
  c.offload(OffloadDevice::kCpu, OffloadDevice::kNvme);
  EXPECT_EQ(c.run().free_tokens, 0) << "the update never overlaps with a barrier";
  c.inputs.settings.update_mode = UpdateMode::kDefer;
  const Prediction p = c.run();
  EXPECT_NEAR(p.free_tokens,
              1000 * (p.update.seconds - p.update.busy[static_cast<int>(StepLane::kUpdate)]) / 6e-3,
              1e-9);
}

TEST(Cost, TheUpdateAheadOfTheNextForwardTakesTheLongerOfBoth) {
  Case c(model_of({4, 4, 4}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kNvme);
  const Prediction barrier = c.run();
  c.inputs.settings.update_mode = UpdateMode::kDefer;
  const Prediction p = c.run();
  // The drives decide: forward's own reads are gone.
  EXPECT_NEAR(p.step_seconds, p.backward.seconds + p.update.seconds, 1e-12);
  EXPECT_NEAR(p.forward.seconds, 3e-3 + 4 * kWeights * 2 / 1e12, 1e-12);  // the first is copied
  EXPECT_NEAR(barrier.nvme_read_bytes - p.nvme_read_bytes, 12 * kWeights, 1e-3);
  EXPECT_EQ(barrier.nvme_written_bytes, p.nvme_written_bytes);
  // Where drives are fast, the cores do both; a device of its own does forward meanwhile.
  c.rates.nvme_read = c.rates.nvme_write = 1e15;
  const double cores = 12 * kTile / 1e9 + 3e-3;
  EXPECT_NEAR(c.run().step_seconds, c.run().backward.seconds + cores, 1e-9);
  // Of four threads three are left for it.
  c.work.update_threads = 4;
  const double three = 12 * kTile / 1e9 * 4 / 3 + 3e-3;
  EXPECT_NEAR(c.run().step_seconds, c.run().backward.seconds + three, 1e-9);
  c.inputs.device_shares_host_memory = false;
  c.rates.link = 1e15;
  EXPECT_NEAR(c.run().step_seconds, c.run().backward.seconds + 3e-3, 1e-6);
}

TEST(Cost, OnlyTheFirstMicroBatchCanHideTheUpdate) {
  Case c(model_of({4, 4, 4}));
  c.offload(OffloadDevice::kCpu, OffloadDevice::kNvme);
  c.inputs.settings.update_mode = UpdateMode::kDefer;
  c.inputs.settings.gradient_accumulation_steps = 40;  // more than are played
  const Prediction p = c.run();
  EXPECT_NEAR(p.forward.seconds, 40 * 3e-3, 1e-9);
  EXPECT_NEAR(p.hidden_seconds, 3e-3, 1e-9);
}

// Less what is still in the one slot where forward turns to backward.
TEST(Cost, NetworkIs48BitsPerParameterForEachOtherMachine) {
  Case c(model_of({4, 4}, 4));
  c.work.machines = 4;
  c.rates.network = 1e9;
  c.inputs.settings.prefetch_groups = 0;
  const double bytes = 8 * kTile * 6 - 4 * kWeights;
  EXPECT_DOUBLE_EQ(c.run().network_bytes, bytes * 3 / 4);
  c.inputs.settings.zero_stage = 2;
  EXPECT_DOUBLE_EQ(c.run().network_bytes, 8 * kTile * 4 * 3 / 4.0) << "one gather";
  c.inputs.settings.zero_stage = 3;
  // With two ranks in each of two machines, half of what a rank lacks is in the other one. What is
  // gathered over NCCL comes to a machine once, for both of its ranks.
  c.work.machines = 2;
  EXPECT_DOUBLE_EQ(c.run().network_bytes, bytes / 2);
  c.inputs.device_shares_host_memory = false;
  const double reduced = 8 * kTile * 2, gathered = reduced;  // once: they stay on the device
  EXPECT_DOUBLE_EQ(c.run().network_bytes, gathered / 4 + reduced / 2);
  c.inputs.device_shares_host_memory = true;
  c.inputs.settings.zero_hpz_partition_size = 2;
  EXPECT_DOUBLE_EQ(c.run().network_bytes, reduced / 4 + reduced / 2) << "one gather";
  c.work.machines = 1;
  EXPECT_EQ(c.run().network_bytes, 0);
}

// What a node keeps is copied into the slot, and joined there at the rate of its own ranks.
TEST(Cost, LaterGathersStayWithinTheNode) {
  Case c(model_of({4, 4}, 4));
  c.work.machines = 2;
  c.rates.network = 1e9;
  c.rates.peers = 4e9;
  c.rates.call = 1e-3;
  c.inputs.settings.prefetch_groups = 0;
  const double group = 4 * kTile * 2;  // bytes
  const auto backward = [&] { return c.run().backward.of(StepLane::kNetwork); };
  const double call = 2e-3;  // with the exchange before it
  const double reduced = 2 * (call + group / 2 / 1e9);
  EXPECT_NEAR(backward(), reduced + call + group / 2 / 1e9, 1e-9);
  c.inputs.settings.zero_hpz_partition_size = 2;
  EXPECT_NEAR(backward(), reduced + call + group / 2 / 4e9, 1e-9);
  c.inputs.settings.gradient_accumulation_steps = 2;
  const double first = call + 1e-3 + group / 4 / 1e9 + group / 2 / 4e9;
  EXPECT_NEAR(c.run().forward.of(StepLane::kNetwork), 2 * first + call + group / 2 / 4e9, 1e-9)
      << "the second forward begins with what backward has left in the slot";
}

// A call for what the ranks of each node own, at the rate of this node's ranks; then one for the
// sums, of which there are 4 bytes for each of the rank's elements and other node.
TEST(Cost, SumsWithinANodeLeaveItOnce) {
  for (const std::uint32_t node_ranks : {2u, 4u}) {
    const std::uint32_t nodes = 8 / node_ranks;
    Case c(model_of({8, 8}, 8));
    c.work.machines = nodes;
    c.rates.network = 1e9;
    c.rates.peers = 4e9;
    c.rates.call = 1e-3;
    c.inputs.settings.prefetch_groups = 0;
    const double elements = 8 * kTile, ranks = node_ranks;
    const double gathered = 2e-3 + 2 * elements * (nodes - 1) / nodes / 1e9;
    const double whole = 2e-3 + 2 * elements * (nodes - 1) / nodes / 1e9;
    EXPECT_NEAR(c.run().backward.of(StepLane::kNetwork), 2 * whole + gathered, 1e-9);
    c.inputs.settings.hierarchical_reduce_ranks = node_ranks;
    const double sums = 4 * elements / ranks * (nodes - 1) / nodes;
    const double within = 2 * elements * (ranks - 1) / ranks;
    const double reduced = (2 + nodes) * 1e-3 + within / 4e9 + sums / 1e9;
    EXPECT_NEAR(c.run().backward.of(StepLane::kNetwork), 2 * reduced + gathered, 1e-9);
    const double gathers = 3;  // one group is still in the slot when backward begins
    EXPECT_DOUBLE_EQ(c.run().network_bytes,
                     gathers * 2 * elements * (nodes - 1) / nodes + 2 * sums);
  }
}

// Nodes of a part of a machine send the rest of it their sums at its rate; a node of two machines
// sends half of its gradients over the network.
TEST(Cost, NodesOfSumsNeedNotBeMachines) {
  Case c(model_of({8, 8}, 8));
  c.work.machines = 2;
  c.rates.network = 1e9;
  c.rates.peers = 4e9;
  c.rates.call = 0;
  c.inputs.settings.prefetch_groups = 0;
  const double elements = 8 * kTile, gathered = 2 * elements / 2 / 1e9;
  const auto reduced = [&](std::uint32_t ranks) {
    c.inputs.settings.hierarchical_reduce_ranks = ranks;
    return (c.run().backward.of(StepLane::kNetwork) - gathered) / 2;
  };
  const double sum = 4 * elements / 8;  // of a rank's shard
  EXPECT_NEAR(reduced(2), (elements + sum) / 4e9 + 2 * sum / 1e9, 1e-12);
  EXPECT_NEAR(reduced(8), 2 * elements / 8 * (3 / 4e9 + 4 / 1e9), 1e-12);
}

TEST(Cost, WhereNothingIsTrainedNothingIsReduced) {
  Case c(model_of({8}, 8, {8}));
  c.work.machines = 2;
  c.rates.network = 1e9;
  c.inputs.settings.hierarchical_reduce_ranks = 4;
  EXPECT_EQ(c.run().network_bytes, 2.0 * 8 * kTile / 2) << "gathered once";
}

// Where the next group is asked for before a group's use has ended, it comes first; with nothing
// joined ahead, the gradients do.
TEST(Cost, AGroupThatIsJoinedAheadComesBeforeGradients) {
  Case c(model_of({4, 4, 4, 4}, 4));
  c.work.machines = 4;
  c.rates.network = 1e9;
  c.rates.call = 0;
  const double transfer = 8 * kTile * 3 / 4 / 1e9;  // of a group, either way
  c.work.groups.assign(4, {transfer * 1e12, 2 * transfer * 1e12});
  c.inputs.settings.prefetch_groups = 1;
  // Backward computes for two transfers a group, and moves as many: all but the last is hidden.
  c.work.ranks_ahead = 1;
  const double ahead = c.run().backward.seconds;
  EXPECT_NEAR(ahead, (8 + 1) * transfer, 0.3 * transfer);
  c.work.ranks_ahead = 0;
  EXPECT_NEAR(c.run().backward.seconds - ahead, 4 * transfer, 0.3 * transfer)
      << "two groups are in no slot: compute waits for each, and for the gradients before it";
}

TEST(Cost, ACpuThatComputesCarriesWhatComesFromOtherRanks) {
  Case c(model_of({4, 4}, 2));
  c.work.machines = 2;
  c.rates.network = 1e15;
  c.rates.call = 0;
  const PhaseCost before = c.run().backward;
  c.rates.transport = 1e9;
  const PhaseCost with = c.run().backward;
  // Both groups' gradients; both groups are still in their slots.
  const double bytes = 2 * 4 * kTile * 2 / 2;
  EXPECT_NEAR(with.of(StepLane::kCompute) - before.of(StepLane::kCompute), bytes / 1e9, 1e-9);
}

TEST(Cost, SumsOfTensorParallelismAreWaitedForAndSavedActivationsAreNot) {
  Case c(model_of({4, 4, 4}, 2));
  c.inputs.device_shares_host_memory = false;
  c.rates.link = 1e9;
  c.rates.peers = 1e9;
  c.rates.call = 0;
  const double before = c.run().forward.of(StepLane::kCompute);
  c.work.tensor_parallel = 4;
  c.work.groups.assign(3, {1e9, 2e9, 4e5, 0});
  // Twice three quarters of the bytes, once in forward.
  EXPECT_NEAR(c.run().forward.of(StepLane::kCompute) - before, 3 * 2 * 0.75 * 4e5 / 1e9, 1e-9);
  c.work.groups.assign(3, {1e9, 2e9, 0, 4e5});
  const double kept = c.run().forward.seconds;
  c.work.saved_in_host_memory = true;
  EXPECT_NEAR(c.run().forward.of(StepLane::kCopyToHost), 3 * 4e5 / 1e9, 1e-9);
  EXPECT_NEAR(c.run().forward.seconds, kept, 1e-9) << "copied beside compute";
  EXPECT_NEAR(c.run().backward.of(StepLane::kCopyToDevice), 3 * 4e5 / 1e9,
              1e-9 + c.run().backward.of(StepLane::kCopyToDevice) / 2);
}

// 257/256 bytes for each parameter of 2 bytes that is gathered, 129/256 for its gradient.
TEST(Cost, QuantisedTransfersTakeLessOfTheNetwork) {
  Case c(model_of({4, 4}, 4));
  c.work.machines = 2;
  c.rates.network = 1e9;
  const Prediction exact = c.run();
  c.inputs.settings.zero_quantized_weights = true;
  const Prediction weights = c.run();
  c.inputs.settings.zero_quantized_gradients = true;
  const Prediction both = c.run();
  const double reduced = 8 * kTile * 2 / 2.0, gathered = exact.network_bytes - reduced;
  EXPECT_DOUBLE_EQ(weights.network_bytes, gathered * 257 / 512 + reduced);
  EXPECT_DOUBLE_EQ(both.network_bytes, gathered * 257 / 512 + reduced * 129 / 512);
  EXPECT_LT(weights.forward.of(StepLane::kNetwork), exact.forward.of(StepLane::kNetwork));
  EXPECT_LT(both.backward.of(StepLane::kNetwork), weights.backward.of(StepLane::kNetwork));
  EXPECT_DOUBLE_EQ(both.sent_bytes, exact.sent_bytes * both.network_bytes / exact.network_bytes);
}

// Four ranks on two machines: half of what a rank lacks comes from its own machine.
TEST(Cost, CollectiveCallsTakeTheSlowerOfBothWays) {
  Case c(model_of({4, 4}, 4));
  c.work.machines = 2;
  c.rates.network = 1e9;
  c.rates.peers = 4e9;
  c.rates.call = 1e-3;
  const double group = 4 * kTile * 2;  // bytes
  const auto forward = [&] { return c.run().forward.of(StepLane::kNetwork); };
  EXPECT_NEAR(forward(), 2 * (2e-3 + group / 2 / 1e9), 1e-9);
  c.rates.peers = 1e8;
  EXPECT_NEAR(forward(), 2 * (2e-3 + group / 4 / 1e8), 1e-9);
  c.work.machines = 1;  // three quarters come from there
  EXPECT_NEAR(forward(), 2 * (2e-3 + group * 3 / 4 / 1e8), 1e-9);
}

TEST(Cost, FrozenGroupsAreReadAndNothingElse) {
  Case c(model_of({4, 4, 4, 4, 4, 4}, 1, {0, 4, 4, 4, 4, 4}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kNvme);
  const residency::Plan plan = c.plan();
  const Prediction p = c.run();
  EXPECT_DOUBLE_EQ(p.nvme_written_bytes, 4 * (kRecord + kWeights));
  EXPECT_NEAR(p.nvme_read_bytes, plan.report.nvme_read_bytes_per_step, 1);
  EXPECT_NEAR(p.nvme_read_bytes, 4 * (kRecord + kWeights) + (24 + 12) * kWeights, 1);
  for (const PlanRow& row : plan.report.rows) {
    if (row.what == "gradients" || row.what == "optimizer state") {
      EXPECT_EQ(static_cast<double>(row.bytes), 4 * (row.what == "gradients" ? kWeights : kRecord));
    }
  }
}

TEST(Cost, MovesTheBytesThatThePlanReports) {
  for (const std::uint32_t micro_batches : {1u, 3u, 16u, 17u, 2u}) {
    // Of the last group the most; of the second all, or none.
    Case c(model_of({5, 2, 2, 2, 9}, 1, {0, micro_batches < 2 ? 2 : 0, 0, 1, 8}));
    c.offload(OffloadDevice::kNvme, OffloadDevice::kNvme);
    c.inputs.settings.gradient_accumulation_steps = micro_batches;
    if (micro_batches < 4) c.inputs.settings.update_mode = UpdateMode::kDefer;
    for (const std::uint64_t every : {0, 1, 3}) {
      double records = 0;  // which the plan leaves out
      if (every > 0) {
        c.commit_every(every);
        records = 2.0 * kCommitRecord / static_cast<double>(every);
      }
      c.inputs.settings.host_budget_bytes = every * (8u << 20);  // some of it in memory
      const PlanReport report = c.plan().report;
      const Prediction p = c.run();
      EXPECT_NEAR(p.nvme_read_bytes, report.nvme_read_bytes_per_step, 1) << micro_batches;
      EXPECT_NEAR(p.nvme_written_bytes, report.nvme_written_bytes_per_step + records, 1);
    }
  }
}

TEST(Cost, ACommitWritesWhatLivesInMemoryAndStepsWaitForWhatThePassesDoNotHide) {
  Case c(model_of({2, 3}));
  const Prediction without = c.run();
  EXPECT_EQ(without.commit.written_bytes, 0);
  c.commit_every(1);
  const double bytes = 5 * (kRecord + kWeights) + 2 * kCommitRecord, write = bytes / 1e9;
  Prediction p = c.run();
  EXPECT_DOUBLE_EQ(p.commit.written_bytes, bytes);
  EXPECT_NEAR(p.commit.seconds, write, 1e-12);
  EXPECT_DOUBLE_EQ(p.nvme_written_bytes, bytes);
  const double passes = p.forward.seconds + p.backward.seconds;
  ASSERT_GT(passes, write);
  EXPECT_EQ(p.commit.waited_seconds, 0);
  EXPECT_DOUBLE_EQ(p.step_seconds, without.step_seconds);
  c.rates.flush = 2e-3;  // of the tiles, then of the record
  p = c.run();
  EXPECT_NEAR(p.commit.seconds, write + 4e-3, 1e-12);
  EXPECT_NEAR(p.commit.waited_seconds, write + 4e-3 - passes, 1e-12);
  EXPECT_NEAR(p.step_seconds, without.step_seconds + p.commit.waited_seconds, 1e-12);
  c.commit_every(4);
  EXPECT_NEAR(c.run().commit.waited_seconds, (write + 4e-3 - passes) / 4, 1e-12);
  EXPECT_DOUBLE_EQ(c.run().nvme_written_bytes, bytes / 4);
  c.rates.nvme_write = 1e8;
  EXPECT_EQ(c.run().bound, Bound::kNvme);
}

TEST(Cost, AnUpdateSealsWhatACommitWritesFromMemory) {
  Case c(model_of({4}));
  c.rates.update_checked = c.rates.update / 3;
  EXPECT_NEAR(c.run().update.seconds, 4 * kTile / 1e9, 1e-12);
  c.commit_every(1);  // sealed, not verified: half of what checksums take
  EXPECT_NEAR(c.run().update.seconds, 4 * kTile * 2 / 1e9, 1e-12);
  c.work.checksums = false;
  EXPECT_NEAR(c.run().update.seconds, 4 * kTile / 1e9, 1e-12);
}

TEST(Cost, ACommitHasWhatTheReadsOfThePassesLeaveOfTheDrives) {
  Case c(model_of({1, 1, 1, 1, 1, 1}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kCpu);
  c.commit_every(1);
  c.rates.memory = 0;
  c.rates.flops = 1e15;  // the drives never rest, but for groups that are still there
  const Prediction p = c.run();
  const double read = p.forward.of(StepLane::kNvmeRead) + p.backward.of(StepLane::kNvmeRead);
  const double write = (6 * kRecord + 2 * kCommitRecord) / 1e9;
  EXPECT_NEAR(p.commit.waited_seconds, write + read - p.forward.seconds - p.backward.seconds,
              1e-12);
  // A deferred update comes first: the forward pass beside it is no time for a commit.
  c.inputs.settings.update_mode = UpdateMode::kDefer;
  const Prediction deferred = c.run();
  EXPECT_GT(deferred.hidden_seconds, 0);
  const double passes = deferred.forward.seconds + deferred.backward.seconds;
  const double reading = deferred.backward.of(StepLane::kNvmeRead);
  EXPECT_NEAR(deferred.commit.waited_seconds, write + reading - (passes - deferred.hidden_seconds),
              1e-12);
}

TEST(Cost, SpansOfALaneDoNotOverlapAndAddUpToItsWork) {
  Case c(model_of({5, 2, 2, 2, 9}));
  c.offload(OffloadDevice::kNvme, OffloadDevice::kNvme);
  const Prediction p = predict(c.plan(), c.partition, c.work, c.rates, Spans::kKeep);
  for (const StepLane lane : {StepLane::kCompute, StepLane::kNvmeRead}) {
    double at = 0, sum = 0;
    for (const Span& span : p.spans) {
      if (span.lane != lane) continue;
      EXPECT_GE(span.begin, at);
      EXPECT_GT(span.end, span.begin);
      at = span.end;
      sum += span.end - span.begin;
    }
    const auto l = static_cast<std::size_t>(lane);
    EXPECT_NEAR(sum, p.forward.busy[l] + p.backward.busy[l], 1e-9);
    EXPECT_LE(at, p.forward.seconds + p.backward.seconds + 1e-9);
  }
}

// A machine and a model by chance; the CPU reads memory no slower than the drives give.
void randomise(Case& c, std::mt19937& random) {
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto rate = [&](double least) { return least * (1 + upto(100)); };
  c.offload(OffloadDevice::kNvme, OffloadDevice::kNvme);
  Settings& s = c.inputs.settings;
  s.update_slots = static_cast<std::uint32_t>(1 + upto(6));
  s.prefetch_groups = static_cast<std::uint32_t>(upto(5));
  s.gradient_accumulation_steps = static_cast<std::uint32_t>(1 + upto(20));
  s.master = upto(2) == 0 ? MasterLayout::kSplit : MasterLayout::kF32;
  s.moments = std::array{MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8}[upto(3)];
  c.inputs.device_shares_host_memory = upto(2) == 0;
  for (residency::GroupTraits& g : c.inputs.groups)
    g = {.repeated_gradients = upto(4) == 0, .keep_bound = upto(8) == 0};
  for (GroupWork& g : c.work.groups) g = {rate(1e7), rate(2e7)};
  c.work.machines = c.partition.world_size;
  s.update_mode = std::array{UpdateMode::kAuto, UpdateMode::kBarrier, UpdateMode::kDefer}[upto(3)];
  c.work.checkpointing = upto(2) == 0;
  c.work.checksums = upto(2) == 0;
  c.rates = {.nvme_read = rate(1e8),
             .nvme_write = rate(1e8),
             .nvme_mixed = upto(2) * rate(1e8),
             .memory = rate(1e11),
             .update = rate(1e8),
             .verify = upto(2) * rate(1e9),
             .flops = rate(1e11),
             .link = rate(1e9),
             .network = rate(1e9)};
  c.rates.update_checked = c.rates.update / 2;
}

std::vector<int> random_tiles(std::mt19937& random) {
  std::vector<int> tiles(1 + random() % 12, 1 + static_cast<int>(random() % 6));
  for (int& count : tiles) {
    if (random() % 3 == 0) count = 1 + static_cast<int>(random() % 40);
  }
  return tiles;
}

TEST(Cost, NeitherSecondsNorBytesRiseWithTheHostBudget) {
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const std::vector<int> tiles = random_tiles(random);
    std::vector<int> frozen;  // of a few groups all, of a few some
    for (const int count : tiles)
      frozen.push_back(random() % 4 != 0 ? 0 : count / (1 + static_cast<int>(random() % 2)));
    Case c(model_of(tiles, 1 + static_cast<std::uint32_t>(random() % 2), frozen));
    randomise(c, random);
    c.inputs.settings.host_budget_bytes = 1ull << 50;
    const std::uint64_t least = c.plan().report.smallest_host_bytes;
    const std::uint64_t all = std::max(c.plan().report.host_bytes, least);
    double seconds = 0, bytes = 0;
    for (int i = 0; i <= 40; ++i) {
      // From the largest down; odd sizes on purpose.
      const auto share = static_cast<double>(40 - i) / 40;
      c.inputs.settings.host_budget_bytes =
          least + static_cast<std::uint64_t>(share * static_cast<double>(all - least));
      const residency::Plan plan = c.plan();
      ASSERT_LE(plan.report.host_bytes, c.inputs.settings.host_budget_bytes);
      const Prediction p = c.run();
      ASSERT_GE(p.step_seconds, seconds * (1 - 1e-12))
          << "seed " << seed << ", trial " << trial << ", budget "
          << c.inputs.settings.host_budget_bytes;
      ASSERT_GE(p.nvme_read_bytes + p.nvme_written_bytes, bytes - 1)
          << "seed " << seed << ", trial " << trial;
      seconds = p.step_seconds;
      bytes = p.nvme_read_bytes + p.nvme_written_bytes;
    }
  }
}
}  // namespace
}  // namespace headrace::tools::plan_cost_test
