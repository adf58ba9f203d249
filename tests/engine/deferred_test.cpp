// SPDX-License-Identifier: Apache-2.0
// deferred_test: a step that returns before its updates: what each later call waits for, what it
// throws when they fail, what they move.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/failing_drive.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::deferred_test {
namespace {
using testing::Departure;
using testing::Script;
using testing::ScriptedTrainer;

const std::vector<std::int64_t> kGroups = {3000, 70'000, 3000, 70'000, 3000, 70'000};
constexpr auto kLast = GroupId{5};

Script usual() {
  return script_of(Departure::kNone, static_cast<std::uint32_t>(kGroups.size()), false);
}

// All on NVMe, one group read ahead, so that the last groups' updates wait for their use.
class Deferred : public ::testing::Test {
 protected:
  Settings settings() const {
    Settings s = testing::all_on_nvme(directory_.string());
    s.update_slots = 2;
    s.prefetch_groups = 1;
    s.update_mode = UpdateMode::kDefer;
    return s;
  }
  std::unique_ptr<Engine> engine_of(const Settings& settings) {
    engine::EngineParts parts;
    parts.make_drive = [this](async::Conductor& conductor, swap::DriveOptions options) {
      return std::make_unique<testing::FailingDrive>(
          conductor, std::move(options), [this](const swap::Transfer& transfer) {
            if (transfer.kind == swap::IoKind::kWrite) {
              if (writes_fail_) ++failed_writes_;
              return writes_fail_.load();
            }
            if (reads_are_slow_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            while (reads_wait_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (reads_fail_ == ReadsFail::kAtOnePlace && !bad_place_)
              bad_place_ = transfer.offset_bytes;  // one failure is repeated and not seen
            return reads_fail_ == ReadsFail::kAll || bad_place_ == transfer.offset_bytes;
          });
    };
    const auto log = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::kError) logged_errors_ += std::string(text) + "\n";
    };
    return std::make_unique<Engine>(
        engine::engine_with_parts(settings, EngineOptions{.log = log}, parts));
  }

  // `then` after a step leads to the same bits in both modes.
  void expect_as_with_barrier(const std::function<void(Engine&, ScriptedTrainer&)>& then) {
    std::string hashes[2];
    for (const UpdateMode mode : {UpdateMode::kDefer, UpdateMode::kBarrier}) {
      Settings s = settings();
      s.update_mode = mode;
      const auto engine = engine_of(s);
      ScriptedTrainer trainer(*engine, kGroups);
      trainer.step(usual());
      then(*engine, trainer);
      hashes[mode == UpdateMode::kDefer] = trainer.hashes();
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }

  enum class ReadsFail { kNone, kAtOnePlace, kAll };
  // A gather of the last group has to wait for a buffer when an update's read fails: every error
  // that calls end in from there on.
  std::vector<Error> errors_of_a_gather_that_waits_for_a_buffer(ReadsFail reads) {
    const auto engine = engine_of(settings());
    ScriptedTrainer trainer(*engine, kGroups);
    trainer.step(usual());
    engine->finish_step();
    trainer.run(usual());
    reads_are_slow_ = true;
    trainer.end_step();
    const Gathered first = engine->gather({0});  // of two buffers; the second waits for group 1
    reads_fail_ = reads;
    std::vector<Error> errors;
    for (int call = 0; call < 3; ++call) {
      try {
        (void)engine->gather(kLast);
        ADD_FAILURE() << "weights of a step before, in call " << call;
      } catch (const Error& error) {
        errors.push_back(error);
      }
    }
    return errors;
  }

  std::atomic<bool> writes_fail_{false}, reads_are_slow_{false}, reads_wait_{false};
  std::atomic<int> failed_writes_{0};
  std::string logged_errors_;
  std::atomic<ReadsFail> reads_fail_{ReadsFail::kNone};
  std::optional<std::uint64_t> bad_place_;  // conductor only
  const testing::TemporaryDirectory directory_;
};

TEST_F(Deferred, AStepReturnsBeforeGroupsFarAheadAreUpdatedAndAllMovesWhatThePlanSays) {
  const auto engine = engine_of(settings());
  ScriptedTrainer trainer(*engine, kGroups);
  trainer.step(usual());
  engine->finish_step();
  const Stats before = engine->stats();
  trainer.run(usual());
  EXPECT_EQ(engine->stats().nvme_written_bytes, before.nvme_written_bytes);
  trainer.end_step();
  const auto written = [&] {
    return static_cast<double>(engine->stats().nvme_written_bytes - before.nvme_written_bytes);
  };
  EXPECT_LT(written(), engine->plan().nvme_written_bytes_per_step);
  engine->finish_step();
  EXPECT_EQ(written(), engine->plan().nvme_written_bytes_per_step);
  // Steps whose updates are met by the next forward pass: its reads are those of the updates.
  const Stats begin = engine->stats();
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) trainer.step(usual());
  trainer.run(usual());
  engine->finish_step();  // a gather has its weights before the update's last writes have ended
  const Stats end = engine->stats();
  std::uint64_t weights = 0;
  for (const PlanRow& row : engine->plan().rows) {
    if (row.tier == "nvme" && row.what == "parameters") weights = row.bytes;
  }
  // The first pass forward comes after finish_step(), and the last one has no update behind it.
  const double extra = static_cast<double>(end.nvme_read_bytes - begin.nvme_read_bytes) -
                       kSteps * engine->plan().nvme_read_bytes_per_step;
  EXPECT_GT(extra, 0);
  EXPECT_LE(extra, 2.0 * static_cast<double>(weights));
  EXPECT_EQ(end.nvme_written_bytes - begin.nvme_written_bytes,
            static_cast<std::uint64_t>(kSteps * engine->plan().nvme_written_bytes_per_step));
}

TEST_F(Deferred, AnErrorIsThrownByTheCallThatWaitsAndNamesTheStep) {
  const std::vector<std::function<void(Engine&)>> calls = {
      [](Engine& e) { (void)e.gather(kLast); },
      [](Engine& e) {
        const std::vector<float> gradient(40, 1.0f);
        e.add_gradient(e.parameter("group.5.bias"), gradient.data(), DType::kF32);
        e.finish_step();  // what was added waits for the pass, not for the write that fails
      },
      [](Engine& e) {
        e.store(e.parameter("group.5.weight"), Content::kWeight,
                [](std::uint64_t, std::span<const std::byte>) {});
      },
      [](Engine& e) {
        e.load(kLast, [](ParameterId, std::span<std::byte> out) {
          std::memset(out.data(), 0, out.size());
        });
      },
      [](Engine& e) { (void)e.hash_parameters(); },
      [](Engine& e) { e.finish_step(); },
      [](Engine& e) { e.step({}); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    writes_fail_ = false;
    const auto engine = engine_of(settings());
    ScriptedTrainer trainer(*engine, kGroups);
    trainer.step(usual());
    engine->finish_step();
    // Groups in memory ahead of the last: they are written before writes fail.
    trainer.run(usual());
    writes_fail_ = true;
    std::string said;
    try {
      trainer.end_step();
      calls[i](*engine);
      // A gather has its weights from the update itself; the write fails behind its back.
      engine->finish_step();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      said = error.what();
      EXPECT_EQ(error.code(), Code::kIo) << said;
    }
    EXPECT_NE(said.find("the deferred update of step 2: "), std::string::npos) << said;
    EXPECT_NE(said.find("swap out"), std::string::npos) << said;
    EXPECT_CODE(Code::kFailed, (void)engine->gather({0}), "the deferred update of step 2");
    engine->close();
    EXPECT_EQ(logged_errors_, "") << "a call has thrown it";
  }
}

TEST_F(Deferred, AnErrorThatNoCallHasThrownIsLoggedByCloseAndNamesItsCause) {
  // The writes fail before close() is called, or while it waits for them.
  for (const bool before_close : {true, false}) {
    SCOPED_TRACE(before_close ? "before close" : "during close");
    writes_fail_ = false;
    failed_writes_ = 0;
    logged_errors_.clear();
    const auto engine = engine_of(settings());
    ScriptedTrainer trainer(*engine, kGroups);
    trainer.step(usual());
    engine->finish_step();
    trainer.run(usual());
    writes_fail_ = true;
    trainer.end_step();
    while (before_close && failed_writes_ < 2) std::this_thread::yield();  // one is repeated
    engine->close();
    EXPECT_NE(logged_errors_.find("the deferred update of step 2: swap out"), std::string::npos)
        << logged_errors_;
    EXPECT_NE(logged_errors_.find("EIO"), std::string::npos) << logged_errors_;
    EXPECT_EQ(std::ranges::count(logged_errors_, '\n'), 1) << logged_errors_;
    EXPECT_EQ(directory_.entries(), 0u);
  }
}

TEST_F(Deferred, AGatherThatWaitedForABufferGivesNoWeightsOfTheStepBefore) {
  const auto errors = errors_of_a_gather_that_waits_for_a_buffer(ReadsFail::kAtOnePlace);
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].code(), Code::kIo) << errors[0].what();
  EXPECT_NE(std::string(errors[0].what()).find("the deferred update of step 2: "),
            std::string::npos)
      << errors[0].what();
  EXPECT_EQ(errors[1].code(), Code::kFailed) << errors[1].what();
}

TEST_F(Deferred, AnErrorOfAnotherCallDoesNotStandForTheUpdates) {
  std::string said;
  for (const Error& error : errors_of_a_gather_that_waits_for_a_buffer(ReadsFail::kAll)) {
    if (error.code() == Code::kIo) said += std::string(error.what()) + "\n";
  }
  EXPECT_NE(said.find("the deferred update of step 2: "), std::string::npos) << said;
}

// Documented: several threads may gather. Two that ask for one group while all buffers are being
// filled get one buffer, which the update's weights are handed to.
TEST_F(Deferred, SeveralThreadsGatherTheNewWeights) {
  constexpr int kSteps = 8, kThreads = 4, kUses = 12;
  const std::vector<std::int64_t> groups = {140'000, 70'000, 140'000, 70'000, 140'000, 70'000};
  const auto each_step = [&](UpdateMode mode, const std::function<void(Engine&, int)>& after) {
    Settings s = settings();
    s.update_mode = mode;
    s.prefetch_groups = 2;
    const auto engine = engine_of(s);
    ScriptedTrainer trainer(*engine, groups);
    for (int step = 0; step < kSteps; ++step) {
      trainer.step(usual());
      after(*engine, step);
    }
  };
  std::vector<std::string> expected;  // by step and group
  each_step(UpdateMode::kBarrier, [&](Engine& engine, int) {
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      const Gathered lease = engine.gather({g});
      const DeviceSpan span =
          lease.bytes(engine.parameter("group." + std::to_string(g) + ".weight"));
      expected.emplace_back(static_cast<const char*>(span.data), span.size_bytes);
    }
  });
  std::atomic<int> used{0}, wrong{0};
  each_step(UpdateMode::kDefer, [&](Engine& engine, int step) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(static_cast<unsigned>(100 * step + thread));
        for (int use = 0; use < kUses; ++use) {
          const auto g = static_cast<std::uint32_t>(random() % groups.size());
          try {
            const Gathered lease = engine.gather({g});
            const DeviceSpan span =
                lease.bytes(engine.parameter("group." + std::to_string(g) + ".weight"));
            const std::string& want = expected[static_cast<std::size_t>(step) * groups.size() + g];
            if (std::memcmp(span.data, want.data(), want.size()) != 0) ++wrong;
            ++used;
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::kOutOfBudget)
                << error.what();  // more threads than buffers
          }
        }
      });
    }
  });
  EXPECT_EQ(wrong, 0) << "of " << used;
  EXPECT_GT(used, kSteps * kUses);
}

