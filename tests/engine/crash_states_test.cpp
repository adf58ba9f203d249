// SPDX-License-Identifier: Apache-2.0
// crash_states_test: what a power loss may leave on the drives of a durable engine, at any moment:
// what was synced, and any part of what was written since, whole, torn at sectors, or not at all.
// Every such state is opened by a new engine, which goes on at an epoch that was durable or about
// to be, with its bits.
//
// With several ranks, what each had at some moment of its own is put together, where the calls in
// which they met allow both moments: all go on at one epoch.
//
// HEADRACE_CRASH_STATES: how many, a twentieth of that for several ranks.
// HEADRACE_CRASH_SEED: where the seeds begin.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/conductor_simulated.hpp"
#include "support/drive_simulated.hpp"
#include "support/scripted_trainer.hpp"
#include "support/socket_ranks.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::crash_states_test {
namespace {
using testing::Departure;
using testing::ScriptedTrainer;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::uint64_t kSteps = 5, kSector = 512, kNever = 1'000'000'000'000;
const std::vector<std::int64_t> kGroups = {3000, 70'000, 500};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

testing::Script script_of_step(std::uint64_t step) {
  const auto departure = step % 3 == 2 ? Departure::kSkippedGroup : Departure::kNone;
  return script_of(departure, static_cast<std::uint32_t>(kGroups.size()), false);
}

// Some runs replace a moment of two tiles between two steps: it belongs to the epoch after that.
void make_step(Engine& engine, ScriptedTrainer& trainer, std::uint64_t step, bool loads) {
  constexpr std::uint64_t kLoadsBefore = 3;
  if (loads && step == kLoadsBefore) {
    engine.load(ParameterId{2}, Content::kExpAvg, [](std::uint64_t, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3c});
    });
  }
  trainer.step(script_of_step(step));
}

// After every step of a run in memory, from 0 on.
const std::vector<std::string>& expected(bool loads) {
  static const auto hashes_of = [](bool with_load) {
    return testing::hashes_in_memory(
        kGroups, kSteps, [&](Engine& engine, ScriptedTrainer& trainer, std::uint64_t step) {
          make_step(engine, trainer, step, with_load);
        });
  };
  static const std::vector<std::string> hashes[] = {hashes_of(false), hashes_of(true)};
  return hashes[loads];
}

// What a crash leaves, and the steps that may be found there.
struct State {
  std::vector<Bytes> drives;
  std::uint64_t durable = 0, made = 0;
  std::uint64_t begun = 0, ended = 0;  // calls in which this rank meets the others
};

class CrashDrive;

// The drives of one engine, and the states that a crash would leave at moments that are drawn.
class Crashes {
 public:
  Crashes(std::uint64_t seed, std::uint64_t one_in, const testing::SocketCollective* meetings)
      : random_(seed), one_in_(one_in), meetings_(meetings) {}
  // A store that is made anew gets other drives of the same numbers.
  void set(std::uint32_t index, CrashDrive& drive) {
    if (drives_.size() <= index) drives_.resize(index + 1);
    drives_[index] = &drive;
  }
  void event() {
    if ((watched_ != nullptr || opened_ != nullptr) && random_() % one_in_ == 0) take();
  }
  // While an engine opens what a crash has left; null: no more.
  void watch_opening(const State* opened) { opened_ = opened; }
  // From here on; null: no more.
  void watch(const Engine* engine, std::uint64_t made = 0) {
    watched_ = engine;
    made_ = made;
  }
  void note_made(std::uint64_t steps) { made_ = steps; }
  std::vector<State> states;

 private:
  void take();
  Random random_;
  const std::uint64_t one_in_;
  const testing::SocketCollective* const meetings_;  // null: one rank
  std::vector<CrashDrive*> drives_;
  const Engine* watched_ = nullptr;
  const State* opened_ = nullptr;
  std::uint64_t made_ = 0;
};

// A drive that a crash has left, on which none follows: it notes no writes.
class LeftDrive final : public testing::DriveSimulated {
 public:
  LeftDrive(async::Conductor& conductor, std::uint64_t seed, const Bytes& contents)
      : DriveSimulated(conductor, seed) {
    file_ = contents;
  }
};

