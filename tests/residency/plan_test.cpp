// SPDX-License-Identifier: Apache-2.0
#include "residency/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::residency {
namespace {
constexpr std::uint64_t kTile = 65536;

partition::Partition transformer(std::uint64_t width, int blocks, std::uint32_t world = 1,
                                 std::uint64_t tile = kTile) {
  std::vector<partition::GroupShape> groups;
  const auto w = static_cast<std::int64_t>(width);
  for (int i = 0; i < blocks; ++i) {
    groups.push_back({{{"weight", DType::kBf16, {4, w, w}, {}}, {"gain", DType::kF32, {w}, {}}}});
  }
  return partition::make_partition(groups, tile, 0, world);
}

PlanInputs inputs_for(const partition::Partition& partition, OffloadDevice parameters,
                      OffloadDevice state) {
  PlanInputs inputs;
  inputs.partition = &partition;
  inputs.groups.resize(partition.group_sections.size());
  inputs.settings.offload_parameters = parameters;
  inputs.settings.offload_optimizer = state;
  inputs.settings.nvme_paths = {"/drive"};
  inputs.settings.tile_elements = partition.tile_elements;
  inputs.bookkeeping_bytes = 1000;
  return inputs;
}

// Ranges of the arena do not overlap and lie inside it.
void expect_disjoint(const Plan& plan) {
  std::vector<Range> ranges{plan.update_slot_memory,
                            plan.gather_slot_memory,
                            plan.transfer_slot_memory,
                            plan.load_staging,
                            plan.bucket_memory,
                            plan.packed_memory,
                            plan.scratch};
  for (const SectionPlan& s : plan.sections) {
    ranges.push_back(s.node_shard);
    ranges.push_back(s.resident_weight);
    ranges.push_back(s.gradient);
  }
  for (const TilePlan& t : plan.tiles) ranges.push_back(t.resident_record);
  std::erase_if(ranges, [](const Range& r) { return r.size_bytes == 0; });
  std::ranges::sort(ranges, {}, &Range::offset_bytes);
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) {
    EXPECT_LE(ranges[i].offset_bytes + ranges[i].size_bytes, ranges[i + 1].offset_bytes);
  }
  EXPECT_LE(ranges.back().offset_bytes + ranges.back().size_bytes, plan.arena_bytes);
}

TEST(Plan, HasRoomForQuantisedTransfersOfSeveralRanksAlone) {
  for (const std::uint32_t ranks : {1u, 4u}) {
    const auto partition = transformer(512, 8, ranks);
    auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
    const Plan exact = make_plan(inputs);
    inputs.settings.zero_quantized_weights = inputs.settings.zero_quantized_gradients = true;
    const Plan quantised = make_plan(inputs);
    expect_disjoint(quantised);
    EXPECT_EQ(quantised.wire.packed_parameters, ranks > 1);
    std::uint64_t largest = 0;
    for (const partition::Section& section : partition.sections)
      largest = std::max(largest, section.buffer_elements);
    EXPECT_EQ(quantised.packed_bytes, ranks > 1 ? base::align_up(largest * 257 / 256, 4096) : 0);
    EXPECT_EQ(quantised.report.sent_bytes_per_step<exact.report.sent_bytes_per_step, ranks> 1);
  }
}

