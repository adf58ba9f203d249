// SPDX-License-Identifier: Apache-2.0
// undone_step_test: an update that a drive's error ends in the middle is undone from the store. The
// same engine makes the step again, and ends in the bits of the run that no error disturbed.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <thread>

#include "engine/parts.hpp"
#include "headrace/checkpoint.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/failing_drive.hpp"
#include "support/scripted_trainer.hpp"
#include "support/socket_ranks.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::undone_step_test {
namespace {
using swap::IoKind;
using testing::Departure;
using testing::ScriptedTrainer;
using testing::TemporaryDirectory;

const std::vector<std::int64_t> kGroups = {3000, 600'000, 250'000};
constexpr std::uint64_t kSteps = 5, kFailing = 3;

testing::Script script_of_step(std::uint64_t step) {
  const auto departure = step % 3 == 2 ? Departure::kSkippedGroup : Departure::kNone;
  return script_of(departure, static_cast<std::uint32_t>(kGroups.size()), false);
}

Settings settings_in(const std::string& path, UpdateMode mode = UpdateMode::kBarrier) {
  Settings s = testing::all_on_nvme(path);
  s.update_threads = 1;
  s.update_mode = mode;
  s.update_slots = 2;
  s.io_queue = IoQueueKind::kThreads;
  s.io_block_bytes = 64 * 1024;
  s.queue_depth = 4;
  s.durable_every = 1;
  s.store = "run";
  return s;
}

EngineOptions quiet() {
  return {.log = [](LogLevel, std::string_view) {}};
}

// The least budget with which `share` of the state lives in memory.
std::uint64_t budget_of(double share) {
  if (share == 0) return 0;
  const TemporaryDirectory directory;
  Settings settings = settings_in(directory.string());
  for (settings.host_budget_bytes = 8 << 20;; settings.host_budget_bytes += 1 << 18) {
    settings.store = "of-" + std::to_string(settings.host_budget_bytes);
    Engine engine(settings, quiet());
    const ScriptedTrainer trainer(engine, kGroups);
    const double resident = engine.plan().resident_share_of_state;
    if (resident < share) continue;
    EXPECT_LT(resident, 1);
    return settings.host_budget_bytes;
  }
}

// A drive that fails from the n-th read or write of an update on, of those that are made while it
// is armed. A read that fails does so at its place alone.
class BadDrive {
 public:
  engine::EngineParts parts() {
    engine::EngineParts parts;
    parts.make_drive = [this](async::Conductor& conductor, swap::DriveOptions options) {
      return std::make_unique<testing::FailingDrive>(
          conductor, std::move(options),
          [this](const swap::Transfer& transfer) { return fails(transfer); });
    };
    return parts;
  }
  void arm(IoKind kind, std::uint64_t nth) {
    kind_ = kind;
    left_ = nth;
    armed_ = true;
  }
  // Whether anything has failed since arm().
  bool disarm() {
    armed_ = false;
    return left_ == 0;
  }

 private:
  bool fails(const swap::Transfer& transfer) {
    const IoKind kind = kind_;
    const bool of_update =
        transfer.priority ==
        (kind == IoKind::kRead ? swap::Priority::kDemand : swap::Priority::kWriteBack);
    if (!armed_ || transfer.kind != kind || !of_update) return false;
    if (left_ > 0 && --left_ == 0) bad_place_ = transfer.offset_bytes;
    if (left_ > 0) return false;
    return kind == IoKind::kWrite || transfer.offset_bytes == bad_place_;
  }
  std::atomic<bool> armed_{false};
  std::atomic<IoKind> kind_{IoKind::kRead};
  std::atomic<std::uint64_t> left_{0};
  std::uint64_t bad_place_ = 0;
};

std::string undisturbed() {
  static const std::string hashes = [] {
    Settings settings;
    settings.update_threads = 1;
    Engine engine(settings);
    ScriptedTrainer trainer(engine, kGroups);
    for (std::uint64_t step = 1; step <= kSteps; ++step) trainer.step(script_of_step(step));
    return trainer.hashes();
  }();
  return hashes;
}

// Trains to the end. In step kFailing, the drive fails until the step has been made: at each of the
// errors the step is repeated. Returns the number of them.
std::uint64_t train(ScriptedTrainer& trainer, BadDrive& drive, IoKind kind, std::uint64_t nth) {
  std::uint64_t errors = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    trainer.run(script_of_step(step));
    if (step == kFailing) drive.arm(kind, nth);
    try {
      trainer.end_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo) << error.what();
      EXPECT_EQ(error.sys_errno(), EIO);
      ++errors;
      drive.disarm();
      trainer.end_step();
    }
    drive.disarm();
  }
  return errors;
}