class CrashDrive final : public testing::DriveSimulated {
 public:
  CrashDrive(async::Conductor& conductor, std::uint64_t seed, std::uint32_t index, Crashes& crashes,
             const Bytes& contents)
      : DriveSimulated(conductor, seed), crashes_(crashes), durable_(contents) {
    file_ = contents;
    crashes_.set(index, *this);
  }
  void start(swap::Transfer& transfer) noexcept override {
    if (transfer.kind == swap::IoKind::kSync) syncs_[&transfer] = next_;
    if (transfer.kind == swap::IoKind::kWrite) {
      const std::byte* const data = transfer.data;
      started_[&transfer] = {transfer.offset_bytes, {data, data + transfer.size_bytes}};
    }
    DriveSimulated::start(transfer);
    crashes_.event();
  }
  // Durable bytes, and of the writes since then some, in any order of sectors.
  Bytes after_a_crash(Random& random) const {
    Bytes bytes = durable_;
    const std::uint64_t kept = random() % 4;  // none, all, half of them, torn
    const auto apply = [&](const Write& write) {
      if (kept == 0 || (kept == 2 && random() % 2 == 0)) return;
      if (bytes.size() < write.offset + write.data.size())
        bytes.resize(write.offset + write.data.size());
      for (std::uint64_t at = 0; at < write.data.size(); at += kSector) {
        if (kept == 3 && random() % 2 == 0) continue;
        std::copy_n(write.data.begin() + static_cast<std::ptrdiff_t>(at), kSector,
                    bytes.begin() + static_cast<std::ptrdiff_t>(write.offset + at));
      }
    };
    for (const auto& [number, write] : unsynced_) apply(write);
    for (const auto& [transfer, write] : started_) apply(write);
    return bytes;
  }

 protected:
  void ended(const swap::Transfer& transfer) noexcept override {
    if (transfer.kind == swap::IoKind::kWrite) {
      unsynced_.emplace(next_++, std::move(started_.at(&transfer)));
      started_.erase(&transfer);
    } else if (transfer.kind == swap::IoKind::kSync) {
      // Only writes that had ended when the sync began.
      const auto end = unsynced_.lower_bound(syncs_.at(&transfer));
      for (auto write = unsynced_.begin(); write != end; ++write) {
        const auto& [offset, data] = write->second;
        if (durable_.size() < offset + data.size()) durable_.resize(offset + data.size());
        std::ranges::copy(data, durable_.begin() + static_cast<std::ptrdiff_t>(offset));
      }
      unsynced_.erase(unsynced_.begin(), end);
      syncs_.erase(&transfer);
    }
    crashes_.event();
  }

 private:
  struct Write {
    std::uint64_t offset = 0;
    Bytes data;
  };
  Crashes& crashes_;
  Bytes durable_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Write> unsynced_;
  std::map<const swap::Transfer*, Write> started_;
  std::map<const swap::Transfer*, std::uint64_t> syncs_;
};

void Crashes::take() {
  State state{.drives = {}, .durable = 0, .made = made_};
  if (watched_ != nullptr) state.durable = watched_->durable_step();
  if (opened_ != nullptr) {
    state.durable = opened_->durable;
    state.made = opened_->made;
  }
  for (const CrashDrive* const drive : drives_)
    state.drives.push_back(drive->after_a_crash(random_));
  if (meetings_ != nullptr) {
    state.begun = meetings_->begun();
    state.ended = meetings_->ended();
  }
  states.push_back(std::move(state));
}

const State kNothing;

// One engine over simulated drives, and its trainer. `from` has to outlive it.
class Simulation {
 public:
  Simulation(const Settings& settings, std::uint64_t seed, const State& from, std::uint64_t one_in,
             std::shared_ptr<testing::SocketCollective> meetings = nullptr, bool loads = false)
      : crashes(seed, one_in, meetings.get()),
        engine_([&] {
          // A store without a step is made anew: in other files, which are renamed when whole.
          if (from.durable > 0) crashes.watch_opening(&from);
          engine::EngineParts parts;
          parts.update_threads = 0;
          parts.make_conductor = [=] { return async::make_conductor_simulated({.seed = seed}); };
          parts.make_drive = [=, this, &from](async::Conductor& conductor,
                                              swap::DriveOptions options) {
            return drive(conductor, seed, options.index, from, one_in);
          };
          return engine::engine_with_parts(
              settings,
              EngineOptions{.collective = meetings, .log = [](LogLevel, std::string_view) {}},
              parts);
        }()),
        loads_(loads) {
    trainer_.emplace(engine_, kGroups);
    crashes.watch_opening(nullptr);
    step_ = engine_.resumed() ? engine_.resumed()->step : 0;
  }
  void train() {
    crashes.watch(&engine_, step_);
    while (step_ < kSteps) {
      crashes.note_made(step_ + 1);  // it may be committed before step() has returned
      make_step(engine_, *trainer_, ++step_, loads_);
    }
    crashes.watch(nullptr);
  }
  std::uint64_t step() const { return step_; }
  std::string hashes() { return trainer_->hashes(); }

  Crashes crashes;

 private:
  std::unique_ptr<swap::Drive> drive(async::Conductor& conductor, std::uint64_t seed,
                                     std::uint32_t index, const State& from, std::uint64_t one_in) {
    const Bytes& contents = index < from.drives.size() ? from.drives[index] : kEmpty;
    seed = seed * 5 + index;
    if (one_in == kNever) return std::make_unique<LeftDrive>(conductor, seed, contents);
    return std::make_unique<CrashDrive>(conductor, seed, index, crashes, contents);
  }

