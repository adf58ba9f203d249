// SPDX-License-Identifier: Apache-2.0
// poll_test: calls that EngineOptions::poll ends: the engine is whole after each, and trains on to
// the bits of a run that nobody stopped.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>

#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/holding_drive.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::poll_test {
namespace {
using testing::Departure;
using testing::ScriptedTrainer;

const std::vector<std::int64_t> kGroups = {3000, 70'000, 3000, 70'000, 3000, 70'000};

constexpr auto kLast = GroupId{5};

testing::Script usual() {
  return script_of(Departure::kNone, static_cast<std::uint32_t>(kGroups.size()), false);
}

// Reads end when the test says so, and poll() says stop when it does.
class Poll : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make_engine(UpdateMode mode) {
    Settings settings = testing::all_on_nvme(directory_.string());
    settings.update_slots = 2;
    settings.prefetch_groups = 1;
    settings.update_mode = mode;
    engine::EngineParts parts;
    parts.make_drive = [this](async::Conductor& conductor, swap::DriveOptions options) {
      return std::make_unique<testing::HoldingDrive>(
          conductor, std::move(options), [this](const swap::Transfer& transfer) {
            return transfer.kind == swap::IoKind::kRead && reads_are_held_.load();
          });
    };
    EngineOptions options{.log = [](LogLevel, std::string_view) {}};
    options.poll = [this] { return stop_.load(); };
    return std::make_unique<Engine>(engine::engine_with_parts(settings, std::move(options), parts));
  }
  // After two steps, with the second one's update pending, or its weights not there yet.
  using Call = std::function<void(Engine&)>;
  std::string hashes_after(UpdateMode mode, const Call& call, const char* given_up) {
    const auto engine = make_engine(mode);
    ScriptedTrainer trainer(*engine, kGroups);
    trainer.step(usual());
    engine->finish_step();
    trainer.run(usual());
    if (mode == UpdateMode::kBarrier) trainer.end_step();
    reads_are_held_ = given_up != nullptr;
    if (mode == UpdateMode::kDefer) trainer.end_step();
    stop_ = given_up != nullptr;
    for (int time = 0; time < 2 && given_up != nullptr; ++time)
      EXPECT_CODE(Code::kInterrupted, call(*engine), given_up);
    stop_ = reads_are_held_ = false;
    call(*engine);
    engine->discard_gradients();
    trainer.step(usual());
    return trainer.hashes();
  }
  void expect_whole_after(UpdateMode mode, const char* given_up, const Call& call) {
    SCOPED_TRACE(given_up);
    EXPECT_EQ(hashes_after(mode, call, given_up), hashes_after(mode, call, nullptr));
  }

  const testing::TemporaryDirectory directory_;
  std::atomic<bool> reads_are_held_{false}, stop_{false};
};

TEST_F(Poll, EndsACallThatWaitsForADeferredUpdateAndNothingElse) {
  const auto mode = UpdateMode::kDefer;
  expect_whole_after(mode, "gather: given up", [](Engine& e) { (void)e.gather(kLast); });
  expect_whole_after(mode, "finish_step: given up", [](Engine& e) { e.finish_step(); });
  expect_whole_after(mode, "step: given up", [](Engine& e) { e.step({}); });
  expect_whole_after(mode, "hash_parameters: given up",
                     [](Engine& e) { (void)e.hash_parameters(); });
  expect_whole_after(mode, "store: given up", [](Engine& e) {
    e.store(e.parameter("group.5.weight"), Content::kMaster,
            [](std::uint64_t, std::span<const std::byte>) {});
  });
  expect_whole_after(mode, "load: given up", [](Engine& e) {
    e.load(e.parameter("group.5.weight"), Content::kExpAvg,
           [](std::uint64_t, std::span<std::byte> values) {
             std::memset(values.data(), 0, values.size());
           });
  });
  expect_whole_after(mode, "add_gradient: given up", [](Engine& e) {
    const std::vector<float> gradient(40, 1.0f);
    e.add_gradient(e.parameter("group.5.bias"), gradient.data(), DType::kF32);
  });
}

TEST_F(Poll, EndsAGatherThatWaitsForItsReadsOrForABuffer) {
  const auto mode = UpdateMode::kBarrier;
  expect_whole_after(mode, "gather: given up", [](Engine& e) { (void)e.gather(kLast); });
  expect_whole_after(mode, "gather: given up", [](Engine& e) {
    const Gathered first = e.gather({0});
    (void)e.gather(kLast);
  });
}

TEST_F(Poll, LeavesCallsAloneThatChangeValuesOrNeedNotWait) {
  const auto engine = make_engine(UpdateMode::kBarrier);
  ScriptedTrainer trainer(*engine, kGroups);
  stop_ = true;
  engine->load({0}, [](ParameterId, std::span<std::byte> values) {
    std::memset(values.data(), 0, values.size());
  });
  stop_ = false;
  trainer.run(usual());
  stop_ = true;
  EXPECT_EQ(trainer.end_step().parameters_updated, 2 * kGroups.size());
}

// [poll]
// Set by a handler of SIGINT; a call that waits asks for it.
volatile std::sig_atomic_t asked_to_stop = 0;

bool step_or_save(Engine& engine, const std::function<void()>& step,
                  const std::function<void()>& save) {
  try {
    step();
  } catch (const Error& error) {
    if (error.code() != Code::kInterrupted) throw;
    engine.discard_gradients();  // of the pass that was not finished
  }
  if (!asked_to_stop) return true;
  asked_to_stop = 0;  // or save() would be given up as well
  save();
  return false;
}
// [/poll]

TEST_F(Poll, LetsATrainerSaveWhatASignalInterrupts) {
  reads_are_held_ = false;
  const auto engine = make_engine(UpdateMode::kDefer);
  ScriptedTrainer trainer(*engine, kGroups);
  trainer.step(usual());
  const std::string before = trainer.hashes();
  std::string saved;
  reads_are_held_ = stop_ = true;
  asked_to_stop = 1;
  const bool goes_on = step_or_save(
      *engine, [&] { trainer.run(usual()); },
      [&] {
        reads_are_held_ = stop_ = false;
        saved = trainer.hashes();
      });
  EXPECT_FALSE(goes_on);
  EXPECT_EQ(saved, before);
}
}  // namespace
}  // namespace headrace::poll_test