struct Case {
  const char* name;
  double share;  // of the optimizer state in memory
};
class UndoneStep : public ::testing::TestWithParam<Case> {};

TEST_P(UndoneStep, IsMadeAgainWithTheSameBits) {
  const std::uint64_t budget = budget_of(GetParam().share);
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    std::uint64_t errors = 0;
    for (std::uint64_t nth = 1;; nth += 3) {
      SCOPED_TRACE((kind == IoKind::kRead ? "read " : "write ") + std::to_string(nth));
      const TemporaryDirectory directory;
      Settings settings = settings_in(directory.string());
      settings.host_budget_bytes = budget;
      BadDrive drive;
      {
        Engine engine(engine::engine_with_parts(settings, quiet(), drive.parts()));
        ScriptedTrainer trainer(engine, kGroups);
        if (train(trainer, drive, kind, nth) == 0) break;
        ++errors;
        EXPECT_EQ(trainer.hashes(), undisturbed());
        engine.close();
      }
      Engine again(settings, quiet());
      ScriptedTrainer same(again, kGroups);
      EXPECT_EQ(again.resumed()->step, kSteps);
      EXPECT_EQ(same.hashes(), undisturbed());
    }
    EXPECT_GE(errors, 2u);
    std::cout << errors << (kind == IoKind::kRead ? " failed reads\n" : " failed writes\n");
  }
}
INSTANTIATE_TEST_SUITE_P(Of, UndoneStep,
                         ::testing::Values(Case{"AllOnNvme", 0}, Case{"AThirdInMemory", 0.3},
                                           Case{"HalfInMemory", 0.5}),
                         [](const auto& info) { return info.param.name; });

// The error that a step leaves with, where a write fails after the first tiles were written.
std::string error_of(const Settings& settings, std::uint64_t steps_before,
                     const std::function<void(Engine&, ScriptedTrainer&)>& then) {
  BadDrive drive;
  Engine engine(engine::engine_with_parts(settings, quiet(), drive.parts()));
  ScriptedTrainer trainer(engine, kGroups);
  for (std::uint64_t step = 1; step <= steps_before; ++step) trainer.step(script_of_step(step));
  trainer.run(script_of_step(steps_before + 1));
  drive.arm(IoKind::kWrite, 3);
  std::string text;
  try {
    trainer.end_step();
    engine.finish_step();
  } catch (const Error& error) {
    text = error.what();
  }
  drive.disarm();
  then(engine, trainer);
  return text;
}

TEST(UndoneSteps, MayBeLeftOutOrGivenOtherGradients) {
  const TemporaryDirectory directory;
  const std::string text =
      error_of(settings_in(directory.string()), 2, [](Engine& engine, ScriptedTrainer& trainer) {
        engine.discard_gradients();
        for (std::uint64_t step = 3; step <= kSteps; ++step) trainer.step(script_of_step(step));
        EXPECT_EQ(trainer.hashes(), undisturbed());
      });
  EXPECT_NE(text.find("step 3 was undone, and the gradients are kept: call step() again"),
            std::string::npos)
      << text;
}