  static inline const Bytes kEmpty;
  Engine engine_;
  const bool loads_;
  std::optional<ScriptedTrainer> trainer_;
  std::uint64_t step_ = 0;
};

struct Counts {
  std::uint64_t states = 0, resumed = 0, trained_on = 0;
};

bool loads_in(std::uint64_t seed) { return seed % 4 == 1; }

void check(const Settings& settings, std::uint64_t seed, const State& state, Counts& counts) {
  ++counts.states;
  const bool trains = counts.states % 20 == 0, loads = loads_in(seed);
  std::vector<State> second;  // of a crash while the store is opened, or of the run that goes on
  {
    Simulation after(settings, seed + counts.states, state, trains ? 20 : kNever, nullptr, loads);
    ASSERT_GE(after.step(), state.durable);
    ASSERT_LE(after.step(), state.made);
    counts.resumed += after.step() > 0;
    ASSERT_EQ(after.hashes(), expected(loads)[after.step()]);
    if (!trains) return;
    ++counts.trained_on;
    after.train();
    ASSERT_EQ(after.hashes(), expected(loads)[kSteps]);
    second = std::move(after.crashes.states);
  }
  for (const State& crash : second) {
    ++counts.states;
    Simulation last(settings, seed + counts.states, crash, kNever, nullptr, loads);
    ASSERT_GE(last.step(), crash.durable);
    ASSERT_LE(last.step(), crash.made);
    ASSERT_EQ(last.hashes(), expected(loads)[last.step()]);
  }
}

Settings settings_of(std::uint64_t seed, Random& random, const testing::TemporaryDirectory& at) {
  Settings settings = testing::all_on_nvme(at.string());
  settings.nvme_paths = at.drives(1 + seed % 3);
  settings.drive_shares.assign(settings.nvme_paths.size(), 1.0);
  settings.durable_every = 1 + (seed % 5 == 0 ? 1 : 0);
  settings.store = "crash";
  settings.update_mode = random() % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier;
  settings.update_slots = static_cast<std::uint32_t>(1 + random() % 3);
  if (random() % 3 != 0) settings.host_budget_bytes = (12 + random() % 6) << 20;
  return settings;
}

// Each state is drives of megabytes: fresh pages of each took more time than the engines.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

// A long run may be ended and go on later: from the seed after the last one that is named.
void say_progress(std::uint64_t before, std::uint64_t now, std::uint64_t seed) {
  constexpr std::uint64_t kEvery = 10'000;
  if (before / kEvery != now / kEvery)
    std::cout << now << " states so far, up to seed " << seed << std::endl;
}

TEST(CrashStates, OpenAtAnEpochThatWasDurableOrAboutToBe) {
  keep_freed_memory();
  const std::uint64_t wanted = from_environment("HEADRACE_CRASH_STATES", 10'000);
  const std::uint64_t first = from_environment("HEADRACE_CRASH_SEED", 1);
  Counts counts;
  for (std::uint64_t seed = first; counts.states < wanted; ++seed) {
    SCOPED_TRACE("HEADRACE_CRASH_SEED=" + std::to_string(seed));
    Random random(seed);
    const testing::TemporaryDirectory directory;
    const Settings settings = settings_of(seed, random, directory);
    std::vector<State> states;
    {
      Simulation run(settings, seed, kNothing, 20, nullptr, loads_in(seed));
      run.train();
      ASSERT_EQ(run.hashes(), expected(loads_in(seed))[kSteps]);
      states = std::move(run.crashes.states);
    }
    const std::uint64_t before = counts.states;
    for (const State& state : states) {
      ASSERT_NO_FATAL_FAILURE(check(settings, seed, state, counts));
    }
    say_progress(before, counts.states, seed);
  }
  // A few runs alone may crash early more often than not.
  EXPECT_GT(counts.resumed, counts.states / 4);
  std::cout << counts.states << " states from seed " << first << ", " << counts.resumed
            << " with a committed step, " << counts.trained_on << " trained on\n";
}

// ---- several ranks ----

using RankBody =
    std::function<void(std::uint32_t rank, std::shared_ptr<testing::SocketCollective>)>;
// Every rank on a thread of its own; what they throw, in one text.
std::string run_ranks(std::uint32_t world, const RankBody& body) {
  auto ranks = testing::make_socket_ranks(world);
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
      try {
        body(r, std::move(own));
      } catch (const std::exception& error) {
        errors[r] = "rank " + std::to_string(r) + ": " + error.what() + "\n";
      }
    });
  }
  ranks.clear();
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& error : errors) all += error;
  return all;
}

