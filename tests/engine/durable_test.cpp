// SPDX-License-Identifier: Apache-2.0
// durable_test: what a durable engine has committed survives its process, and the run that goes on
// from it ends in the bits of the run that nobody disturbed. Children are killed between steps, and
// at every request that their drives get, on each I/O queue.
//
// HEADRACE_KILL_EVERY: kills at every n-th request only.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>

#include "support/durable_training.hpp"
#include "support/expect_code.hpp"
#include "support/io_queue_fault.hpp"
#include "support/killing_queue.hpp"
#include "support/temporary_directory.hpp"
#include "swap/store_format.hpp"

namespace headrace::durable_test {
namespace {
using namespace durable_training;
using testing::KillingQueue;
using testing::TemporaryDirectory;

struct Case {
  const char* name;
  std::uint64_t every;
  UpdateMode mode;
  double budget;  // of the way from the smallest plan to all in memory; below 0: none
  std::size_t drives;
};

Settings settings_of(const Case& c, const TemporaryDirectory& directory) {
  Settings settings = durable(directory.drives(c.drives), c.every);
  settings.update_mode = c.mode;
  if (c.budget < 0) return settings;
  Settings probe = settings;
  probe.durable_every = 0;
  probe.store.clear();
  probe.host_budget_bytes = std::uint64_t{1} << 40;
  Engine whole(probe, quiet());
  const ScriptedTrainer trainer(whole, kGroups);
  const auto between =
      static_cast<double>(whole.plan().host_bytes - whole.plan().smallest_host_bytes);
  // A durable plan has a header per tile and the commit record beside that.
  settings.host_budget_bytes =
      whole.plan().smallest_host_bytes + 200'000 + static_cast<std::uint64_t>(c.budget * between);
  return settings;
}

class DurableRun : public ::testing::TestWithParam<Case> {};

// Killed when step(k) has returned, at each k. Then at most `every` steps are repeated.
TEST_P(DurableRun, GoesOnAtItsLastCommitAfterAKillBetweenSteps) {
  for (std::uint64_t kill_at = 1; kill_at <= 5; ++kill_at) {
    SCOPED_TRACE("killed after step " + std::to_string(kill_at));
    const TemporaryDirectory directory;
    const Settings settings = settings_of(GetParam(), directory);
    ASSERT_EQ(in_a_child([&] {
                Engine engine(settings, quiet());
                ScriptedTrainer trainer(engine, kGroups);
                train_to(engine, trainer, kill_at);
                ::raise(SIGKILL);
              }),
              -SIGKILL);
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    const std::uint64_t from = engine.resumed() ? engine.resumed()->step : 0;
    EXPECT_LE(from, kill_at);
    EXPECT_LE(kill_at - from, GetParam().every);
    EXPECT_EQ(engine.durable_step(), from);
    EXPECT_EQ(trainer.hashes(), expected()[from]);
    train_to(engine, trainer, kSteps);
    EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
    engine.close();
    // close() has committed the last step.
    Engine again(settings, quiet());
    ScriptedTrainer same(again, kGroups);
    ASSERT_TRUE(again.resumed());
    EXPECT_EQ(again.resumed()->step, static_cast<std::uint64_t>(kSteps));
    EXPECT_EQ(same.hashes(), expected()[kSteps]);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Of, DurableRun,
    ::testing::Values(Case{"AllOnNvme", 1, UpdateMode::kBarrier, -1, 1},
                      Case{"Deferred", 1, UpdateMode::kDefer, -1, 1},
                      Case{"EveryTwoSteps", 2, UpdateMode::kDefer, -1, 1},
                      Case{"PartInMemory", 1, UpdateMode::kBarrier, 0.5, 1},
                      Case{"PartInMemoryDeferred", 1, UpdateMode::kDefer, 0.6, 1},
                      Case{"AllInMemory", 1, UpdateMode::kBarrier, 1.5, 1},
                      Case{"AllInMemoryEveryTwo", 2, UpdateMode::kBarrier, 1.5, 1},
                      Case{"ThreeDrives", 1, UpdateMode::kDefer, 0.3, 3}),
    [](const auto& info) { return info.param.name; });

// Between the halves of a run everything may change that changes no result.
TEST(Durable, GoesOnWithAnotherBudgetThreadsQueueAndMode) {
  const TemporaryDirectory directory;
  const Case cases[] = {{"", 1, UpdateMode::kDefer, -1, 2},
                        {"", 2, UpdateMode::kBarrier, 1.5, 2},
                        {"", 1, UpdateMode::kBarrier, 0.4, 2},
                        {"", 1, UpdateMode::kDefer, 0.7, 2}};
  std::uint64_t step = 0;
  for (const Case& c : cases) {
    Settings settings = settings_of(c, directory);
    settings.update_threads = static_cast<std::uint32_t>(1 + step % 2);
    settings.prefetch_groups = static_cast<std::uint32_t>(step % 3);
    settings.io_queue = step % 2 == 0 ? IoQueueKind::kThreads : IoQueueKind::kAuto;
    settings.io_block_bytes = 65536 << step;
    if (step % 2 == 1) std::swap(settings.nvme_paths[0], settings.nvme_paths[1]);
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    EXPECT_EQ(engine.resumed() ? engine.resumed()->step : 0, step);
    EXPECT_EQ(trainer.hashes(), expected()[step]);
    train_to(engine, trainer, ++step);
    engine.close();
  }
  Engine engine(settings_of(cases[0], directory), quiet());
  ScriptedTrainer trainer(engine, kGroups);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

TEST(Durable, CommitMakesTheLastStepDurableAndFinishesLoads) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()}, 100);
  EXPECT_EQ(in_a_child([&] {
              Engine engine(settings, quiet());
              ScriptedTrainer trainer(engine, kGroups);
              train_to(engine, trainer, 3);
              if (engine.durable_step() != 0) ::_exit(4);
              engine.commit();
              if (engine.durable_step() != 3) ::_exit(5);
              trainer.step(script_of_step(4));
              ::raise(SIGKILL);
            }),
            -SIGKILL);
  Engine engine(settings, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  ASSERT_TRUE(engine.resumed());
  EXPECT_EQ(engine.resumed()->step, 3u);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

TEST(Durable, KeepsASkippedStep) {
  const TemporaryDirectory directory;
  Settings settings = durable({directory.string()});
  settings.non_finite = NonFinite::kSkip;
  {
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, 2);
    const std::vector<float> nan(40, std::numeric_limits<float>::quiet_NaN());
    engine.add_gradient(ParameterId{1}, nan.data(), DType::kF32);
    EXPECT_TRUE(trainer.end_step().skipped);
    engine.close();
  }
  Engine engine(settings, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  ASSERT_TRUE(engine.resumed());
  EXPECT_EQ(engine.resumed()->step, 2u);
  EXPECT_EQ(engine.resumed()->skipped, 1u);
  EXPECT_EQ(trainer.hashes(), expected()[2]);
}

// The newest record of a store's only file.
std::vector<std::uint64_t> generations_in(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  swap::StoreHead head;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::vector<std::uint64_t> newest;
  std::uint64_t root = 0;
  for (std::uint64_t place = 0; place < swap::kRingPlaces; ++place) {
    std::vector<std::uint64_t> memory(head.commit_bytes / sizeof(std::uint64_t));
    std::memcpy(memory.data(), bytes.data() + swap::kStoreHeadBytes + place * head.commit_bytes,
                head.commit_bytes);
    std::string fault;
    const auto record =
        swap::CommitRecord::read(std::as_writable_bytes(std::span(memory)), head.store, fault);
    if (!fault.empty() || record.head().root <= root) continue;
    root = record.head().root;
    newest.clear();
    for (const swap::CommitTile& tile : record.tiles()) newest.push_back(tile.generation);
  }
  return newest;
}

// A write that a crash undid and one that takes its place after it differ in their generation, so
// that one which the drive has dropped is found.
TEST(Durable, UsesNoGenerationTwice) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  std::vector<std::uint64_t> before;
  for (std::uint64_t last : {2, 3}) {
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, last);
    engine.close();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
      if (entry.path().extension() != ".store") continue;
      const std::vector<std::uint64_t> now = generations_in(entry.path());
      ASSERT_FALSE(now.empty());
      for (std::size_t t = 0; t < before.size(); ++t)
        EXPECT_GT(now[t], before[t] + 1'000'000) << "tile " << t;
      before = now;
    }
  }
}