// The state before such a step is not in the store, or its gradients are gone.
TEST(UndoneSteps, AreThoseAfterACommitThatDoNotReturnEarly) {
  const auto has_failed = [](Engine& engine, ScriptedTrainer&) {
    EXPECT_CODE(Code::kFailed, engine.finish_step(), "can only be closed");
  };
  const TemporaryDirectory directory;
  Settings settings = settings_in(directory.string(), UpdateMode::kDefer);
  std::string text = error_of(settings, 2, has_failed);
  EXPECT_EQ(text.find("was undone"), std::string::npos) << text;
  for (const char* part :
       {"the deferred update of step 3", "cannot be undone, since it was deferred",
        "a new engine continues after step 2"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  settings = settings_in(directory.string());
  settings.store = "every-two";
  settings.durable_every = 2;
  text = error_of(settings, 3, has_failed);
  for (const char* part : {"the step before it was not committed (headrace.durable)",
                           "a new engine continues after step 2"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  settings.store = "after-a-commit";
  text = error_of(settings, 2, [](Engine&, ScriptedTrainer& trainer) { trainer.end_step(); });
  EXPECT_NE(text.find("step 3 was undone"), std::string::npos) << text;
}

// The save reads what was committed, so the step that is made again must not overwrite it.
TEST(UndoneSteps, CommitNothingWhileASaveReads) {
  const TemporaryDirectory directory;
  const std::string saved = directory.string() + "/saved";
  Settings settings = settings_in(directory.string());
  settings.background_save_bytes_per_second = 1 << 10;  // until it is awaited
  BadDrive drive;
  std::string after_two;
  {
    Engine engine(engine::engine_with_parts(settings, quiet(), drive.parts()));
    ScriptedTrainer trainer(engine, kGroups);
    for (std::uint64_t step = 1; step <= 2; ++step) trainer.step(script_of_step(step));
    after_two = trainer.hashes();
    trainer.run(script_of_step(3));
    drive.arm(IoKind::kWrite, 3);
    EXPECT_CODE(Code::kIo, trainer.end_step(), "step 3 was undone");
    drive.disarm();
    const BackgroundSave save = save_checkpoint_in_background(engine, saved);
    trainer.end_step();
    trainer.step(script_of_step(4));
    EXPECT_EQ(engine.durable_step(), 2u);
    EXPECT_FALSE(save.done());
    save.wait();
    trainer.step(script_of_step(5));
    EXPECT_EQ(trainer.hashes(), undisturbed());
  }
  Engine other({}, quiet());
  ScriptedTrainer loaded(other, kGroups);
  load_checkpoint(other, saved);
  EXPECT_EQ(loaded.hashes(), after_two);
}

// One bad place of a drive takes spare space once, however often the step is undone: the tile keeps
// the place that its weight was moved to, also if its record could be written nowhere.
TEST(UndoneSteps, DoNotUseUpTheSpareSpace) {
  const std::vector<std::int64_t> two_tiles = {3000};  // a weight, and a bias in f32
  constexpr std::uint64_t kWeightBytes = 8192;
  std::atomic<std::uint64_t> bad_place{0};
  std::atomic<bool> armed{false}, moved{false}, records_fail{false};
  engine::EngineParts parts;
  parts.make_drive = [&](async::Conductor& conductor, swap::DriveOptions options) {
    return std::make_unique<testing::FailingDrive>(
        conductor, std::move(options), [&](const swap::Transfer& transfer) {
          if (!armed || transfer.kind != IoKind::kWrite ||
              transfer.priority != swap::Priority::kWriteBack)
            return false;
          if (transfer.size_bytes > kWeightBytes) return moved && records_fail;
          if (bad_place == 0) bad_place = transfer.offset_bytes;
          if (transfer.offset_bytes == bad_place) return true;
          moved = true;
          return false;
        });
  };
  const TemporaryDirectory directory;
  Engine engine(engine::engine_with_parts(settings_in(directory.string()), quiet(), parts));
  ScriptedTrainer trainer(engine, two_tiles);
  const auto script = testing::script_of(Departure::kNone, 1, false);
  trainer.step(script);
  trainer.run(script);
  armed = records_fail = true;
  for (int i = 0; i < 20; ++i) EXPECT_CODE(Code::kIo, trainer.end_step(), "swap out state of");
  EXPECT_TRUE(moved);
  records_fail = false;
  trainer.end_step();
  trainer.step(script);
  Engine undisturbed{Settings{}};
  ScriptedTrainer same(undisturbed, two_tiles);
  for (int step = 0; step < 3; ++step) same.step(script);
  EXPECT_EQ(trainer.hashes(), same.hashes());
}

// The rank that failed makes the step again alone: the ranks had agreed on it.
TEST(UndoneSteps, OfOneRankAreMadeAgainThere) {
  std::vector<std::string> hashes[2];
  std::atomic<std::uint64_t> errors{0};
  for (const bool fails : {false, true}) {
    const TemporaryDirectory directory;
    auto ranks = testing::make_socket_ranks(2);
    hashes[fails].resize(2);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
        BadDrive drive;
        Engine engine(engine::engine_with_parts(settings_in(directory.string()),
                                                {.collective = std::move(own), .log = quiet().log},
                                                drive.parts()));
        ScriptedTrainer trainer(engine, kGroups);
        errors += train(trainer, drive, IoKind::kWrite, fails && r == 1 ? 2 : 1000);
        hashes[fails][r] = trainer.hashes();
      });
    }
    ranks.clear();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(errors, 1u);
  EXPECT_EQ(hashes[1], hashes[0]);
}
}  // namespace
}  // namespace headrace::undone_step_test