std::vector<std::string> expected_of(std::uint32_t world) {
  std::vector<std::string> hashes(kSteps + 1);
  const std::string error = run_ranks(world, [&](std::uint32_t r, auto meetings) {
    Settings settings;
    settings.update_threads = 1;
    Engine engine(settings, {.collective = std::move(meetings)});
    ScriptedTrainer trainer(engine, kGroups);
    for (std::uint64_t step = 0; step <= kSteps; ++step) {
      if (step > 0) trainer.step(script_of_step(step));
      const std::string text = trainer.hashes();
      if (r == 0) hashes[step] = text;
    }
  });
  EXPECT_EQ(error, "");
  return hashes;
}

// Whether the ranks can have been at these moments together: none has ended a call that another has
// not begun.
bool can_meet(const State& a, const State& b) { return a.ended <= b.begun && b.ended <= a.begun; }

// A state of every rank, that of rank 0 given; empty if none is found.
std::vector<const State*> draw_world(const std::vector<std::vector<State>>& states,
                                     const State& of_rank_0, Random& random) {
  std::vector<const State*> world = {&of_rank_0};
  for (std::size_t r = 1; r < states.size(); ++r) {
    std::vector<const State*> fit;
    for (const State& state : states[r]) {
      if (std::ranges::all_of(world, [&](const State* other) { return can_meet(state, *other); }))
        fit.push_back(&state);
    }
    if (fit.empty()) return {};
    world.push_back(fit[random() % fit.size()]);
  }
  return world;
}

struct WorldCounts {
  std::uint64_t states = 0, resumed = 0;
};

void check_world(const Settings& settings, std::uint64_t seed,
                 const std::vector<const State*>& world, const std::vector<std::string>& hashes,
                 WorldCounts& counts) {
  const auto ranks = static_cast<std::uint32_t>(world.size());
  std::uint64_t durable = 0, made = kSteps;
  for (const State* const state : world) {
    durable = std::max(durable, state->durable);
    made = std::min(made, state->made);
  }
  const bool trains = ++counts.states % 10 == 0;
  std::vector<std::uint64_t> steps(ranks);
  std::vector<std::string> found(ranks), ends(ranks, hashes[kSteps]);
  const std::string error = run_ranks(ranks, [&](std::uint32_t r, auto meetings) {
    Simulation after(settings, (seed + counts.states) * 7 + r, *world[r], kNever,
                     std::move(meetings));
    steps[r] = after.step();
    found[r] = after.hashes();
    if (!trains) return;
    after.train();
    ends[r] = after.hashes();
  });
  ASSERT_EQ(error, "");
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ASSERT_EQ(steps[r], steps[0]);
    ASSERT_GE(steps[r], durable);
    ASSERT_LE(steps[r], made);
    ASSERT_EQ(found[r], hashes[steps[r]]);
    ASSERT_EQ(ends[r], hashes[kSteps]);
  }
  counts.resumed += steps[0] > 0;
}

TEST(CrashStates, OfSeveralRanksOpenAtOneEpoch) {
  const std::uint64_t wanted = from_environment("HEADRACE_CRASH_STATES", 10'000) / 20;
  const std::uint64_t first = from_environment("HEADRACE_CRASH_SEED", 1);
  const std::vector<std::string> expected[] = {expected_of(2), expected_of(3)};
  WorldCounts counts;
  for (std::uint64_t seed = first; counts.states < wanted; ++seed) {
    SCOPED_TRACE("HEADRACE_CRASH_SEED=" + std::to_string(seed));
    const auto world = static_cast<std::uint32_t>(2 + seed % 2);
    const std::vector<std::string>& hashes = expected[world - 2];
    Random random(seed);
    const testing::TemporaryDirectory directory;
    Settings settings = settings_of(seed, random, directory);
    settings.rank_agreement = RankOrder::kEach;  // a simulated conductor has one thread
    std::vector<std::vector<State>> states(world);
    const std::string error = run_ranks(world, [&](std::uint32_t r, auto meetings) {
      Simulation run(settings, seed * 7 + r, kNothing, 10, std::move(meetings));
      run.train();
      states[r] = std::move(run.crashes.states);
    });
    ASSERT_EQ(error, "");
    for (const State& of_rank_0 : states[0]) {
      const std::vector<const State*> drawn = draw_world(states, of_rank_0, random);
      if (drawn.empty()) continue;
      ASSERT_NO_FATAL_FAILURE(check_world(settings, seed, drawn, hashes, counts));
    }
  }
  EXPECT_GT(counts.resumed, counts.states / 4);
  std::cout << counts.states << " states of two and three ranks from seed " << first << ", "
            << counts.resumed << " with a common step\n";
}
}  // namespace
}  // namespace headrace::crash_states_test