TEST(Durable, KeepsTheFilesApartFromThoseOfRuns) {
  const TemporaryDirectory directory;
  {
    Engine engine(durable({directory.string()}), quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, 2);
  }
  EXPECT_EQ(directory.entries(), 2u);  // the store and its file
  {
    Engine scratch(testing::all_on_nvme(directory.string()), quiet());
    const ScriptedTrainer other(scratch, kGroups);
  }
  Engine engine(durable({directory.string()}), quiet());
  const ScriptedTrainer trainer(engine, kGroups);
  EXPECT_EQ(engine.resumed()->step, 2u);
}

// ---- kills at every request ----

class KillAtRequests : public ::testing::TestWithParam<IoQueueKind> {};

TEST_P(KillAtRequests, LeaveAStoreThatEndsInTheSameBits) {
  const char* const text = std::getenv("HEADRACE_KILL_EVERY");
  const std::uint64_t stride = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  constexpr std::uint64_t kLast = 3;
  const std::vector<std::int64_t> groups = {3000, 70'000};
  const auto step = [&](Engine& engine, ScriptedTrainer& trainer) {
    const std::uint64_t from = engine.resumed() ? engine.resumed()->step : 0;
    for (std::uint64_t s = from; s < kLast; ++s)
      trainer.step(script_of(Departure::kNone, static_cast<std::uint32_t>(groups.size()), false));
  };
  std::string end;
  {
    Engine engine(Settings{}, quiet());
    ScriptedTrainer trainer(engine, groups);
    step(engine, trainer);
    end = trainer.hashes();
  }
  std::uint64_t points = 0, resumed = 0;
  for (std::uint64_t kill_at = 1;; kill_at += stride) {
    SCOPED_TRACE("killed at event " + std::to_string(kill_at));
    const TemporaryDirectory directory;
    Settings settings = durable({directory.string()});
    settings.io_queue = GetParam();
    settings.update_mode = kill_at % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier;
    std::atomic<std::uint64_t> events{0};
    engine::EngineParts parts;
    parts.make_queue = [&](const swap::IoQueueOptions& options) {
      swap::ChosenIoQueue chosen = choose_io_queue(GetParam(), options);
      chosen.queue = std::make_unique<KillingQueue>(std::move(chosen.queue), kill_at, events,
                                                    [] { ::raise(SIGKILL); });
      return chosen;
    };
    const int end_of_child = in_a_child([&] {
      Engine engine(engine::engine_with_parts(settings, quiet(), parts));
      ScriptedTrainer trainer(engine, groups);
      step(engine, trainer);
      engine.close();
    });
    if (end_of_child == 0) break;  // there is no such request
    ASSERT_EQ(end_of_child, -SIGKILL);
    ++points;
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, groups);
    resumed += engine.resumed().has_value();
    step(engine, trainer);
    ASSERT_EQ(trainer.hashes(), end);
  }
  EXPECT_GT(points, 200 / stride);
  EXPECT_GT(resumed, points / 4);
  std::cout << points << " points, at " << resumed << " of them a step was committed\n";
}
INSTANTIATE_TEST_SUITE_P(Of, KillAtRequests,
                         ::testing::Values(IoQueueKind::kUring, IoQueueKind::kAio,
                                           IoQueueKind::kThreads),
                         [](const auto& info) { return name_of(info.param); });

