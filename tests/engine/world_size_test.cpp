// SPDX-License-Identifier: Apache-2.0
// world_size_test: every model of support/world_training.hpp ends in the same bits on any number of
// ranks, over any transport of one process, wherever the state lies and whenever it is updated,
// whether the ranks work ahead of their trainers or not.
//
// HEADRACE_MATRIX=pairwise takes rows in which every pair of values of two columns occurs; few: a
// sixth of those for each model, not the same ones.
// Processes over Gloo and MPI train the same models: tests/torch/gloo_ranks_test.cpp, tests/mpi.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collective/nccl_world.hpp"
#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/late_transport.hpp"
#include "support/pairwise.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"
#include "support/world_training.hpp"

namespace headrace::world_size_test {
namespace {
using collective::NcclFlavour;
using device::HostFlavour;
using testing::WorldModel;
using testing::WorldOutcome;
using testing::WorldPlace;
using testing::WorldSetup;

enum class Over { kThreads, kLate, kNccl };
constexpr std::array<const char*, 3> kOver = {"threads", "a late transport", "simulated NCCL"};

struct Row {
  Over over;
  std::uint32_t world;
  WorldPlace place;
  UpdateMode mode;
  RankOrder order;
  std::uint32_t stage;
  bool late_device;
  bool quantised = false;
  // Four ranks are two nodes in every other row.
  std::uint32_t node_ranks() const { return world == 4 && stage == 3 && late_device ? 2 : 1; }
  std::string text() const {
    return std::to_string(world) + " ranks over " + kOver[static_cast<std::size_t>(over)] + ", " +
           testing::kWorldPlaces[static_cast<std::size_t>(place)] +
           (mode == UpdateMode::kDefer ? ", deferred" : ", barrier") +
           (order == RankOrder::kTrace ? ", ahead" : ", at each call") + ", stage " +
           std::to_string(stage) + (node_ranks() > 1 ? ", two nodes" : "") +
           (late_device ? ", late device" : ", prompt device") + (quantised ? ", quantised" : "");
  }
};

std::vector<Row> all_rows() {
  std::vector<Row> all;
  for (const Over over : {Over::kThreads, Over::kLate, Over::kNccl}) {
    for (std::uint32_t world = 1; world <= 4; ++world) {
      for (const WorldPlace place : {WorldPlace::kMemory, WorldPlace::kNvme, WorldPlace::kBudget}) {
        for (const UpdateMode mode : {UpdateMode::kBarrier, UpdateMode::kDefer}) {
          for (const RankOrder order : {RankOrder::kTrace, RankOrder::kEach}) {
            const std::size_t row = all.size() / 2;
            const bool late = (row + row / 2 + row / 6) % 2 != 0;
            const std::uint32_t stage = all.size() % 3 == 0 ? 2 : 3;
            all.push_back({over, world, place, mode, order, stage, late});
          }
        }
      }
    }
  }
  return all;
}

std::string_view matrix_wanted() {
  const char* const wanted = std::getenv("HEADRACE_MATRIX");
  return wanted == nullptr ? "" : wanted;
}

std::vector<Row> rows_of(const WorldModel& model) {
  const std::string_view matrix = matrix_wanted();
  if (matrix != "pairwise" && matrix != "few") return all_rows();
  std::vector<Row> rows = testing::pairwise_cover(all_rows(), [](const Row& row) {
    return std::array{static_cast<int>(row.over),       static_cast<int>(row.world),
                      static_cast<int>(row.place),      static_cast<int>(row.mode),
                      static_cast<int>(row.order),      static_cast<int>(row.stage),
                      static_cast<int>(row.late_device)};
  });
  if (matrix == "pairwise") return rows;
  std::size_t at = static_cast<std::size_t>(&model - testing::world_models().data());
  std::erase_if(rows, [&](const Row&) { return at++ % 6 != 0; });
  return rows;
}

// Four rows with several ranks for each model, others for the next. If few are wanted: one, and for
// every fourth model only.
std::vector<Row> quantised_rows(std::size_t model) {
  const bool few = matrix_wanted() == "few";
  const std::size_t count = !few ? 4 : model % 4 == 0 ? 1 : 0;
  std::vector<Row> rows = all_rows();
  std::erase_if(rows, [](const Row& row) { return row.world == 1; });
  std::vector<Row> some;
  for (std::size_t i = 0; i < count; ++i) {
    some.push_back(rows[(model * 4 + i) * 23 % rows.size()]);
    some.back().quantised = true;
  }
  return some;
}

struct World {
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::shared_ptr<Collective>> collectives;
};

World make_world(const Row& row) {
  constexpr std::chrono::seconds kDeadline(120);
  World world;
  if (row.over == Over::kNccl) {
    const NcclFlavour flavour = row.late_device ? NcclFlavour::kLate : NcclFlavour::kPrompt;
    for (collective::Rank& rank : collective::nccl_ranks(row.world, flavour, kDeadline)) {
      world.devices.push_back(rank.device);
      world.collectives.push_back(std::move(rank.collective));
    }
    return world;
  }
  for (std::uint32_t r = 0; r < row.world; ++r) {
    world.devices.push_back(device::make_computing_host(
        {.flavour = row.late_device ? HostFlavour::kLate : HostFlavour::kPrompt,
         .seed = r + 1,
         .late_microseconds_max = 20}));
  }
  world.collectives = collective::make_collectives(
      row.over == Over::kLate ? collective::make_late_transports(row.world, collective::late_seed())
                              : make_thread_transports(row.world),
      world.devices, kDeadline);
  return world;
}

// Every rank stores its shard, zeros elsewhere: together they are one outcome.
void join(WorldOutcome& outcome, const WorldOutcome& other) {
  EXPECT_EQ(other.text(), outcome.text());
  for (auto& [key, words] : outcome.values) {
    const auto& part = other.values.at(key);
    for (std::size_t e = 0; e < words.size(); ++e) words[e] |= part[e];
  }
}

WorldOutcome train(const WorldModel& model, const Row& row) {
  const testing::TemporaryDirectory folder;
  World world = make_world(row);
  std::vector<WorldOutcome> outcomes(row.world);
  std::vector<std::string> errors(row.world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < row.world; ++r) {
    threads.emplace_back([&, r] {
      try {
        outcomes[r] =
            train_as_rank(model,
                          {.place = row.place,
                           .update_mode = row.mode,
                           .folder = folder.string(),
                           .rank_order = row.order,
                           .zero_stage = row.stage,
                           .node_ranks = row.node_ranks(),
                           .quantised = row.quantised},
                          {.device = world.devices[r], .collective = world.collectives[r]});
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      world.collectives[r].reset();  // together: NCCL's wait for each other
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(folder.entries(), 0u) << "close() leaves nothing behind";
  if (row.place == WorldPlace::kBudget) {
    EXPECT_GT(outcomes[0].resident_share_of_state, 0);
    EXPECT_TRUE(outcomes[0].resident_share_of_state < 1 || model.one_group || model.bound)
        << "too little is trained for some of it to be left out";
  }
  for (std::uint32_t r = 1; r < row.world; ++r) join(outcomes[0], outcomes[r]);
  return outcomes[0];
}

class WorldSize : public ::testing::TestWithParam<std::size_t> {};

TEST_P(WorldSize, ChangesNoBit) {
  const WorldModel& model = testing::world_models()[GetParam()];
  const WorldOutcome alone = train_as_rank(model, {}, {});
  for (const Row& row : rows_of(model)) {
    SCOPED_TRACE(row.text());
    const WorldOutcome together = train(model, row);
    if (HasFailure()) break;  // of a run that did not end, nothing can be compared
    EXPECT_EQ(together.text(), alone.text());
    for (const auto& [key, words] : alone.values)
      EXPECT_TRUE(words == together.values.at(key)) << "parameter " << std::get<0>(key);
  }
}

// What several ranks send is rounded, the same for any number of them, on any transport.
TEST_P(WorldSize, ChangesNoBitOfQuantisedTransfers) {
  const WorldModel& model = testing::world_models()[GetParam()];
  const std::vector<Row> rows = quantised_rows(GetParam());
  if (rows.empty()) GTEST_SKIP() << "few rows are wanted";
  const WorldOutcome of_two = train(model, {.over = Over::kThreads,
                                            .world = 2,
                                            .place = WorldPlace::kMemory,
                                            .mode = UpdateMode::kBarrier,
                                            .order = RankOrder::kTrace,
                                            .stage = 3,
                                            .late_device = false,
                                            .quantised = true});
  EXPECT_NE(of_two.text(), train_as_rank(model, {}, {}).text());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text());
    const WorldOutcome together = train(model, row);
    if (HasFailure()) break;
    EXPECT_EQ(together.text(), of_two.text());
    for (const auto& [key, words] : of_two.values)
      EXPECT_TRUE(words == together.values.at(key)) << "parameter " << std::get<0>(key);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WorldSize,
                         ::testing::Range(std::size_t{0}, testing::world_models().size()),
                         [](const auto& info) { return testing::world_models()[info.param].name; });
}  // namespace
}  // namespace headrace::world_size_test