TEST(Plan, MovesWhatTheDesignSaysWithNothingResident) {
  const auto partition = transformer(512, 80);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const auto parameters = static_cast<double>(partition.parameter_elements);
  inputs.settings.update_mode = UpdateMode::kDefer;
  EXPECT_NEAR(make_plan(inputs).report.nvme_read_bytes_per_step / parameters, 14, 0.14);
  inputs.settings.update_mode = UpdateMode::kBarrier;
  const Plan plan = make_plan(inputs);
  EXPECT_NEAR(plan.report.nvme_read_bytes_per_step / parameters, 16, 0.16);
  EXPECT_NEAR(plan.report.nvme_written_bytes_per_step / parameters, 12, 0.12);
  EXPECT_EQ(plan.report.resident_share_of_state, 0);
  EXPECT_EQ(plan.report.resident_share_of_parameters, 0);
  const Plan state = make_plan(inputs_for(partition, OffloadDevice::kCpu, OffloadDevice::kNvme));
  EXPECT_NEAR(state.report.nvme_read_bytes_per_step / parameters, 10, 0.1);
  EXPECT_NEAR(state.report.nvme_written_bytes_per_step / parameters, 10, 0.1);
  auto master = inputs_for(partition, OffloadDevice::kCpu, OffloadDevice::kNvme);
  master.settings.master = MasterLayout::kF32;
  EXPECT_NEAR(make_plan(master).report.nvme_read_bytes_per_step / parameters, 12, 0.12);
}

TEST(Plan, DefersUpdatesWhereThereIsSomethingToOverlap) {
  const auto partition = transformer(512, 8);
  const auto deferred = [&](OffloadDevice parameters, OffloadDevice state, auto change) {
    auto inputs = inputs_for(partition, parameters, state);
    change(inputs);
    const Plan plan = make_plan(inputs);
    EXPECT_EQ(plan.deferred, plan.report.deferred_updates);
    EXPECT_EQ(plan.deferred, summary(plan).find("updates deferred") != std::string::npos);
    return plan.deferred;
  };
  const auto as_it_is = [](PlanInputs&) {};
  EXPECT_TRUE(deferred(OffloadDevice::kNvme, OffloadDevice::kNvme, as_it_is));
  EXPECT_TRUE(deferred(OffloadDevice::kCpu, OffloadDevice::kNvme, as_it_is));
  EXPECT_FALSE(deferred(OffloadDevice::kCpu, OffloadDevice::kCpu, as_it_is));
  EXPECT_TRUE(deferred(OffloadDevice::kCpu, OffloadDevice::kCpu,
                       [](PlanInputs& in) { in.device_shares_host_memory = false; }));
  EXPECT_FALSE(deferred(OffloadDevice::kNvme, OffloadDevice::kNvme,
                        [](PlanInputs& in) { in.settings.prefetch_groups = 0; }));
  EXPECT_TRUE(deferred(OffloadDevice::kCpu, OffloadDevice::kCpu,
                       [](PlanInputs& in) { in.settings.update_mode = UpdateMode::kDefer; }));
  EXPECT_FALSE(deferred(OffloadDevice::kNvme, OffloadDevice::kNvme,
                        [](PlanInputs& in) { in.settings.update_mode = UpdateMode::kBarrier; }));
}

TEST(Plan, HasNoSlotsWhenEverythingIsResident) {
  const auto partition = transformer(256, 3);
  const Plan plan = make_plan(inputs_for(partition, OffloadDevice::kNone, OffloadDevice::kNone));
  EXPECT_EQ(plan.update_slots, 0u);
  EXPECT_EQ(plan.gather_slots, 0u);
  EXPECT_EQ(plan.report.nvme_bytes, 0u);
  EXPECT_TRUE(std::ranges::all_of(plan.group_in_place, [](bool b) { return b; }));
  expect_disjoint(plan);
}

