// SPDX-License-Identifier: Apache-2.0
// simulated_test: the engine's coroutines under a virtual clock, with drives, passes and a trainer
// whose times are drawn: no deadlock, the same bits, for any seed. A deadlock is an error of the
// simulated conductor, a read of anything but the generation last written one of the engine, a slot
// too many a failed check.
//
// HEADRACE_SIMULATED_STEPS: how many steps of random models, budgets, speeds, failures and
// departures; HEADRACE_SIMULATED_SEED: where the seeds begin.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>

#include "engine/parts.hpp"
#include "support/computing_host.hpp"
#include "support/conductor_simulated.hpp"
#include "support/drive_simulated.hpp"
#include "support/mlp.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::simulated_test {
namespace {
using async::Nanoseconds;
using testing::Departure;
using testing::Script;
using testing::ScriptedTrainer;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// ---- one network, many orders ----

struct Shape {
  std::uint32_t update_slots;
  std::uint32_t prefetch_groups;
  bool parameters_on_nvme;
  UpdateMode mode = UpdateMode::kBarrier;
  std::vector<double> drive_shares = {1};
};

std::string train(std::uint64_t seed, const Shape& shape) {
  const testing::TemporaryDirectory directory;
  Settings s;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = shape.parameters_on_nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  s.nvme_paths = directory.drives(shape.drive_shares.size());
  s.drive_shares = shape.drive_shares;
  s.tile_elements = 65536;
  s.update_slots = shape.update_slots;
  s.prefetch_groups = shape.prefetch_groups;
  s.update_mode = shape.mode;
  engine::EngineParts parts;
  parts.update_threads = 0;
  parts.make_conductor = [=] { return async::make_conductor_simulated({.seed = seed}); };
  parts.make_drive = [=](async::Conductor& conductor, swap::DriveOptions drive) {
    return std::make_unique<testing::DriveSimulated>(conductor, seed * 7 + 1 + drive.index);
  };
  const auto device = device::make_computing_host();
  Engine engine(engine::engine_with_parts(s, EngineOptions{.device = device}, parts));
  testing::Mlp network(engine, *device, {.layers = 3, .width = 280, .batch = 1, .max_norm = 0.05f});
  for (int step = 0; step < 3; ++step) network.train_step();
  std::string hash = engine.hash_parameters() + engine.hash_optimizer_state();
  engine.close();
  return hash;
}

TEST(EngineSimulated, EverySeedAndSlotCountEndsInTheSameBits) {
  const std::uint64_t seeds = from_environment("HEADRACE_SIMULATED_SEEDS", 20);
  const std::string expected = train(0, {4, 2, true});
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const Shape& shape :
         {Shape{1, 0, true}, Shape{2, 1, false, UpdateMode::kDefer},
          Shape{3, 4, true, UpdateMode::kDefer},
          Shape{
              3, 2, true, seed % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier, {1, 4, 2}}}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(shape.update_slots) +
                   " update slots, " + std::to_string(shape.drive_shares.size()) + " drives");
      ASSERT_EQ(train(seed, shape), expected);
    }
  }
}

// ---- random runs ----

constexpr int kStepsOfARun = 25;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  std::mt19937_64 random_;
};

// What is drawn from one seed.
struct RandomRun {
  std::uint64_t seed = 0;
  std::vector<std::int64_t> groups;
  std::optional<std::uint32_t> tied;
  Settings settings;
  double budget = 0;  // between the smallest and all: less than 0, none
  std::vector<std::uint64_t> picoseconds_per_byte;  // of each drive
  std::uint64_t pass_ns = 0, trainer_ns = 0;        // at most
  std::uint64_t fails_one_in = 0;                   // transfers; 0: none
  std::vector<Script> scripts;                      // one a step
  bool ends_early = false;  // closes while updates may be pending, perhaps interrupted before
  bool interrupted = false;
  std::string text() const;
};

std::string RandomRun::text() const {
  std::string sizes;
  for (const std::int64_t elements : groups) sizes += ' ' + std::to_string(elements);
  return "HEADRACE_SIMULATED_SEED=" + std::to_string(seed) + ": groups" + sizes + "; " +
         std::to_string(settings.update_slots) + " update slots, prefetch " +
         std::to_string(settings.prefetch_groups) +
         (settings.update_mode == UpdateMode::kDefer ? ", deferred" : ", barrier") + ", budget " +
         std::to_string(budget) + ", " + std::to_string(settings.drive_shares.size()) +
         " drives, a failure in " + std::to_string(fails_one_in);
}

