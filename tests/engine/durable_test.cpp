// SPDX-License-Identifier: Apache-2.0
// durable_test: what a durable engine has committed survives its process, and the run that goes on
// from it ends in the bits of the run that nobody disturbed. Children are killed between steps, and
// at every request that their drives get, on each I/O queue.
//
// HEADRACE_KILL_EVERY: kills at every n-th request only.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <string_view>
#include <thread>

#include "base/unique_fd.hpp"
#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/io_queue_fault.hpp"
#include "support/killing_queue.hpp"
#include "support/scripted_trainer.hpp"
#include "support/store_renames.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/store_format.hpp"

// In the place of the C library's.
extern "C" int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  if (std::string_view(to).ends_with(".store") && headrace::testing::store_renames_to_live >= 0 &&
      headrace::testing::store_renames_to_live-- == 0)
    ::raise(SIGKILL);
  return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, 0));
}

namespace headrace::durable_test {
namespace {
using testing::Departure;
using testing::KillingQueue;
using testing::ScriptedTrainer;
using testing::TemporaryDirectory;

// Groups of one tile and of three.
const std::vector<std::int64_t> kGroups = {3000, 150'000, 70'000};
constexpr int kSteps = 6;

testing::Script script_of_step(std::uint64_t step) {
  // Every third step leaves a group without a gradient: its slot stays where it is.
  const auto departure = step % 3 == 2 ? Departure::kSkippedGroup : Departure::kNone;
  return script_of(departure, static_cast<std::uint32_t>(kGroups.size()), false);
}

void train_to(Engine& engine, ScriptedTrainer& trainer, std::uint64_t last) {
  const auto resumed = engine.resumed();
  for (std::uint64_t step = resumed ? resumed->step + 1 : 1; step <= last; ++step)
    trainer.step(script_of_step(step));
}

// Hashes after every step of a run in memory, from 0 on.
const std::vector<std::string>& expected() {
  static const std::vector<std::string> hashes = [] {
    std::vector<std::string> all;
    Settings settings;
    settings.update_threads = 1;
    Engine engine(settings);
    ScriptedTrainer trainer(engine, kGroups);
    all.push_back(trainer.hashes());
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      trainer.step(script_of_step(step));
      all.push_back(trainer.hashes());
    }
    return all;
  }();
  return hashes;
}

Settings durable(const std::vector<std::string>& paths, std::uint64_t every = 1) {
  Settings s = testing::all_on_nvme(paths[0]);
  s.nvme_paths = paths;
  s.update_threads = 1;
  s.io_block_bytes = 64 * 1024;
  s.queue_depth = 4;
  s.durable_every = every;
  s.store = "run";
  return s;
}

EngineOptions quiet() {
  return {.log = [](LogLevel, std::string_view) {}};
}

// Runs `body` in a process of its own. Returns its exit code; -n: signal n ended it.
int in_a_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << "child: " << error.what() << '\n';
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

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

engine::EngineParts with_faults(const swap::FaultPlan& plan) {
  engine::EngineParts parts;
  parts.make_queue = [plan](const swap::IoQueueOptions& options) {
    swap::ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, options);
    chosen.queue = make_io_queue_fault(std::move(chosen.queue), plan, nullptr);
    return chosen;
  };
  return parts;
}

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
  {
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, 1);
    engine.close();
  }
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

// ---- refusals ----