// ---- drives that fail ----

// The first sync is the store's own, at its start; each commit has two.
class FailedSync : public ::testing::TestWithParam<int> {};
TEST_P(FailedSync, IsFinalAndTheStoreKeepsTheEpochBefore) {
  for (std::uint64_t sync = 4; sync <= 5; ++sync) {
    SCOPED_TRACE("sync " + std::to_string(sync));
    const TemporaryDirectory directory;
    const Settings settings = durable({directory.string()});
    std::string error;
    {
      Engine engine(engine::engine_with_parts(
          settings, quiet(), with_faults({.fail_sync = sync, .sync_errno = GetParam()})));
      ScriptedTrainer trainer(engine, kGroups);
      try {
        train_to(engine, trainer, kSteps);
      } catch (const Error& failed) {
        error = failed.what();
      }
      EXPECT_EQ(engine.durable_step(), 1u);
      EXPECT_CODE(Code::kFailed, engine.commit(), "can only be closed");
      EXPECT_EQ(engine.durable_step(), 1u);
    }
    EXPECT_NE(error.find("sync of "), std::string::npos) << error;
    EXPECT_NE(error.find("may be lost"), std::string::npos) << error;
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    ASSERT_TRUE(engine.resumed());
    // A root that was written and not synced may be there or not.
    EXPECT_LE(engine.resumed()->step, sync - 3);
    EXPECT_GE(engine.resumed()->step, 1u);
    train_to(engine, trainer, kSteps);
    EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
  }
}
INSTANTIATE_TEST_SUITE_P(Of, FailedSync, ::testing::Values(EIO, EINTR, EAGAIN, ENOSPC));