RandomRun drawn(std::uint64_t seed) {
  Draw draw(seed);
  RandomRun run;
  run.seed = seed;
  const std::uint64_t groups = 1 + draw.below(7);
  for (std::uint64_t g = 0; g < groups; ++g) {
    // Of one tile, seldom of two or three.
    run.groups.push_back(static_cast<std::int64_t>(draw.one_in(12) ? 65536 + draw.below(130'000)
                                                                   : 1 + draw.below(4000)));
  }
  if (draw.one_in(3)) run.tied = 0;
  Settings& s = run.settings;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = draw.one_in(4) ? OffloadDevice::kCpu : OffloadDevice::kNvme;
  s.tile_elements = 65536;
  s.io_block_bytes = 65536;
  s.update_slots = static_cast<std::uint32_t>(1 + draw.below(4));
  s.prefetch_groups = static_cast<std::uint32_t>(draw.below(5));
  s.update_mode = draw.one_in(4) ? UpdateMode::kBarrier : UpdateMode::kDefer;
  s.drive_shares.assign(1 + draw.below(3), 1.0);
  run.budget = draw.one_in(2) ? -1 : static_cast<double>(draw.below(101)) / 100;
  for (std::size_t d = 0; d < s.drive_shares.size(); ++d)
    run.picoseconds_per_byte.push_back(draw.of<std::uint64_t>({10, 100, 300, 3000}));
  run.pass_ns = draw.of<std::uint64_t>({0, 5'000, 50'000, 2'000'000});
  run.trainer_ns = draw.of<std::uint64_t>({0, 5'000, 200'000, 10'000'000});
  if (draw.one_in(5)) run.fails_one_in = draw.of<std::uint64_t>({5, 30, 300});
  const bool recompute = draw.one_in(3);
  run.ends_early = draw.one_in(3);
  run.interrupted = run.ends_early && draw.one_in(2);
  for (int step = 0; step < kStepsOfARun; ++step) {
    auto departure = draw.one_in(2) ? Departure::kNone
                                    : static_cast<Departure>(draw.below(testing::kDepartures));
    if (departure == Departure::kTiedGroup && !run.tied) departure = Departure::kNone;
    run.scripts.push_back(
        script_of(departure, static_cast<std::uint32_t>(run.groups.size()), recompute));
  }
  return run;
}

class RandomDrive final : public testing::DriveSimulated {
 public:
  RandomDrive(async::Conductor& conductor, const RandomRun& run, std::uint32_t index)
      : DriveSimulated(conductor, run.seed + index),
        draw_(run.seed * 31 + index),
        picoseconds_per_byte_(run.picoseconds_per_byte[index]),
        fails_one_in_(run.fails_one_in) {}

 protected:
  Nanoseconds duration_of(const swap::Transfer& transfer) noexcept override {
    const std::uint64_t bytes_ns = transfer.size_bytes * picoseconds_per_byte_ / 1000;
    return Nanoseconds(1000 + bytes_ns + draw_.below(20'000 + bytes_ns));
  }
  int error_of(const swap::Transfer&) noexcept override {
    return fails_one_in_ != 0 && draw_.one_in(fails_one_in_) ? EIO : 0;
  }

 private:
  Draw draw_;
  const std::uint64_t picoseconds_per_byte_, fails_one_in_;
};

// Lets the engine run for a while, as it does while a trainer computes.
void pass_time(async::Conductor& conductor, Nanoseconds time) {
  struct Until : async::Timer {
    std::atomic<bool> done{false};
    Nanoseconds time{0};
    async::Conductor* conductor = nullptr;
  } until;
  until.time = time;
  until.conductor = &conductor;
  until.run = [](async::Work* work) noexcept {
    auto& self = *static_cast<Until*>(static_cast<async::Timer*>(work));
    self.run = [](async::Work* due) noexcept {
      static_cast<Until*>(static_cast<async::Timer*>(due))->done.store(true);
    };
    self.conductor->after(self.time, self);
  };
  conductor.post(until);
  conductor.wait(until.done, nullptr);
}

struct Outcome {
  std::string hashes;  // empty: it ended in an error
  std::string error;
  bool deferred = false;
};

class Simulation {
 public:
  explicit Simulation(const RandomRun& run) : run_(run), draw_(run.seed * 17) {}

  Outcome train() {
    Settings settings = run_.settings;
    settings.nvme_paths = directory_.drives(settings.drive_shares.size());
    if (run_.budget >= 0) settings.host_budget_bytes = budget_of(settings);
    Engine engine(engine_of(settings));
    Outcome outcome;
    try {
      ScriptedTrainer trainer(engine, run_.groups, run_.tied);
      outcome.deferred = engine.plan().deferred_updates;
      if (settings.host_budget_bytes != 0) {
        EXPECT_LE(engine.plan().host_bytes, settings.host_budget_bytes);
      }
      for (const Script& script : run_.scripts) step(trainer, script);
      if (run_.ends_early) {
        pass_time(*conductor_, Nanoseconds(draw_.below(3'000'000)));
        if (run_.interrupted) engine.interrupt();
      } else {
        outcome.hashes = trainer.hashes();
      }
    } catch (const Error& error) {
      outcome.error = error.what();
      EXPECT_EQ(outcome.error.find("deadlock"), std::string::npos) << error.what();
      EXPECT_NE(run_.fails_one_in, 0u) << error.what();
      EXPECT_TRUE(error.code() == Code::kIo || error.code() == Code::kFailed) << error.what();
    }
    engine.close();
    return outcome;
  }

 private:
  Engine engine_of(const Settings& settings) {
    engine::EngineParts parts;
    parts.update_threads = 0;
    parts.make_conductor = [this] {
      auto conductor = async::make_conductor_simulated({.seed = run_.seed});
      conductor_ = conductor.get();
      return conductor;
    };
    parts.make_drive = [this](async::Conductor& conductor, swap::DriveOptions drive) {
      return std::make_unique<RandomDrive>(conductor, run_, drive.index);
    };
    parts.pass_takes = [this] { return Nanoseconds(draw_.below(run_.pass_ns + 1)); };
    return engine::engine_with_parts(settings, EngineOptions{.log = [](LogLevel, auto) {}}, parts);
  }

  std::uint64_t budget_of(Settings settings) {
    settings.host_budget_bytes = std::uint64_t{1} << 40;
    Engine whole(engine_of(settings));
    const ScriptedTrainer trainer(whole, run_.groups, run_.tied);
    const PlanReport& plan = whole.plan();
    const auto between = static_cast<double>(plan.host_bytes - plan.smallest_host_bytes);
    return plan.smallest_host_bytes + static_cast<std::uint64_t>(run_.budget * between);
  }

  void step(ScriptedTrainer& trainer, const Script& script) {
    for (const testing::ScriptedCall& call : script) {
      trainer.run({call});
      if (run_.trainer_ns != 0)
        pass_time(*conductor_, Nanoseconds(draw_.below(run_.trainer_ns + 1)));
    }
    trainer.end_step();
  }

  const RandomRun& run_;
  Draw draw_;
  const testing::TemporaryDirectory directory_;
  async::Conductor* conductor_ = nullptr;
};

std::string in_memory(const RandomRun& run) {
  Settings settings;
  settings.update_mode = UpdateMode::kBarrier;
  settings.update_threads = 1;
  Engine engine(settings);
  ScriptedTrainer trainer(engine, run.groups, run.tied);
  for (const Script& script : run.scripts) trainer.step(script);
  return trainer.hashes();
}

TEST(EngineSimulated, RandomRunsEndInTheBitsOfOneInMemoryOrInTheErrorOfADrive) {
  const std::uint64_t first = from_environment("HEADRACE_SIMULATED_SEED", 1);
  const std::uint64_t runs = from_environment("HEADRACE_SIMULATED_STEPS", 10'000) / kStepsOfARun;
  std::uint64_t deferred = 0, failed = 0, early = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const RandomRun run = drawn(seed);
    SCOPED_TRACE(run.text());
    const Outcome outcome = Simulation(run).train();
    deferred += outcome.deferred;
    failed += !outcome.error.empty();
    early += run.ends_early;
    if (!outcome.hashes.empty()) {
      EXPECT_EQ(outcome.hashes, in_memory(run));
    }
    if (HasFailure()) return;
  }
  std::cout << runs * kStepsOfARun << " steps in " << runs << " runs from seed " << first << ": "
            << deferred << " deferred, " << early << " closed with updates pending, " << failed
            << " ended in an error of a drive\n";
}
}  // namespace
}  // namespace headrace::simulated_test
