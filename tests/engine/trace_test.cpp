// SPDX-License-Identifier: Apache-2.0
// trace_test: what an engine says it did when, against what it counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
class TraceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make(std::uint64_t events) {
    Settings settings = testing::all_on_nvme(drive_.string());
    settings.update_mode = UpdateMode::kBarrier;  // nothing is under way when a call returns,
    settings.prefetch_groups = 0;                 // so that counters and trace are of one moment
    return std::make_unique<Engine>(settings,
                                    EngineOptions{.device = device_, .trace_events = events});
  }
  testing::TemporaryDirectory drive_;
  std::shared_ptr<device::ComputingDevice> device_ = device::make_computing_host();
};

std::uint64_t bytes_on(const Trace& trace, TraceLane lane) {
  std::uint64_t bytes = 0;
  for (const TraceEvent& event : trace.events) bytes += event.lane == lane ? event.bytes : 0;
  return bytes;
}

TEST_F(TraceTest, HasEveryTransferCallAndUpdateOfAStep) {
  const auto engine = make(10'000);
  testing::Mlp network(*engine, *device_, {.layers = 3, .width = 300});
  const auto began = std::chrono::steady_clock::now();
  engine->take_trace();  // of loading
  const Stats before = engine->stats();
  network.train_step();
  network.train_step();
  const Stats after = engine->stats();
  const Trace trace = engine->take_trace();
  EXPECT_EQ(trace.lost, 0u);
  EXPECT_EQ(bytes_on(trace, TraceLane::kNvmeRead), after.nvme_read_bytes - before.nvme_read_bytes);
  EXPECT_EQ(bytes_on(trace, TraceLane::kNvmeWrite),
            after.nvme_written_bytes - before.nvme_written_bytes);
  std::map<std::string, int> calls;
  std::set<std::uint64_t> steps;
  std::set<std::uint32_t> updated;
  for (const TraceEvent& event : trace.events) {
    EXPECT_LE(began, event.begin) << event.what;
    EXPECT_LE(event.begin, event.end) << event.what;
    EXPECT_LE(event.end, std::chrono::steady_clock::now()) << event.what;
    steps.insert(event.step);
    if (event.lane == TraceLane::kTrainer) {
      ++calls[event.what];
      continue;
    }
    EXPECT_LT(event.group, 3u) << event.what;
    if (event.lane == TraceLane::kUpdate) updated.insert(event.tile);
  }
  EXPECT_EQ(calls["step"], 2);
  EXPECT_EQ(calls["gather"], static_cast<int>(after.gathers - before.gathers));
  EXPECT_GT(calls["add_gradient"], 0);
  EXPECT_EQ(steps, (std::set<std::uint64_t>{1, 2}));
  EXPECT_GE(updated.size(), 6u);  // a weight and biases of each layer, in tiles of one block
  EXPECT_TRUE(engine->take_trace().events.empty());
}

// A tile has too few chunks for many threads, so one that waited for the one before would leave
// most of them idle.
TEST_F(TraceTest, ShowsTilesInMemoryUpdatedAtTheSameTime) {
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kCpu;
  settings.tile_elements = 65536;
  settings.update_threads = 2;
  settings.update_mode = UpdateMode::kBarrier;
  Engine engine(settings, {.device = device_, .trace_events = 1000});
  testing::Mlp network(engine, *device_, {.layers = 2, .width = 500});
  network.train_step();
  std::vector<TraceEvent> updates;
  for (const TraceEvent& event : engine.take_trace().events)
    if (event.lane == TraceLane::kUpdate) updates.push_back(event);
  ASSERT_GT(updates.size(), 4u);
  std::ranges::sort(updates, {}, &TraceEvent::begin);
  EXPECT_LT(updates[1].begin, updates[0].end);
  const auto first_end = std::ranges::min(updates, {}, &TraceEvent::end).end;
  EXPECT_GE(updates[4].begin, first_end) << "2 threads, tiles of one chunk: 4 at once";
}

TEST_F(TraceTest, CountsWhatItHasNoRoomFor) {
  const auto engine = make(5);
  testing::Mlp network(*engine, *device_, {.layers = 3, .width = 300});
  network.train_step();
  const Trace full = engine->take_trace();
  EXPECT_EQ(full.events.size(), 5u);
  EXPECT_GT(full.lost, 10u);
  network.train_step();
  EXPECT_EQ(engine->take_trace().events.size(), 5u);
}

TEST_F(TraceTest, IsEmptyWhereNoneIsAskedForAndBeforeFreezeAndAfterClose) {
  const auto none = make(0);
  testing::Mlp network(*none, *device_, {.layers = 2, .width = 100});
  network.train_step();
  EXPECT_TRUE(none->take_trace().events.empty());
  const auto early = make(100);
  EXPECT_TRUE(early->take_trace().events.empty());
  testing::Mlp other(*early, *device_, {.layers = 2, .width = 100});
  early->close();
  EXPECT_TRUE(early->take_trace().events.empty());
}

TEST_F(TraceTest, IsPartOfThePlan) {
  const auto without = make(0), with = make(100'000);
  testing::Mlp a(*without, *device_, {.layers = 2, .width = 100});
  testing::Mlp b(*with, *device_, {.layers = 2, .width = 100});
  EXPECT_EQ(with->plan().host_bytes - without->plan().host_bytes, 100'000 * sizeof(TraceEvent));
  EXPECT_EQ(with->stats().engine_bytes - without->stats().engine_bytes,
            100'000 * sizeof(TraceEvent));
}

TEST_F(TraceTest, RefusesMoreThanItWouldKeep) {
  try {
    make((std::uint64_t{1} << 26) + 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("at most 67108864"), std::string::npos)
        << error.what();
  }
}
}  // namespace
}  // namespace headrace