// Whichever request meets it first: those of a commit have one place, and the tier writes once.
TEST(Durable, AKernelThatRefusesRegisteredMemoryEndsNoCommit) {
  for (std::uint64_t skip = 0; skip < 200; skip += 7) {
    SCOPED_TRACE("after request " + std::to_string(skip));
    const TemporaryDirectory directory;
    Engine engine(engine::engine_with_parts(
        durable({directory.string()}), quiet(),
        with_faults({.registered_errno = EFAULT, .skip_requests = skip})));
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, kSteps);
    ASSERT_EQ(trainer.hashes(), expected()[kSteps]);
    EXPECT_GT(engine.stats().nvme_retries, 0u);
  }
}

TEST(Durable, AnErrorInMidUpdateLosesOneStepAndNoMore) {
  std::uint64_t failed = 0;
  for (std::uint64_t request = 40; request < 400; request += 7) {
    SCOPED_TRACE("request " + std::to_string(request));
    const TemporaryDirectory directory;
    const Settings settings = durable({directory.string()});
    std::uint64_t done = 0;
    try {
      Engine engine(engine::engine_with_parts(
          settings, quiet(),
          with_faults({.eio_read = 1, .eio_write = 1, .skip_requests = request})));
      ScriptedTrainer trainer(engine, kGroups);
      for (; done < kSteps; ++done) trainer.step(script_of_step(done + 1));
      engine.close();
    } catch (const Error&) {
      ++failed;
    }
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    const std::uint64_t from = engine.resumed() ? engine.resumed()->step : 0;
    EXPECT_GE(from + 1, done);
    EXPECT_EQ(trainer.hashes(), expected()[from]);
    train_to(engine, trainer, kSteps);
    EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
  }
  EXPECT_GT(failed, 10u);
}

// Whether a write came before the first sync.
class WatchedQueue final : public swap::IoQueue {
 public:
  struct Seen {
    std::atomic<bool> synced{false}, early_write{false};
  };
  WatchedQueue(std::unique_ptr<swap::IoQueue> inner, Seen& seen)
      : inner_(std::move(inner)), seen_(seen) {}
  const char* name() const noexcept override { return inner_->name(); }
  std::uint32_t depth() const noexcept override { return inner_->depth(); }
  std::uint32_t in_flight() const noexcept override { return inner_->in_flight(); }
  bool submit(swap::IoRequest& request) noexcept override {
    if (request.kind == swap::IoKind::kWrite && !seen_.synced) seen_.early_write = true;
    return inner_->submit(request);
  }
  int flush() noexcept override { return inner_->flush(); }
  std::size_t reap(std::span<swap::IoRequest*> done,
                   std::chrono::nanoseconds timeout) noexcept override {
    const std::size_t reaped = inner_->reap(done, timeout);
    for (const swap::IoRequest* const request : done.first(reaped))
      if (request->kind == swap::IoKind::kSync) seen_.synced = true;
    return reaped;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  const std::unique_ptr<swap::IoQueue> inner_;
  Seen& seen_;
};

// A kill may have left the newest record written and not synced: it is, before another is written
// over an older one.
TEST(Durable, SyncsWhatItFoundBeforeItWrites) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  train_run_to(settings, 1);
  WatchedQueue::Seen seen;
  engine::EngineParts parts;
  parts.make_queue = [&](const swap::IoQueueOptions& options) {
    swap::ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, options);
    chosen.queue = std::make_unique<WatchedQueue>(std::move(chosen.queue), seen);
    return chosen;
  };
  Engine engine(engine::engine_with_parts(settings, quiet(), parts));
  const ScriptedTrainer trainer(engine, kGroups);
  EXPECT_TRUE(engine.resumed());
  EXPECT_TRUE(seen.synced);
  EXPECT_FALSE(seen.early_write);
}