class DurableRefusal : public ::testing::Test {
 protected:
  DurableRefusal() {
    Engine engine(settings_, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, 2);
    engine.close();
  }
  // Refused with these words and nothing written; afterwards the store goes on.
  void expect_refused(Code code, const std::string& words, const std::function<void()>& open) {
    const auto before = contents();
    try {
      open();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_EQ(contents(), before);
  }
  void open(const Settings& settings, const std::vector<std::int64_t>& groups = kGroups) {
    Engine engine(settings, quiet());
    const ScriptedTrainer trainer(engine, groups);
  }
  std::vector<std::string> contents() const {
    std::vector<std::string> all;
    for (const auto& path : files()) {
      std::ifstream file(path, std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return all;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      if (entry.path().extension() == ".store") found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  void change(std::size_t file, std::uint64_t offset, std::uint64_t bytes) {
    std::fstream stream(files()[file], std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = offset; at < offset + bytes; ++at) {
      stream.seekg(static_cast<std::streamoff>(at));
      const int byte = stream.get();
      stream.seekp(static_cast<std::streamoff>(at));
      stream.put(static_cast<char>(byte ^ 1));
    }
  }
  // The two files as they were, or one of them.
  void put_back(const std::vector<std::string>& contents, std::size_t first = 0,
                std::size_t last = 1) {
    for (std::size_t file = first; file <= last; ++file)
      std::ofstream(files()[file], std::ios::binary) << contents[file];
  }
  void train_on(std::uint64_t last) {
    Engine engine(settings_, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, last);
    engine.close();
  }

  const TemporaryDirectory directory_;
  const std::vector<std::string> paths_ = directory_.drives(2);
  const Settings settings_ = durable(paths_);
};

TEST_F(DurableRefusal, NamesTheSettingOrParameterThatDiffers) {
  Settings other = settings_;
  other.master = MasterLayout::kF32;
  expect_refused(Code::kWrongState, "headrace.master \"split\", this run has \"f32\"",
                 [&] { open(other); });
  other = settings_;
  other.tile_elements = 131072;
  expect_refused(Code::kWrongState, "headrace.tile_elements 65536, this run has 131072",
                 [&] { open(other); });
  other = settings_;
  other.rounding_seed = 7;
  expect_refused(Code::kWrongState, "headrace.rounding_seed 0, this run has 7",
                 [&] { open(other); });
  expect_refused(Code::kWrongState, "parameters 6, this run has 4", [&] {
    open(settings_, {3000, 150'000});
  });
  expect_refused(Code::kWrongState,
                 "'group.1.weight', has shape [150000] in the store and [150001] in this run", [&] {
                   open(settings_, {3000, 150'001, 70'000});
                 });
  Engine engine(settings_, quiet());
  engine.set_default_hyperparameters({.weight_decay = 0.5f});
  expect_refused(Code::kWrongState,
                 "hyperparameter set 0 has weight_decay 0.01 in the store and 0.5 in this run",
                 [&] { const ScriptedTrainer trainer(engine, kGroups); });
  open(settings_);
}

// Registers one parameter; trains one step where there is none yet.
void open_with(const std::string& path, const std::string& group, ParameterSpec spec,
               bool other_set = false) {
  Engine engine(durable({path}), quiet());
  const HyperparameterSetId set = engine.add_hyperparameters({.beta1 = 0.5f});
  if (other_set) spec.hyperparameters = set;
  const GroupId id = engine.add_group(group, {spec, {"other", DType::kF32, {8}}});
  engine.freeze();
  engine.load(id,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  engine.set_trainer_state({});
  const float gradient[8] = {};
  engine.add_gradient({1}, gradient, DType::kF32);
  engine.step({});
  engine.close();
}

TEST(DurableTerms, NameTheAttributeOfAParameterThatDiffersAndBothValues) {
  const TemporaryDirectory directory;
  const ParameterSpec spec{"b.c", DType::kF32, {4, 2}};
  open_with(directory.string(), "a", spec);
  struct Other {
    std::string group, words;
    ParameterSpec spec;
    bool other_set = false;
  };
  const std::string named = "parameter 0, 'a.b.c', ";
  for (const Other& other : std::vector<Other>{
           {"a",
            "parameter 0 is 'a.b.c' in the store and 'a.b.d' in this run",
            {"b.d", DType::kF32, {4, 2}}},
           {"a.b",
            named + "is of group 'a' in the store and 'a.b' in this run",
            {"c", DType::kF32, {4, 2}}},
           {"a",
            named + "has shape [4, 2] in the store and [2, 4] in this run",
            {"b.c", DType::kF32, {2, 4}}},
           {"a",
            named + "has type F32 in the store and BF16 in this run",
            {"b.c", DType::kBf16, {4, 2}}},
           {"a",
            named + "is trained in the store and frozen in this run",
            {"b.c", DType::kF32, {4, 2}, {}, true}},
           {"a", named + "has another hyperparameter set in the store than set 1", spec, true}}) {
    EXPECT_CODE(Code::kWrongState,
                open_with(directory.string(), other.group, other.spec, other.other_set),
                other.words);
  }
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

TEST_F(DurableRefusal, FollowsResume) {
  Settings other = settings_;
  other.resume = headrace::Resume::kNever;
  expect_refused(Code::kWrongState, "exists, and headrace.resume is \"never\"",
                 [&] { open(other); });
  other = settings_;
  other.resume = headrace::Resume::kRequire;
  open(other);
  other.store = "another";
  expect_refused(Code::kNotFound, "headrace.resume is \"require\"", [&] { open(other); });
}

TEST_F(DurableRefusal, NamesTheDriveThatIsMissing) {
  Settings one = settings_;
  one.nvme_paths = {paths_[0]};
  expect_refused(Code::kNotFound, "on 2 drives, and the settings name 1 paths", [&] { open(one); });
  one.nvme_paths = {paths_[1]};
  expect_refused(Code::kNotFound, "has a drive 1 in", [&] { open(one); });
  const auto moved = files()[0].string() + ".away";
  std::filesystem::rename(files()[0], moved);
  expect_refused(Code::kNotFound, "lacks its file of drive 0", [&] { open(settings_); });
}

// Two engines look for a store that is not there; one makes it, commits and ends meanwhile.
TEST(NewStore, DoesNotReplaceOneThatCameMeanwhile) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  engine::EngineParts parts;
  parts.make_conductor = [&] {
    EXPECT_EQ(in_a_child([&] {
                Engine other(settings, quiet());
                ScriptedTrainer trainer(other, kGroups);
                train_to(other, trainer, 2);
                other.close();
              }),
              0);
    return async::make_conductor_asio();
  };
  Engine late = engine::engine_with_parts(settings, quiet(), parts);
  EXPECT_CODE(Code::kWrongState, const ScriptedTrainer trainer(late, kGroups),
              "was made by another engine since this one looked for it");
  late.close();
  Engine again(settings, quiet());
  ScriptedTrainer trainer(again, kGroups);
  EXPECT_EQ(again.resumed()->step, 2u);
  EXPECT_EQ(trainer.hashes(), expected()[2]);
}

// As a killed engine leaves that slept.
TEST(ResumedStore, RemovesDeadRunsOfItsPaths) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  {
    Engine engine(settings, quiet());
    ScriptedTrainer trainer(engine, kGroups);
    train_to(engine, trainer, 1);
    engine.close();
  }
  Settings scratch = settings;
  scratch.durable_every = 0;
  scratch.store.clear();
  EXPECT_EQ(in_a_child([&] {
              Engine killed(scratch, quiet());
              const ScriptedTrainer trainer(killed, kGroups);
              ::kill(::getpid(), SIGKILL);
            }),
            -SIGKILL);
  const std::string user = directory.string() + "/" + swap::user_directory_name();
  const auto entries = [&] { return std::distance(std::filesystem::directory_iterator(user), {}); };
  EXPECT_EQ(entries(), 2) << "the store, and the dead run";
  Engine resumed(settings, quiet());
  const ScriptedTrainer trainer(resumed, kGroups);
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableRefusal, IsInUseByOneEngineAtATime) {
  Engine engine(settings_, quiet());
  const ScriptedTrainer trainer(engine, kGroups);
  try {
    open(settings_);
    ADD_FAILURE() << "two engines on one store";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kWrongState);
    EXPECT_NE(std::string(error.what()).find("is in use"), std::string::npos);
  }
}

TEST_F(DurableRefusal, FindsDamage) {
  change(0, 20, 1);
  expect_refused(Code::kCorrupt, "its header's checksum differs", [&] { open(settings_); });
  change(0, 20, 1);
  std::filesystem::resize_file(files()[1], 8192);
  expect_refused(Code::kIo, "the file ends there", [&] { open(settings_); });
}

void wipe_ring(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  file.seekp(swap::kStoreHeadBytes);
  file << std::string(swap::kRingPlaces * head.commit_bytes, '\0');
}

// The slots are whole, and nothing says which of them belong together: that is no new store.
TEST_F(DurableRefusal, NamesRingsThatWereWiped) {
  for (const auto& file : files()) wipe_ring(file);
  expect_refused(Code::kCorrupt,
                 "no commit record is left: " + files()[0].string() + " and " + files()[1].string(),
                 [&] { open(settings_); });
  expect_refused(Code::kCorrupt, "restore the store from a copy", [&] { open(settings_); });
}

TEST_F(DurableRefusal, GoesOnByTheRingOfAnotherDrive) {
  wipe_ring(files()[0]);
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

// One copy is killed before it commits anything, and the other commits the same step: the same
// generations, in slots of different runs.
TEST_F(DurableRefusal, TellsCopiesApartOfWhichOneWasKilledInMidUpdate) {
  const auto before = contents();
  ASSERT_EQ(in_a_child([&] {
              Settings settings = durable(paths_, 100);
              settings.update_mode = UpdateMode::kBarrier;
              Engine engine(settings, quiet());
              ScriptedTrainer trainer(engine, kGroups);
              train_to(engine, trainer, 3);
              ::raise(SIGKILL);
            }),
            -SIGKILL);
  const auto killed = contents();
  put_back(before);
  train_on(3);
  put_back(killed, 0, 0);
  expect_refused(Code::kCorrupt, "the files are of different runs", [&] { open(settings_); });
}

// No record of one drive has the number of one of the other.
TEST_F(DurableRefusal, NamesAFileOfAnOlderCopy) {
  const auto before = contents();
  train_on(kSteps);
  const auto expect_named = [&] {
    put_back(before, 0, 0);
    expect_refused(Code::kCorrupt, files()[0].string() + " is of an older copy",
                   [&] { open(settings_); });
  };
  const auto newest = contents();
  expect_named();
  // Nor where the ring has records of openings alone, and of no commit.
  put_back(newest);
  for (int opening = 0; opening < 4; ++opening) train_on(kSteps);
  expect_named();
}

// A drive that lost the writes of one record, and has the next: no older copy.
TEST_F(DurableRefusal, GoesOnWhereARecordBeforeTheNewestWasLost) {
  const auto before = contents();
  train_on(3);  // record 4 when it is opened, 5 of the commit
  auto lost = contents();
  swap::StoreHead head;
  std::memcpy(&head, lost[0].data(), sizeof head);
  for (std::size_t file = 0; file < 2; ++file) {
    for (std::uint32_t copy = 0; copy < swap::kCopies; ++copy) {
      const swap::Extent at = swap::place_of(4, copy, 0, head.commit_bytes);
      lost[file].replace(at.offset_bytes, at.size_bytes, before[file], at.offset_bytes,
                         at.size_bytes);
    }
  }
  put_back(lost);
  std::string log;
  Engine engine(settings_, {.log = [&](LogLevel, std::string_view text) { log += text; }});
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_NE(log.find("it lacks commit record 4"), std::string::npos) << log;
  EXPECT_EQ(engine.resumed()->step, 3u);
  EXPECT_EQ(trainer.hashes(), expected()[3]);
}

// One copy of the newest record is damaged: the other serves, after all of it was verified.
TEST_F(DurableRefusal, GoesOnByAnotherCopyOfARecord) {
  for (std::uint64_t page = 1; page < 4; ++page) change(0, 4096 * page + 200, 1);
  std::string log;
  Engine engine(settings_, {.log = [&](LogLevel, std::string_view text) { log += text; }});
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_NE(log.find("torn or damaged"), std::string::npos) << log;
  EXPECT_EQ(engine.resumed()->step, 2u);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

// ---- stores that were never whole ----

// On every copy, as a crash leaves it that comes before the sync.
void tear_first_commit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  for (std::uint32_t copy = 0; copy < swap::kCopies; ++copy) {
    const swap::Extent at = swap::place_of(swap::kFirstCommitRoot, copy, 0, head.commit_bytes);
    file.seekp(static_cast<std::streamoff>(at.offset_bytes));
    file << std::string(512, 'x');
  }
}

// What a kill leaves between the renames of two drives, or before the first.
class HalfMadeStore : public ::testing::Test {
 protected:
  void make(std::uint64_t steps, std::size_t first_without_name = 1) {
    {
      Engine engine(settings_, quiet());
      ScriptedTrainer trainer(engine, kGroups);
      train_to(engine, trainer, steps);
      engine.close();
    }
    for (std::size_t drive = first_without_name; drive < paths_.size(); ++drive)
      std::filesystem::rename(file(drive), file(drive, swap::kBeingMade));
  }
  std::filesystem::path file(std::size_t drive, const std::string& prefix = "") const {
    return paths_[drive] + "/" + swap::user_directory_name() + "/store-run/" + prefix + "rank0." +
           std::to_string(drive) + ".store";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      if (!entry.is_directory()) found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  const std::vector<std::string> whole_ = {"rank0.0.store", "rank0.1.store"};
  const TemporaryDirectory directory_;
  const std::vector<std::string> paths_ = directory_.drives(2);
  const Settings settings_ = durable(paths_);
};

TEST_F(HalfMadeStore, IsRemovedAndBegunAnewInWhateverOrderOfThePaths) {
  for (const std::size_t without_name : {1u, 0u}) {
    for (const bool turned : {false, true}) {
      SCOPED_TRACE(std::to_string(without_name) + (turned ? " turned" : ""));
      make(0, without_name);
      Settings settings = settings_;
      if (turned) std::ranges::reverse(settings.nvme_paths);
      for (const std::uint64_t step : {0, 1}) {
        Engine engine(settings, quiet());
        ScriptedTrainer trainer(engine, kGroups);
        ASSERT_EQ(engine.resumed() ? engine.resumed()->step : 0, step);
        ASSERT_EQ(trainer.hashes(), expected()[step]);
        train_to(engine, trainer, step + 1);
        engine.close();
      }
      EXPECT_EQ(names(), whole_);
      for (const std::string& path : paths_)
        std::filesystem::remove_all(path + "/" + swap::user_directory_name());
    }
  }
}

// The renames are some syncs apart.
TEST_F(HalfMadeStore, IsWhatAKillBetweenTheRenamesOfTwoDrivesLeaves) {
  bool between = false;
  for (int attempt = 0; attempt < 50 && !between; ++attempt) {
    for (const std::string& path : paths_)
      std::filesystem::remove_all(path + "/" + swap::user_directory_name());
    in_a_child([&] {
      std::thread([&] {
        while (!std::filesystem::exists(file(0))) {
        }
        ::kill(::getpid(), SIGKILL);
      }).detach();
      make(0, paths_.size());
    });
    between = std::filesystem::exists(file(0)) && !std::filesystem::exists(file(1));
  }
  ASSERT_TRUE(between);
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_EQ(trainer.hashes(), expected()[0]);
  EXPECT_EQ(names(), whole_);
}

// The first comes in mid-commit, the second between the renames of the store that is made anew.
TEST_F(HalfMadeStore, IsWhatTwoKillsAroundTheFirstCommitLeave) {
  make(1, paths_.size());
  for (const std::size_t drive : {0u, 1u}) tear_first_commit(file(drive));
  ASSERT_EQ(in_a_child([&] {
              testing::store_renames_to_live = 1;
              Engine engine(settings_, quiet());
              const ScriptedTrainer trainer(engine, kGroups);
            }),
            -SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1))) << "the one before went first";
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_EQ(trainer.hashes(), expected()[0]);
  EXPECT_EQ(names(), whole_);
}

TEST_F(HalfMadeStore, HoldsNoStepForAResumeThatRequiresOne) {
  make(0);
  Settings settings = settings_;
  settings.resume = headrace::Resume::kRequire;
  Engine engine(settings, quiet());
  EXPECT_CODE(Code::kNotFound, const ScriptedTrainer trainer(engine, kGroups),
              "holds no committed step");
  EXPECT_EQ(names().size(), 2u) << "nothing was removed";
}

TEST_F(HalfMadeStore, IsNoneWithACommittedStepOrAnythingUnknown) {
  make(2);
  const auto refused = [&] {
    Engine engine(settings_, quiet());
    EXPECT_CODE(Code::kNotFound, const ScriptedTrainer trainer(engine, kGroups),
                "lacks its file of drive 1 of 2");
    EXPECT_TRUE(std::filesystem::exists(file(0)));
    EXPECT_TRUE(std::filesystem::exists(file(1, swap::kBeingMade)));
  };
  refused();
  std::filesystem::remove(file(0));
  std::filesystem::remove(file(1, swap::kBeingMade));
  make(0);
  wipe_ring(file(0));
  refused();
}

TEST_F(HalfMadeStore, ThatIsBeingMadeIsInUse) {
  make(0);
  const base::UniqueFd maker(::open(file(1, swap::kBeingMade).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(maker.get(), LOCK_EX | LOCK_NB), 0);
  Engine engine(settings_, quiet());
  EXPECT_CODE(Code::kWrongState, const ScriptedTrainer trainer(engine, kGroups), "is in use");
  EXPECT_TRUE(std::filesystem::exists(file(0)));
}

// ---- paths ----

TEST(DurablePaths, ThatAreOneDirectoryAreRefusedByBothNames) {
  const TemporaryDirectory directory;
  const std::string one = directory.string() + "/one", two = directory.string() + "/two";
  std::filesystem::create_directory(one);
  std::filesystem::create_directory_symlink(one, two);
  const std::string named = "'" + one + "' and '" + two + "' are one directory";
  const auto expect_named = [&] {
    Engine engine(durable({one, two}), quiet());
    EXPECT_CODE(Code::kInvalidArgument, const ScriptedTrainer trainer(engine, kGroups), named);
    EXPECT_TRUE(std::filesystem::is_empty(one));
  };
  expect_named();
  std::filesystem::remove(two);
  std::filesystem::create_directory(two);
  const int mounted = in_a_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(one.c_str(), two.c_str(), nullptr, MS_BIND, nullptr) != 0)
      ::_exit(77);
    expect_named();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  if (mounted == 77) GTEST_SKIP() << "needs root, to mount a directory twice";
  EXPECT_EQ(mounted, 0);
}

// A store has all state on its drives: memory does not help.
TEST(DurablePaths, WithoutRoomAreNamedWithTheBytesAndTheSettingThatHelps) {
  const TemporaryDirectory directory;
  const std::uint64_t free = std::filesystem::space(directory.path()).available;
  if (free > (1ull << 43)) GTEST_SKIP() << "too much is free for a table of all tiles";
  Settings settings = durable({directory.string()});
  settings.tile_elements = 4 << 20;
  engine::EngineParts parts;
  parts.machine_left_bytes = [] { return 0; };  // memory is not what this is about
  Engine engine(engine::engine_with_parts(settings, quiet(), parts));
  const auto rows = static_cast<std::int64_t>(free / 24 / 65536 + 65536);
  engine.add_group("h.0", {{"weight", DType::kBf16, {rows, 65536}, {}}});
  const Error error = testing::error_of([&] { engine.freeze(); });
  EXPECT_EQ(error.code(), Code::kNoSpace) << error.what();
  const std::string text = error.what();
  for (const char* const part : {"the plan needs ", " bytes) are free", "headrace.nvme_paths"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find("host_budget_bytes"), std::string::npos) << text;
}

// A store stays on its drives: another path alone is no way out.
TEST(DurablePaths, ThatBecomeFullAreNamedWithTheFreeBytesAndTheWayOut) {
  const TemporaryDirectory directory;
  Engine engine(engine::engine_with_parts(durable({directory.string()}), quiet(),
                                          with_faults({.enospc = 1, .skip_requests = 200})));
  ScriptedTrainer trainer(engine, kGroups);
  const Error error = testing::error_of([&] { train_to(engine, trainer, kSteps); });
  EXPECT_EQ(error.code(), Code::kNoSpace) << error.what();
  const std::string text = error.what();
  for (const char* const part :
       {"rank0.0.store", "ENOSPC", " are free there", "headrace store copy", "headrace.nvme_paths"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find("name another nvme_path"), std::string::npos) << text;
}

// Every byte of a slot that counts is covered: a flipped one is found before or when it is used.
TEST_F(DurableRefusal, NeverUsesAFlippedByte) {
  std::uint64_t found = 0;
  const std::uint64_t size = std::filesystem::file_size(files()[0]);
  for (std::uint64_t at = 40960; at < size; at += 40'961) {
    change(0, at, 1);
    try {
      Engine engine(settings_, quiet());
      ScriptedTrainer trainer(engine, kGroups);
      EXPECT_EQ(trainer.hashes(), expected()[2]);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
      ++found;
    }
    change(0, at, 1);
  }
  EXPECT_GT(found, 5u);
}

// A new run finds the same damage on whatever drive: a store is not left by starting again.
TEST_F(DurableRefusal, SaysOfDamagedSlotsThatTheStoreIsToBeRestored) {
  std::ifstream file(files()[0], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t headers = 0, bodies = 0;
  for (std::uint64_t page = 0; page + 4096 < bytes.size(); page += 4096) {
    if (bytes.compare(page, 8, "hrrecord") != 0) continue;
    for (const std::uint64_t at : {page + 100, page + 4096 + 7}) {
      change(0, at, 1);
      try {
        Engine engine(settings_, quiet());
        ScriptedTrainer trainer(engine, kGroups);
        EXPECT_EQ(trainer.hashes(), expected()[2]) << "only of the slot that does not count";
      } catch (const Error& error) {
        const std::string text = error.what();
        headers += text.find("the record's header is not what was written") != std::string::npos;
        bodies += text.find("the checksum differs from what was written") != std::string::npos;
        EXPECT_NE(
            text.find("was changed or the drive is failing. Restore the store from a copy, or "
                      "name another headrace.store."),
            std::string::npos)
            << text;
      }
      change(0, at, 1);
    }
  }
  EXPECT_GT(headers, 0u);
  EXPECT_GT(bodies, 0u);
}
}  // namespace
}  // namespace headrace::durable_test