TEST(Plan, DealsTilesOverDrivesAgainAndChangesNothingInMemory) {
  const auto partition = transformer(512, 20);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  inputs.settings.nvme_paths = {"/a", "/b", "/c"};
  const Plan even = make_plan(inputs);
  Plan again = even;
  deal_again(again, partition, inputs.settings.nvme_paths,
             {{.weight = 1}, {.weight = 0}, {.weight = 3, .read_bytes_per_second = 2e9}});
  ASSERT_EQ(again.report.drives.size(), 3u);
  EXPECT_NEAR(again.report.drives[0].share, 0.25, 0.01);
  EXPECT_EQ(again.report.drives[1].bytes, 0u);
  EXPECT_EQ(again.drive_bytes[1], 0u) << "no spare extent where nothing is stored";
  EXPECT_EQ(again.report.drives[2].path, "/c");
  EXPECT_EQ(again.report.drives[2].read_bytes_per_second, 2e9);
  EXPECT_NE(again.report.to_text().find("/a: 25."), std::string::npos) << again.report.to_text();
  EXPECT_NE(again.report.to_text().find("more, during load_checkpoint()"), std::string::npos);
  EXPECT_EQ(again.arena_bytes, even.arena_bytes);
  EXPECT_EQ(again.report.host_bytes, even.report.host_bytes);
  for (const Plan* const plan : std::initializer_list<const Plan*>{&even, &again}) {
    std::uint64_t rows = 0, files = 0;
    for (const PlanRow& row : plan->report.rows) rows += row.tier == "nvme" ? row.bytes : 0;
    for (const std::uint64_t bytes : plan->drive_bytes) files += bytes;
    EXPECT_EQ(plan->report.nvme_bytes, rows);
    EXPECT_EQ(plan->report.nvme_bytes, files);
  }
}

TEST(Plan, LeavesRoomForTheCommitRecordsOfADriveThatIsNearlyFull) {
  const auto partition = transformer(512, 20);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  inputs.settings.nvme_paths = {"/a", "/b"};
  inputs.settings.durable_every = 1;
  inputs.commit_bytes = 16 << 20;  // six records on each drive
  Plan plan = make_plan(inputs);
  constexpr std::uint64_t kFree = 200 << 20;
  ASSERT_GT(plan.drive_bytes[0], kFree);
  deal_again(plan, partition, inputs.settings.nvme_paths,
             {{.weight = 1, .free_bytes = kFree}, {.weight = 1}});
  EXPECT_LE(plan.drive_bytes[0], kFree);
  EXPECT_GT(plan.drive_bytes[0], kFree / 2);
}

TEST(Plan, KeepsUnderALargerBudgetWhatItKeptUnderASmallerOne) {
  const auto partition = transformer(256, 9);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const std::uint64_t least = make_plan(inputs).report.host_bytes;
  Plan before;
  for (std::uint64_t more = 0; more < 40 * base::kMiB; more += 300'000) {
    inputs.settings.host_budget_bytes = least + more;
    const Plan plan = make_plan(inputs);
    for (std::size_t s = 0; s < before.sections.size(); ++s)
      EXPECT_FALSE(before.sections[s].weight == Tier::kHost &&
                   plan.sections[s].weight == Tier::kNvme);
    for (std::size_t t = 0; t < before.tiles.size(); ++t)
      EXPECT_FALSE(before.tiles[t].record == Tier::kHost && plan.tiles[t].record == Tier::kNvme);
    before = plan;
  }
  EXPECT_EQ(before.report.nvme_bytes, 0u);
}

TEST(Plan, SpreadsResidentTilesAmongThoseThatStream) {
  const auto partition = transformer(256, 32);
  auto inputs = inputs_for(partition, OffloadDevice::kCpu, OffloadDevice::kNvme);
  const Plan none = make_plan(inputs);
  std::uint64_t records = 0;
  for (const TilePlan& tile : none.tiles) records += tile.layout.size_bytes;
  inputs.settings.host_budget_bytes = none.report.host_bytes + records / 2;
  const Plan half = make_plan(inputs);
  EXPECT_NEAR(half.report.resident_share_of_state, 0.5, 0.15);
  std::size_t in_a_row = 0, most = 0;
  for (const TilePlan& tile : half.tiles) {
    in_a_row = tile.record == Tier::kHost ? in_a_row + 1 : 0;
    most = std::max(most, in_a_row);
  }
  EXPECT_LE(most, 4u) << "drives would rest while they are updated";
}