TEST_F(Deferred, WhatAGatherWaitedForIsSaidByGroup) {
  const auto engine = engine_of(settings());
  ScriptedTrainer trainer(*engine, kGroups);
  trainer.step(usual());
  engine->finish_step();
  const Stats before = engine->stats();
  EXPECT_EQ(before.gather_wait_update_seconds, 0) << "nothing was deferred when groups were used";
  trainer.step(usual());
  (void)engine->gather(kLast);
  const Stats after = engine->stats();
  EXPECT_GT(after.gather_wait_update_seconds, 0);
  EXPECT_LE(after.gather_wait_update_seconds, after.gather_wait_seconds);
  double sum = 0;
  for (std::size_t w = 0; w < after.waits.size(); ++w) {
    sum += after.waits[w].seconds;
    EXPECT_LE(after.waits[w].update_seconds, after.waits[w].seconds);
    EXPECT_TRUE(w == 0 || after.waits[w].seconds <= after.waits[w - 1].seconds);
    EXPECT_EQ(after.waits[w].update_seconds > 0, after.waits[w].group == "group.5");
  }
  EXPECT_DOUBLE_EQ(sum, after.gather_wait_seconds);
}

TEST_F(Deferred, WhatIsSetAfterAStepIsOfTheNextOne) {
  expect_as_with_barrier([](Engine& engine, ScriptedTrainer&) {
    engine.set_hyperparameters({0}, {.learning_rate_scale = 3.0f, .weight_decay = 0.5f});
    engine.set_step_count(engine.parameter("group.5.weight"), 17);
  });
}

