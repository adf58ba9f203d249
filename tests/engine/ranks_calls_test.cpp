// SPDX-License-Identifier: Apache-2.0
// ranks_calls_test: several ranks, of which one makes a call that is refused, repeated, or fails
// after the ranks have agreed on it; and what their statistics say.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include "device/forwarding_device.hpp"
#include "ranks/sequence.hpp"
#include "support/expect_code.hpp"
#include "support/rank_engines.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::ranks_calls_test {
namespace {
using namespace rank_engines;
using testing::TemporaryDirectory;

const std::vector<float> kOnes(300, 1.0f);
constexpr ParameterId bias_of(std::uint32_t group) { return {3 * group + 1}; }

void begin(Engine& engine) {
  register_model(engine);
  engine.freeze();
  load_all(engine);
}

// Forward and backward; where a rank has gradients, one per group.
void pass(Engine& engine, bool has_gradients) {
  for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
  for (std::uint32_t g = kGroups; g-- > 0;) {
    (void)engine.gather({g});
    if (has_gradients) engine.add_gradient(bias_of(g), kOnes.data(), DType::kF32);
  }
}

Settings following(RankOrder order) {
  Settings settings = accumulating(1);
  settings.rank_agreement = order;
  return settings;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Rank 1 has no gradient of its own in the last step, but sums of rank 0's.
TEST(RanksSleep, IsRefusedWhereGradientsOfAnotherHaveBeenAddedUp) {
  for (const RankOrder order : {RankOrder::kEach, RankOrder::kTrace}) {
    const TemporaryDirectory directory;
    std::vector<std::string> hashes;
    for (const bool sleeps : {false, true}) {
      std::vector<std::string> of_ranks(2);
      expect_no_errors(run_ranks(
          2, HostFlavour::kLate, [&](std::uint32_t) { return following(order); },
          [&](Rank& rank) {
            begin(rank.engine);
            for (std::uint32_t step = 0; step < kSteps; ++step) {
              const bool last = step + 1 == kSteps;
              pass(rank.engine, !last || rank.number == 0);
              if (last && sleeps) {
                EXPECT_CODE(Code::kWrongState, rank.engine.sleep(directory.string()), "gradients");
              }
              rank.engine.step({});
            }
            of_ranks[rank.number] = rank.engine.hash_parameters();
          }));
      EXPECT_EQ(of_ranks[0], of_ranks[1]);
      hashes.push_back(of_ranks[0]);
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

TEST(RanksStep, ThatEveryRankRefusesIsMadeWithOtherOptions) {
  std::vector<std::string> hashes(2);
  expect_no_errors(run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    begin(rank.engine);
    rank.engine.set_hyperparameters({0}, {.learning_rate_scale = 100});
    pass(rank.engine, true);
    EXPECT_CODE(Code::kInvalidArgument, rank.engine.step({.learning_rate = 3e38f}), "lower");
    EXPECT_EQ(rank.engine.step({.learning_rate = 1e-4f}).parameters_updated, kGroups);
    hashes[rank.number] = rank.engine.hash_parameters();
  }));
  EXPECT_EQ(hashes[0], hashes[1]);
}

// With all of a step joined ahead, nothing but the step shows it, and the ranks would derive
// different orders from it.
TEST(RanksStep, AfterFewerGathersOnOneRankIsRefused) {
  const auto settings = [](std::uint32_t) {
    Settings made = accumulating(2);
    made.zero_stage = 2;
    return made;
  };
  std::vector<std::uint64_t> steps(2);
  const auto errors = run_ranks(2, HostFlavour::kPrompt, settings, [&](Rank& rank) {
    begin(rank.engine);
    for (std::uint32_t step = 0; step < 2 * kSteps; ++step) {
      pass(rank.engine, true);
      if (step < kSteps || rank.number == 0) pass(rank.engine, true);
      rank.engine.step({});
      ++steps[rank.number];
    }
  });
  const std::string words = "step: rank 1 has made " + std::to_string(2 * kGroups) +
                            " gathers since the last step, and rank 0 " +
                            std::to_string(4 * kGroups);
  for (const std::string& error : errors) EXPECT_NE(error.find(words), std::string::npos) << error;
  EXPECT_EQ(steps, std::vector<std::uint64_t>(2, kSteps)) << "nothing was updated after those";
}

// The others then go on as if it had not been made.
TEST(RanksGather, OfWhatWasJoinedAheadGoesOnAfterARefusedCall) {
  const auto settings = [](std::uint32_t) {
    Settings made = following(RankOrder::kTrace);
    made.prefetch_groups = 3;
    made.ranks_ahead = 2;
    return made;
  };
  expect_no_errors(run_ranks(2, HostFlavour::kPrompt, settings, [&](Rank& rank) {
    begin(rank.engine);
    for (std::uint32_t step = 0; step < 4 * kSteps; ++step) {
      if (rank.number == 0 && step >= kSteps) {
        const Gathered lease = rank.engine.gather({0});
        const auto load = [&] { rank.engine.load({0}, [](ParameterId, std::span<std::byte>) {}); };
        EXPECT_CODE(Code::kWrongState, load(), "still gathered");
        EXPECT_CODE(Code::kWrongState, rank.engine.step({}), "still gathered");
      } else {
        (void)rank.engine.gather({0});
      }
      pass(rank.engine, true);
      rank.engine.step({});
    }
    EXPECT_EQ(rank.engine.stats().rank_departures, 0u);
  }));
}

TEST(RanksStepCount, StaysWhereGradientsHaveBeenRoundedForIt) {
  const auto settings = [](std::uint32_t) {
    Settings made = following(RankOrder::kTrace);
    made.zero_quantized_gradients = true;
    return made;
  };
  expect_no_errors(run_ranks(2, HostFlavour::kPrompt, settings, [&](Rank& rank) {
    begin(rank.engine);
    rank.engine.set_step_count({0}, 5);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      pass(rank.engine, rank.number == 0);
      EXPECT_CODE(Code::kWrongState, rank.engine.set_step_count({0}, 7), "rounded for the count");
      rank.engine.step({});
    }
    rank.engine.set_step_count({0}, 7);
  }));
}

// In the first step, a group is reduced twice at one position: such a step cannot be followed.
TEST(RanksOrder, OfAStepThatCannotBeFollowedIsMadeAnew) {
  const auto settings = [](std::uint32_t) { return following(RankOrder::kTrace); };
  expect_no_errors(run_ranks(2, HostFlavour::kPrompt, settings, [&](Rank& rank) {
    begin(rank.engine);
    std::uint64_t meetings = 0;
    for (std::uint32_t step = 0; step < 5; ++step) {
      const std::uint64_t before = rank.engine.stats().rank_meetings;
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
      const bool turned = step == 0 && rank.number == 1;
      for (const std::uint32_t g : {turned ? 1u : 2u, turned ? 2u : 1u})
        rank.engine.add_gradient(bias_of(g), kOnes.data(), DType::kF32);
      rank.engine.step({});
      meetings = rank.engine.stats().rank_meetings - before;
    }
    EXPECT_EQ(meetings, 1u) << "in step()";
    EXPECT_EQ(rank.engine.stats().steps_followed, 3u);
  }));
}

TEST(RanksOrder, IsRecordedUpToABound) {
  ranks::StepRecord record;
  record.gathers.resize(ranks::StepRecord::kMostGathers - 1);
  record.note_gather({1});
  EXPECT_TRUE(record.has_all);
  record.note_gather({1});
  EXPECT_FALSE(record.has_all);
  EXPECT_EQ(record.gathers.size(), ranks::StepRecord::kMostGathers);
  record.clear();
  record.note_gather({1});
  EXPECT_TRUE(record.has_all);
  EXPECT_EQ(record.gathers.size(), 1u);
}

// The library's own, whose arithmetic fails once it is told to.
class FailingDevice final : public device::ForwardingDevice<device::ComputingDevice> {
 public:
  FailingDevice() : FailingDevice(device::make_computing_host()) {}
  std::atomic<bool> fails{false};

  void accumulate(Stream stream, const Accumulation& work) override {
    if (fails) throw std::runtime_error("the device is gone");
    ForwardingDevice::accumulate(stream, work);
  }
  void launch(Stream stream, std::function<void()> kernel) override {
    host_->launch(stream, std::move(kernel));
  }

 private:
  explicit FailingDevice(const std::shared_ptr<ComputingDevice>& host)
      : ForwardingDevice(host), host_(host) {}
  const std::shared_ptr<ComputingDevice> host_;
};

// Rank 0 fails in a reduction on which the ranks have agreed, and makes no other call until rank 1
// knows. Else rank 1 would wait until the collective's deadline, and name no cause.
TEST(RanksReduction, ThatFailsOnOneRankEndsTheOthersWithItsCause) {
  for (const RankOrder order : {RankOrder::kEach, RankOrder::kTrace}) {
    const auto failing = std::make_shared<FailingDevice>();
    World world{{failing, device::make_computing_host()}, {}};
    world.ranks = collective::make_collective_threads({world.hosts.begin(), world.hosts.end()},
                                                      std::chrono::seconds(60));
    std::atomic<bool> known{false};
    const auto errors = run_ranks(
        std::move(world), [&](std::uint32_t) { return following(order); },
        [&](Rank& rank) {
          begin(rank.engine);
          for (std::uint32_t step = 0; step < kSteps; ++step) {
            pass(rank.engine, true);
            rank.engine.step({});
          }
          for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
          (void)rank.engine.gather({2});
          rank.engine.add_gradient(bias_of(2), kOnes.data(), DType::kF32);
          if (rank.number == 0) failing->fails = true;
          try {
            (void)rank.engine.gather({1});
            rank.engine.step({});
          } catch (const std::exception&) {
            if (rank.number == 1) known = true;
            while (!known) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            throw;
          }
        });
    EXPECT_NE(errors[0].find("the device is gone"), std::string::npos) << errors[0];
    EXPECT_NE(errors[1].find("the device is gone"), std::string::npos) << errors[1];
  }
}

TEST(RanksStats, CountATrainersWaitInAGatherOnce) {
  const auto settings = [](std::uint32_t) { return following(RankOrder::kTrace); };
  expect_no_errors(run_ranks(2, HostFlavour::kLate, settings, [&](Rank& rank) {
    begin(rank.engine);
    std::chrono::duration<double> spent{0};
    for (std::uint32_t step = 0; step < 10; ++step) {
      for (std::uint32_t g = 0; g < kGroups; ++g) {
        const auto began = std::chrono::steady_clock::now();
        (void)rank.engine.gather({g});
        spent += std::chrono::steady_clock::now() - began;
      }
      rank.engine.step({});
    }
    const Stats stats = rank.engine.stats();
    EXPECT_GT(stats.gather_wait_ranks_seconds, 0);
    EXPECT_LE(stats.gather_wait_seconds + stats.gather_wait_ranks_seconds, spent.count());
  }));
}
}  // namespace
}  // namespace headrace::ranks_calls_test