TEST(Plan, KeepsParametersBeforeStateUnderABudget) {
  const auto partition = transformer(256, 8);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const Plan least = make_plan(inputs);
  inputs.settings.host_budget_bytes = least.report.host_bytes + 8 * base::kMiB;
  const Plan some = make_plan(inputs);
  EXPECT_EQ(some.report.resident_share_of_parameters, 1);
  EXPECT_GT(some.report.resident_share_of_state, 0);
  EXPECT_LT(some.report.resident_share_of_state, 1);
  inputs.settings.host_budget_bytes = base::kGiB;
  const Plan all = make_plan(inputs);
  EXPECT_EQ(all.report.resident_share_of_state, 1);
  EXPECT_EQ(all.report.nvme_bytes, 0u);
}

TEST(Plan, RefusesTooSmallABudgetAndNamesTheSmallestThatDoes) {
  const auto partition = transformer(256, 4);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  inputs.settings.host_budget_bytes = 1;
  std::uint64_t smallest = 0;
  try {
    make_plan(inputs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfBudget);
    const std::string text = error.what();
    const auto at = text.find("smallest budget that would do is ");
    ASSERT_NE(at, std::string::npos) << text;
    smallest = std::stoull(text.substr(at + 33));
    EXPECT_NE(text.find("gradients"), std::string::npos) << "the table is part of it";
    EXPECT_NE(text.back(), '\n');
  }
  inputs.settings.host_budget_bytes = smallest;
  EXPECT_LE(make_plan(inputs).report.host_bytes, smallest);
  inputs.settings.host_budget_bytes = smallest - 1;
  EXPECT_THROW(make_plan(inputs), Error);
}