// One group with one parameter, and the trainer's state as text.
class TrainersBytes : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> open(std::uint64_t every = 1) {
    auto engine = std::make_unique<Engine>(durable({directory_.string()}, every), quiet());
    const GroupId group = engine->add_group("a", {{"b", DType::kF32, {8}}});
    engine->freeze();
    if (!engine->resumed()) {
      engine->load(group, [](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, std::byte{0});
      });
    }
    return engine;
  }
  static void set(Engine& engine, const std::string& text) {
    engine.set_trainer_state(std::as_bytes(std::span(text)));
  }
  static void step(Engine& engine) {
    const float gradient[8] = {};
    engine.add_gradient({0}, gradient, DType::kF32);
    engine.step({});
  }
  // "step 2: text"
  std::string kept(std::uint64_t every = 1) {
    const auto engine = open(every);
    const Resumed resumed = engine->resumed().value();
    const auto* const text = reinterpret_cast<const char*>(resumed.trainer_state.data());
    return "step " + std::to_string(resumed.step) + ": " +
           std::string(text, resumed.trainer_state.size());
  }
  const TemporaryDirectory directory_;
};

TEST_F(TrainersBytes, OfAStepThatWasNotMadeAreNotCommittedAtClose) {
  {
    const auto engine = open(3);
    for (const char* const text : {"before 1", "before 2"}) {
      set(*engine, text);
      step(*engine);
    }
    set(*engine, "before 3");
    EXPECT_THROW(engine->step({.learning_rate = -1}), Error);
  }
  EXPECT_EQ(kept(3), "step 2: before 2");
}

TEST_F(TrainersBytes, OfARunThatResumesStayUntilOthersAreGiven) {
  {
    const auto engine = open();
    set(*engine, "before 1");
    step(*engine);
  }
  open()->commit();
  EXPECT_EQ(kept(), "step 1: before 1");
  {
    const auto engine = open();
    set(*engine, "after a load");
    engine->commit();
  }
  EXPECT_EQ(kept(), "step 1: after a load");
}

TEST(DurableWarning, NamesTheCallsThatKeepTheTrainersState) {
  const TemporaryDirectory directory;
  std::string said;
  EngineOptions options;
  options.log = [&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) said += std::string(line) + "\n";
  };
  Engine engine(durable({directory.string()}), options);
  const GroupId group = engine.add_group("a", {{"b", DType::kF32, {8}}});
  engine.freeze();
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  const float gradient[8] = {};
  for (int step = 0; step < 2; ++step) {
    engine.add_gradient({0}, gradient, DType::kF32);
    engine.step({});
  }
  engine.close();
  for (const char* call : {"Engine::set_trainer_state()", "Offload::keep_trainer_state()"}) {
    const std::size_t at = said.find(call);
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find(call, at + 1), std::string::npos) << "once";
  }
}

TEST(DurableWarning, SaysOfWhichStepTheTrainersStateIsThatIsKept) {
  const TemporaryDirectory directory;
  std::string said;
  const auto train_a_step = [&](bool keeps) {
    Engine engine(durable({directory.string()}), {.log = [&](LogLevel, std::string_view line) {
                    said += std::string(line) + "\n";
                  }});
    const GroupId group = engine.add_group("a", {{"b", DType::kF32, {8}}});
    engine.freeze();
    if (!engine.resumed()) {
      engine.load(group, [](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, std::byte{0});
      });
    }
    if (keeps) engine.set_trainer_state(std::as_bytes(std::span("four", 4)));
    const float gradient[8] = {};
    engine.add_gradient({0}, gradient, DType::kF32);
    engine.step({});
    engine.close();
  };
  train_a_step(true);
  EXPECT_EQ(said.find("trainer's state"), std::string::npos) << said;
  train_a_step(false);
  EXPECT_EQ(said.find("without the trainer's state"), std::string::npos) << said;
  EXPECT_NE(said.find("step 2 is committed to store 'run' with the trainer's state of step 1"),
            std::string::npos)
      << said;
}
}  // namespace
}  // namespace headrace::durable_test