TEST_F(Deferred, GradientsThatAreDiscardedAreNotThoseOfTheStepBefore) {
  expect_as_with_barrier([](Engine& engine, ScriptedTrainer& trainer) {
    const std::vector<float> gradient(40, 1.0f);
    engine.add_gradient(engine.parameter("group.5.bias"), gradient.data(), DType::kF32);
    engine.discard_gradients();
    trainer.step(usual());
  });
}

TEST_F(Deferred, CloseDoesNotWaitForWhatNobodyWillUse) {
  const auto engine = engine_of(settings());
  ScriptedTrainer trainer(*engine, kGroups);
  trainer.step(usual());
  engine->close();
  EXPECT_LT(static_cast<double>(engine->stats().nvme_written_bytes),
            2 * engine->plan().nvme_written_bytes_per_step)
      << "the first values and the whole step were written";
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(Deferred, AnInterruptBeforeTheyEndLeavesOnlyClose) {
  const auto engine = engine_of(settings());
  ScriptedTrainer trainer(*engine, kGroups);
  trainer.step(usual());
  engine->interrupt();
  EXPECT_CODE(Code::kInterrupted, (void)engine->gather(kLast), "interrupted");
  engine->close();
  EXPECT_EQ(logged_errors_, "");
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(Deferred, AnInterruptOfACallThatWaitsIsOneForTheCallsAfterItToo) {
  const auto engine = engine_of(settings());
  ScriptedTrainer trainer(*engine, kGroups);
  reads_are_slow_ = true;
  trainer.step(usual());
  reads_wait_ = true;
  {
    const std::jthread waits(
        [&] { EXPECT_CODE(Code::kInterrupted, engine->finish_step(), "interrupted"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    engine->interrupt();
    reads_wait_ = false;
  }
  EXPECT_CODE(Code::kInterrupted, (void)engine->gather(kLast), "interrupted");
}

// Read without another call that could wait: of resident bytes a lease may stay over a step.
TEST(DeferredInMemory, AGroupThatIsHeldOverAStepIsUpdatedWhenItReturns) {
  Settings s;
  s.update_mode = UpdateMode::kDefer;
  s.update_threads = 2;
  Engine engine(s);
  ScriptedTrainer trainer(engine, kGroups);
  trainer.run(usual());
  const ParameterId weight = engine.parameter("group.5.weight");
  const Gathered held = engine.gather(kLast);
  const DeviceSpan bytes = held.bytes(weight);
  const auto now = [&] {
    return std::string(static_cast<const char*>(bytes.data), bytes.size_bytes);
  };
  const std::string before = now();
  trainer.end_step();
  const std::string after = now();
  EXPECT_NE(after, before);
  engine.finish_step();
  EXPECT_EQ(now(), after);
}
}  // namespace
}  // namespace headrace::deferred_test