TEST(Plan, RefusesWhatTheMachineDoesNotLeaveEvenWithoutABudget) {
  const auto partition = transformer(256, 4);
  auto inputs = inputs_for(partition, OffloadDevice::kCpu, OffloadDevice::kCpu);
  inputs.machine_left_bytes = 8 * base::kMiB;
  inputs.machine_limit_source = "cgroup memory.max of /job";
  try {
    make_plan(inputs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cgroup memory.max of /job"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("nvme"), std::string::npos) << error.what();
  }
}

std::string refusal(const PlanInputs& inputs) {
  try {
    make_plan(inputs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfBudget);
    return error.what();
  }
  return "accepted";
}

TEST(Plan, AdvisesToOffloadWhatIsNotOnADriveYetAndIsRight) {
  const auto partition = transformer(256, 8);
  const auto none = OffloadDevice::kNone, nvme = OffloadDevice::kNvme;
  const std::uint64_t moved =
      make_plan(inputs_for(partition, nvme, nvme)).report.smallest_host_bytes;
  const std::string state = "zero_optimization.offload_optimizer.device";
  const std::string parameters = "zero_optimization.offload_param.device";
  auto inputs = inputs_for(partition, none, none);
  for (const bool budget : {true, false}) {
    inputs.settings.host_budget_bytes = budget ? 8 * base::kMiB : 0;
    inputs.machine_left_bytes = budget ? 0 : 8 * base::kMiB;
    const std::string text = refusal(inputs);
    EXPECT_NE(text.find("Set " + state + " and " + parameters +
                        " to nvme, with which it would be " + std::to_string(moved) + " bytes"),
              std::string::npos)
        << text;
  }
  inputs.settings.offload_optimizer = nvme;
  EXPECT_NE(refusal(inputs).find("Set " + parameters + " to nvme"), std::string::npos)
      << refusal(inputs);
  inputs.settings.offload_parameters = nvme;
  inputs.machine_left_bytes = 1;
  EXPECT_EQ(refusal(inputs).find("to nvme"), std::string::npos) << refusal(inputs);
}

TEST(Plan, BelowStage3KeepsEachGroupInASlotOfItsSize) {
  std::vector<partition::GroupShape> groups;
  for (const std::int64_t elements : {1000, 300'000, 4096})
    groups.push_back({{{"w", DType::kBf16, {elements}, {}}}});
  const auto none = OffloadDevice::kNone;
  for (const std::uint32_t world : {1u, 3u}) {
    const auto partition = partition::make_partition(groups, kTile, 0, world);
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      auto inputs = inputs_for(partition, none, none);
      inputs.settings.zero_stage = stage;
      const Plan plan = make_plan(inputs);
      const bool keeps = world > 1 && stage < 3;
      EXPECT_EQ(plan.slot_per_group, keeps) << world << " ranks, stage " << stage;
      if (keeps) {
        EXPECT_EQ(plan.gather_slot_offset_bytes, (std::vector<std::uint64_t>{0, 4096, 606'208}));
        EXPECT_EQ(plan.gather_slot_memory.size_bytes, plan.gather_bytes);
        EXPECT_EQ(plan.gather_bytes, 606'208u + 8192);
      }
      expect_disjoint(plan);
    }
  }
  const auto partition = partition::make_partition(groups, kTile, 0, 1);
  auto inputs = inputs_for(partition, none, none);
  inputs.device_shares_host_memory = false;
  EXPECT_EQ(make_plan(inputs).report.device_bytes, 606'208u + 8192)
      << "parameters that stay on a device take what they are, not what the largest is";
}

TEST(Plan, AdvisesStage3WhereJoinedParametersHaveNoRoomAndIsRight) {
  const auto partition = transformer(256, 40, 4);
  const auto nvme = OffloadDevice::kNvme;
  auto inputs = inputs_for(partition, nvme, nvme);
  const std::uint64_t at_stage_3 = make_plan(inputs).report.smallest_host_bytes;
  inputs.settings.zero_stage = 2;
  inputs.settings.host_budget_bytes = at_stage_3;
  EXPECT_NE(refusal(inputs).find("Set zero_optimization.stage to 3, where parameters do not stay "
                                 "joined: it would be " +
                                 std::to_string(at_stage_3) + " bytes"),
            std::string::npos)
      << refusal(inputs);
  inputs.device_shares_host_memory = false;
  inputs.settings.host_budget_bytes = 0;
  inputs.settings.device_budget_bytes = base::kMiB;
  EXPECT_NE(refusal(inputs).find("Set zero_optimization.stage to 3"), std::string::npos)
      << refusal(inputs);
}

TEST(Plan, DoesNotAdviseToOffloadAModelThatThisWouldMakeLarger) {
  const auto partition = transformer(16, 1);
  auto inputs = inputs_for(partition, OffloadDevice::kNone, OffloadDevice::kNone);
  inputs.settings.host_budget_bytes = 1;
  EXPECT_EQ(refusal(inputs).find("to nvme"), std::string::npos) << refusal(inputs);
}

TEST(Plan, SaysByHowMuchABudgetIsTooSmallHoweverLittleThatIs) {
  const auto partition = transformer(256, 4);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const std::uint64_t smallest = make_plan(inputs).report.smallest_host_bytes;
  inputs.settings.host_budget_bytes = smallest - 1;
  const std::string text = refusal(inputs);
  EXPECT_NE(text.find("needs " + base::format_bytes_exactly(smallest)), std::string::npos) << text;
  EXPECT_NE(text.find("budget is " + base::format_bytes_exactly(smallest - 1)), std::string::npos)
      << text;
  EXPECT_NE(base::format_bytes_exactly(smallest), base::format_bytes_exactly(smallest - 1));
}

TEST(Plan, NamesTheTileSizeThatWouldFit) {
  const auto inputs_with = [](const partition::Partition& partition, std::uint64_t budget) {
    auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
    inputs.settings.host_budget_bytes = budget;
    return inputs;
  };
  const auto partition = transformer(512, 8, 1, 16 * kTile);
  const auto smallest_with = [&](std::uint64_t tile) {
    const auto other = transformer(512, 8, 1, tile);
    return smallest_host_bytes(inputs_with(other, 1));
  };
  ASSERT_LT(smallest_with(kTile), smallest_with(4 * kTile));
  ASSERT_LT(smallest_with(4 * kTile), smallest_with(16 * kTile));
  auto inputs = inputs_with(partition, smallest_with(4 * kTile));
  inputs.smallest_with_tiles = smallest_with;
  const std::string fits = refusal(inputs);
  EXPECT_NE(fits.find("Set headrace.tile_elements to 262144 (it is 1048576)"), std::string::npos)
      << fits;
  const auto smaller = transformer(512, 8, 1, 4 * kTile);
  EXPECT_LE(make_plan(inputs_with(smaller, smallest_with(4 * kTile))).report.host_bytes,
            smallest_with(4 * kTile));
  inputs.settings.host_budget_bytes = smallest_with(kTile) - 1;
  const std::string never = refusal(inputs);
  EXPECT_NE(never.find("With headrace.tile_elements "), std::string::npos) << never;
  EXPECT_NE(
      never.find(" (it is 1048576) it would be " + std::to_string(smallest_with(kTile)) + " bytes"),
      std::string::npos)
      << never;
}

TEST(Plan, RefusesABudgetThatFillsMoreThanTheMachineLeaves) {
  const auto partition = transformer(512, 20);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const std::uint64_t smallest = make_plan(inputs).report.smallest_host_bytes;
  inputs.settings.host_budget_bytes = base::kGiB;
  inputs.machine_left_bytes = smallest + 20 * base::kMiB;
  inputs.machine_limit_source = "MemAvailable";
  const std::string text = refusal(inputs);
  EXPECT_NE(text.find("for a budget of 1 GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("is left (MemAvailable)"), std::string::npos) << text;
  inputs.settings.host_budget_bytes = inputs.machine_left_bytes;
  const Plan plan = make_plan(inputs);
  EXPECT_LE(plan.report.host_bytes, inputs.machine_left_bytes);
  EXPECT_EQ(plan.report.host_left_bytes, inputs.machine_left_bytes);
  EXPECT_NE(summary(plan).find(" left (MemAvailable)"), std::string::npos) << summary(plan);
}

TEST(Plan, SaysWhenASmallModelTakesMoreMemoryThanItWouldInMemory) {
  const auto partition = transformer(256, 2, 1, 16 * kTile);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const Plan wasteful = make_plan(inputs);
  const std::string& warning = wasteful.warning;
  const auto at = warning.find("set headrace.host_budget_bytes to ");
  ASSERT_NE(at, std::string::npos) << warning;
  inputs.settings.host_budget_bytes = std::stoull(warning.substr(at + 34));
  EXPECT_LT(inputs.settings.host_budget_bytes, wasteful.report.host_bytes);
  const Plan resident = make_plan(inputs);
  EXPECT_EQ(resident.report.host_bytes, inputs.settings.host_budget_bytes);
  EXPECT_EQ(resident.report.nvme_bytes, 0u);
  EXPECT_EQ(resident.warning, "");
  const auto large = transformer(512, 20);
  EXPECT_EQ(make_plan(inputs_for(large, OffloadDevice::kNvme, OffloadDevice::kNvme)).warning, "");
}

// A store has a copy of all that is in memory, and ranks gather into slots: neither is offloading.
TEST(Plan, HasNoWarningWhereAllIsInMemoryBesideAStore) {
  for (const std::uint32_t ranks : {1u, 2u, 4u}) {
    const auto partition = transformer(256, 2, ranks, 16 * kTile);
    auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
    inputs.commit_bytes = 8192;
    inputs.settings.durable_every = 1;
    inputs.settings.host_budget_bytes = base::kGiB;
    const Plan plan = make_plan(inputs);
    EXPECT_EQ(plan.report.resident_share_of_parameters, 1);
    EXPECT_EQ(plan.report.resident_share_of_state, 1);
    EXPECT_GT(plan.report.nvme_bytes, 0u);
    EXPECT_EQ(plan.warning, "") << ranks << " ranks";
  }
}

TEST(Plan, WarnsWithABudgetThatKeepsAllInMemory) {
  for (const std::uint64_t width : {128, 256, 512}) {
    const auto partition = transformer(width, 2, 2, 16 * kTile);
    auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
    const std::string warning = make_plan(inputs).warning;
    const auto at = warning.find("set headrace.host_budget_bytes to ");
    if (at == std::string::npos) continue;
    inputs.settings.host_budget_bytes = std::stoull(warning.substr(at + 34));
    const Plan resident = make_plan(inputs);
    EXPECT_EQ(resident.report.nvme_bytes, 0u) << width;
    EXPECT_EQ(resident.warning, "") << width;
  }
}

TEST(Plan, IsSummedUpInOneLine) {
  const auto partition = transformer(512, 20);
  auto inputs = inputs_for(partition, OffloadDevice::kNvme, OffloadDevice::kNvme);
  const Plan plan = make_plan(inputs);
  const std::string text = summary(plan);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  for (const std::string& part :
       {"plan: " + std::to_string(partition.parameter_elements) + " parameters; host " +
            base::format_bytes(plan.report.host_bytes) + ", nvme " +
            base::format_bytes(plan.report.nvme_bytes),
        std::string("in memory 0.0 % of parameters, 0.0 % of optimizer state"),
        std::string("; gather slots 3 x "), std::string("; update slots 4 x ")}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Plan, SaysWhatChangesResults) {
  const auto partition = transformer(512, 2, 8);
  auto inputs = inputs_for(partition, OffloadDevice::kCpu, OffloadDevice::kCpu);
  inputs.settings.zero_stage = 1;
  EXPECT_EQ(what_changes_results(make_plan(inputs)), "");
  inputs.settings.zero_quantized_weights = true;
  EXPECT_EQ(what_changes_results(make_plan(inputs)),
            "results are not exact: ranks send parameters in 8 bits; they are the same for any "
            "number of ranks but one");
  inputs.settings.hierarchical_reduce_ranks = 4;
  const std::string both = what_changes_results(make_plan(inputs));
  EXPECT_NE(both.find("Also, gradients are summed in nodes of 4 ranks first"), std::string::npos)
      << both;
}

// Any budget from the smallest up: never over it, ranges disjoint, rows add up, with enough nothing
// moves.
TEST(Plan, StaysWithinAnyBudgetAndCutsTheArenaWithoutOverlap) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    const auto world = static_cast<std::uint32_t>(1 + random() % 3);
    const auto partition =
        transformer(64 + random() % 300, 1 + static_cast<int>(random() % 9), world);
    auto inputs = inputs_for(partition, random() % 2 ? OffloadDevice::kNvme : OffloadDevice::kCpu,
                             OffloadDevice::kNvme);
    inputs.device_shares_host_memory = random() % 2 == 0;
    inputs.groups[0].repeated_gradients = random() % 2 == 0;
    inputs.groups[0].keep_bound = random() % 3 == 0;
    const std::uint64_t smallest = make_plan(inputs).report.smallest_host_bytes;
    double moved = 0;
    for (int s = 0; s <= 12; ++s) {
      inputs.settings.host_budget_bytes =
          smallest + s * (partition.parameter_elements * 14 + (8 << 20)) / 12;
      const Plan plan = make_plan(inputs);
      EXPECT_LE(plan.report.host_bytes, inputs.settings.host_budget_bytes);
      moved = plan.report.nvme_read_bytes_per_step + plan.report.nvme_written_bytes_per_step;
      expect_disjoint(plan);
      std::uint64_t host = 0;
      for (const PlanRow& row : plan.report.rows) host += row.tier == "host" ? row.bytes : 0;
      EXPECT_EQ(host, plan.report.host_bytes);
      EXPECT_EQ(host, plan.arena_bytes + plan.frame_bytes + 1000);
    }
    EXPECT_EQ(moved, 0);
  }
}
}  // namespace
}  // namespace headrace::residency
