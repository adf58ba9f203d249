// SPDX-License-Identifier: Apache-2.0
// durable_ranks_test: several ranks commit as one. Whichever of them is killed, and wherever, all
// go on at one epoch, and end in the bits of the run that nobody disturbed. What does not belong
// together is refused on every rank, and nothing is written.
//
// HEADRACE_KILL_EVERY: kills at every n-th request only.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/killing_queue.hpp"
#include "support/scripted_trainer.hpp"
#include "support/socket_ranks.hpp"
#include "support/store_renames.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/store_format.hpp"

namespace headrace::durable_ranks_test {
namespace {
namespace fs = std::filesystem;
using testing::Departure;
using testing::ScriptedTrainer;
using testing::TemporaryDirectory;

const std::vector<std::int64_t> kGroups = {3000, 150'000};
constexpr std::uint64_t kSteps = 4;

Settings durable(const std::string& path, std::uint64_t every = 1) {
  Settings s = testing::all_on_nvme(path);
  s.update_threads = 1;
  s.io_queue = IoQueueKind::kThreads;
  s.io_block_bytes = 64 * 1024;
  s.queue_depth = 4;
  s.durable_every = every;
  s.store = "run";
  return s;
}

void step(ScriptedTrainer& trainer, std::uint64_t number) {
  const auto departure = number % 3 == 2 ? Departure::kSkippedGroup : Departure::kNone;
  trainer.step(script_of(departure, static_cast<std::uint32_t>(kGroups.size()), false));
}

void train_to(Engine& engine, ScriptedTrainer& trainer, std::uint64_t last) {
  const auto resumed = engine.resumed();
  for (std::uint64_t s = resumed ? resumed->step + 1 : 1; s <= last; ++s) step(trainer, s);
}

struct Rank {
  std::uint32_t number;
  Engine& engine;
  std::string& log;
  ScriptedTrainer trainer{engine, kGroups};  // registers, freezes, loads
};
using Body = std::function<void(Rank&)>;

// One rank's part; returns what it throws.
std::string run_rank(const Settings& settings, std::shared_ptr<Collective> collective,
                     const engine::EngineParts& parts, std::string& log, const Body& body) {
  const std::uint32_t number = collective->rank();
  try {
    Engine engine(engine::engine_with_parts(
        settings,
        {.collective = std::move(collective),
         .log = [&](LogLevel, std::string_view text) { log += std::string(text) + "\n"; }},
        parts));
    Rank rank{number, engine, log};
    body(rank);
    engine.close();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// Every rank on a thread of its own.
struct Ended {
  std::vector<std::string> errors, logs;
};
Ended run_world(std::uint32_t world, const Settings& settings, const Body& body) {
  auto ranks = testing::make_socket_ranks(world);
  Ended ended{std::vector<std::string>(world), std::vector<std::string>(world)};
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
      ended.errors[r] = run_rank(settings, std::move(own), {}, ended.logs[r], body);
    });
  }
  ranks.clear();
  for (std::thread& thread : threads) thread.join();
  return ended;
}

void expect_no_error(const Ended& ended) {
  for (const std::string& error : ended.errors) EXPECT_EQ(error, "");
}

// Hashes after every step of a run in memory, from 0 on.
std::vector<std::string> expected(std::uint32_t world) {
  static std::map<std::uint32_t, std::vector<std::string>> known;
  auto& all = known[world];
  if (!all.empty()) return all;
  Settings settings;
  settings.update_threads = 1;
  expect_no_error(run_world(world, settings, [&](Rank& rank) {
    for (std::uint64_t s = 0; s <= kSteps; ++s) {
      if (s > 0) step(rank.trainer, s);
      const std::string hashes = rank.trainer.hashes();
      if (rank.number == 0) all.push_back(hashes);
    }
  }));
  return all;
}

// What the ranks that are gone had made would belong to no store.
TEST(RanksStore, ThatHoldsNoStepIsMadeAnewByFewerRanks) {
  const TemporaryDirectory directory;
  const Settings settings = durable(directory.string());
  expect_no_error(run_world(4, settings, [](Rank&) {}));
  const fs::path store = fs::path(directory.string()) / swap::user_directory_name() / "store-run";
  const auto files = [&] { return std::distance(fs::directory_iterator(store), {}); };
  ASSERT_EQ(files(), 4);
  expect_no_error(
      run_world(2, settings, [](Rank& rank) { train_to(rank.engine, rank.trainer, 1); }));
  EXPECT_EQ(files(), 2);
  expect_no_error(
      run_world(2, settings, [](Rank& rank) { EXPECT_EQ(rank.engine.resumed()->step, 1u); }));
}

// ---- kills ----

struct Kill {
  const char* name;
  std::uint32_t world;
  bool all;  // every rank dies, else one
};

// The processes of one world, which see each other's numbers.
class Processes {
 public:
  explicit Processes(std::uint32_t world)
      : pids_(static_cast<pid_t*>(::mmap(nullptr, world * sizeof(pid_t), PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        world_(world) {}
  ~Processes() { ::munmap(pids_, world_ * sizeof(pid_t)); }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  void start(std::uint32_t rank, const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      pids_[rank] = ::getpid();
      ::_exit(body());
    }
    children_.push_back(child);
  }
  void kill_all() const {
    for (std::uint32_t r = 0; r < world_; ++r) {
      if (pids_[r] != 0 && pids_[r] != ::getpid()) ::kill(pids_[r], SIGKILL);
    }
    ::raise(SIGKILL);
  }
  // Exit codes; -n: signal n ended it.
  std::vector<int> wait() const {
    std::vector<int> codes;
    for (const pid_t child : children_) {
      int status = 0;
      ::waitpid(child, &status, 0);
      codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    }
    return codes;
  }

 private:
  pid_t* const pids_;
  const std::uint32_t world_;
  std::vector<pid_t> children_;
};

// Trains to step `last` in processes of their own, of which `victim` dies at event `kill_at`.
// Whether it did.
bool train_and_kill(const Kill& kill, const Settings& settings, std::uint32_t victim,
                    std::uint64_t kill_at, std::uint64_t last = kSteps) {
  auto ranks = testing::make_socket_ranks(kill.world);
  Processes processes(kill.world);
  for (std::uint32_t r = 0; r < kill.world; ++r) {
    processes.start(r, [&] {
      std::shared_ptr<Collective> own = std::move(ranks[r]);
      ranks.clear();
      std::atomic<std::uint64_t> events{0};
      engine::EngineParts parts;
      parts.make_queue = [&](const swap::IoQueueOptions& options) {
        swap::ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, options);
        chosen.queue = std::make_unique<testing::KillingQueue>(
            std::move(chosen.queue), r == victim ? kill_at : 0, events, [&] {
              if (kill.all) processes.kill_all();
              ::raise(SIGKILL);
            });
        return chosen;
      };
      std::string log;
      const std::string error = run_rank(settings, std::move(own), parts, log, [&](Rank& rank) {
        train_to(rank.engine, rank.trainer, last);
      });
      return error.empty() ? 0 : 3;
    });
  }
  ranks.clear();
  const std::vector<int> codes = processes.wait();
  if (std::ranges::all_of(codes, [](int code) { return code == 0; })) return false;
  EXPECT_EQ(codes[victim], -SIGKILL);
  return true;
}

class KilledRanks : public ::testing::TestWithParam<Kill> {};

TEST_P(KilledRanks, GoOnAtOneEpochAndEndInTheSameBits) {
  const char* const text = std::getenv("HEADRACE_KILL_EVERY");
  const std::uint64_t stride = text == nullptr ? 2 : std::strtoull(text, nullptr, 10);
  const Kill kill = GetParam();
  const std::vector<std::string> hashes = expected(kill.world);
  std::uint64_t points = 0, resumed = 0, apart = 0;
  for (std::uint64_t kill_at = 1;; kill_at += stride) {
    SCOPED_TRACE("killed at event " + std::to_string(kill_at));
    const TemporaryDirectory directory;
    Settings settings = durable(directory.string(), 1 + kill_at % 3 / 2);
    settings.update_mode = kill_at % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier;
    const auto victim = static_cast<std::uint32_t>(points % kill.world);
    if (!train_and_kill(kill, settings, victim, kill_at)) break;  // there is no such event
    ++points;
    std::vector<std::uint64_t> from(kill.world);
    const Ended ended = run_world(kill.world, settings, [&](Rank& rank) {
      from[rank.number] = rank.engine.resumed() ? rank.engine.resumed()->step : 0;
      EXPECT_EQ(rank.engine.durable_step(), from[rank.number]);
      EXPECT_EQ(rank.trainer.hashes(), hashes[from[rank.number]]);
      train_to(rank.engine, rank.trainer, kSteps);
      EXPECT_EQ(rank.trainer.hashes(), hashes[kSteps]);
    });
    ASSERT_NO_FATAL_FAILURE(expect_no_error(ended));
    for (const std::uint64_t step : from) ASSERT_EQ(step, from[0]);
    resumed += from[0] > 0;
    for (const std::string& log : ended.logs)
      apart += log.find("one epoch more than others") != std::string::npos;
  }
  EXPECT_GT(points, 100 / stride);
  if (points >= 16) {
    EXPECT_GT(resumed, points / 8);  // a few may all come early
  }
  EXPECT_GE(apart, !kill.all && stride < 10 ? 1u : 0u);
  std::cout << points << " points, at " << resumed << " of them an epoch was common, at " << apart
            << " a rank was ahead\n";
}
INSTANTIATE_TEST_SUITE_P(Of, KilledRanks,
                         ::testing::Values(Kill{"OneOfTwo", 2, false}, Kill{"BothOfTwo", 2, true},
                                           Kill{"OneOfThree", 3, false},
                                           Kill{"AllOfThree", 3, true}),
                         [](const auto& info) { return info.param.name; });

// ---- a rank that is ahead ----

// What the two processes of a world tell each other.
struct Progress {
  std::atomic<bool> hold{false};        // rank 0's syncs, from now on
  std::atomic<bool> holding{false};     // one was held back
  std::atomic<std::uint64_t> syncs{0};  // of rank 1 that have ended
  std::atomic<bool> went_past{false};   // rank 1 made a step without rank 0's commit
};

// Holds syncs back for good: the commit that waits for one goes no further, and all else does.
class HoldingQueue final : public swap::IoQueue {
 public:
  HoldingQueue(std::unique_ptr<swap::IoQueue> inner, std::uint32_t rank, Progress& progress)
      : inner_(std::move(inner)), rank_(rank), progress_(progress) {}
  const char* name() const noexcept override { return inner_->name(); }
  std::uint32_t depth() const noexcept override { return inner_->depth(); }
  std::uint32_t in_flight() const noexcept override { return inner_->in_flight() + held_; }
  bool submit(swap::IoRequest& request) noexcept override {
    if (rank_ != 0 || request.kind != swap::IoKind::kSync || !progress_.hold)
      return inner_->submit(request);
    ++held_;
    progress_.holding = true;
    return true;
  }
  int flush() noexcept override { return inner_->flush(); }
  std::size_t reap(std::span<swap::IoRequest*> done,
                   std::chrono::nanoseconds timeout) noexcept override {
    const std::size_t reaped = inner_->reap(done, timeout);
    for (const swap::IoRequest* const request : done.first(reaped))
      progress_.syncs += rank_ == 1 && request->kind == swap::IoKind::kSync ? 1 : 0;
    return reaped;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  const std::unique_ptr<swap::IoQueue> inner_;
  const std::uint32_t rank_;
  Progress& progress_;
  std::uint32_t held_ = 0;
};

// Two ranks are killed while rank 0 commits step 3 and rank 1, which has committed it, makes step
// 4 as far as it can. What is common is step 2.
class ARankAhead : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kCommon = 2;
  static constexpr std::uint64_t kSyncsPerCommit = 2;
  static constexpr auto kGrace = std::chrono::milliseconds(500);  // for a step that must not end

  void SetUp() override {
    void* const shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    auto* const progress = new (shared) Progress;
    auto ranks = testing::make_socket_ranks(2);
    Processes processes(2);
    for (std::uint32_t r = 0; r < 2; ++r) {
      processes.start(r, [&] {
        std::shared_ptr<Collective> own = std::move(ranks[r]);
        ranks.clear();
        return train_apart(std::move(own), processes, *progress);
      });
    }
    ranks.clear();
    for (const int code : processes.wait()) EXPECT_EQ(code, -SIGKILL);
    EXPECT_FALSE(progress->went_past) << "rank 1 ended step 4 without rank 0's commit of step 3";
    ::munmap(shared, sizeof(Progress));
  }
  // A copy of what the kill left.
  Settings copy_to(const TemporaryDirectory& directory) const {
    fs::copy(directory_.path(), directory.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return durable(directory.string());
  }
  // Whether rank 1 went back.
  static bool expect_common(const Settings& settings) {
    const std::vector<std::string> hashes = expected(2);
    const Ended ended = run_world(2, settings, [&](Rank& rank) {
      EXPECT_EQ(rank.engine.resumed() ? rank.engine.resumed()->step : 0, kCommon);
      EXPECT_EQ(rank.trainer.hashes(), hashes[kCommon]);
      train_to(rank.engine, rank.trainer, kSteps);
      EXPECT_EQ(rank.trainer.hashes(), hashes[kSteps]);
    });
    expect_no_error(ended);
    return ended.logs[1].find("one epoch more than others") != std::string::npos;
  }

  const TemporaryDirectory directory_;

 private:
  int train_apart(std::shared_ptr<Collective> own, const Processes& processes,
                  Progress& progress) const {
    const std::uint32_t number = own->rank();
    engine::EngineParts parts;
    parts.make_queue = [&](const swap::IoQueueOptions& options) {
      swap::ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, options);
      chosen.queue = std::make_unique<HoldingQueue>(std::move(chosen.queue), number, progress);
      return chosen;
    };
    Settings settings = durable(directory_.string());
    settings.update_mode = UpdateMode::kBarrier;  // a step that returns has written its slots
    std::string log;
    const std::string error = run_rank(settings, std::move(own), parts, log, [&](Rank& rank) {
      train_to(rank.engine, rank.trainer, kCommon);
      rank.engine.commit();  // no commit is under way now
      if (number == 1) progress.syncs = 0;
      if (number == 0) {
        progress.hold = true;
        std::thread([&] { kill_when_apart(processes, progress); }).detach();
      }
      step(rank.trainer, kCommon + 1);
      step(rank.trainer, kCommon + 2);
      progress.went_past = true;
      processes.kill_all();
    });
    return error.empty() ? 0 : 3;
  }
  // A sync is held back only in step 3's commit, which rank 1 began too: its count is of that.
  static void kill_when_apart(const Processes& processes, const Progress& progress) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!progress.holding || progress.syncs < kSyncsPerCommit) {
      if (std::chrono::steady_clock::now() > end) processes.kill_all();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::this_thread::sleep_for(kGrace);
    processes.kill_all();
  }
};

TEST_F(ARankAhead, HasTheCommonEpochWhole) {
  EXPECT_TRUE(expect_common(durable(directory_.string())));
}

// What a power failure leaves of a record that was being written, on one drive: no copy whole. It
// may not be that of the common epoch, so a ring needs three roots.
void tear_next_record(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  const auto at = [&](std::uint64_t root, std::uint32_t copy) {
    return static_cast<std::streamoff>(
        swap::place_of(root, copy, 0, head.commit_bytes).offset_bytes);
  };
  std::uint64_t newest = 0;
  for (std::uint64_t place = 0; place < swap::kRoots; ++place) {
    swap::CommitHead record;
    file.seekg(at(place, 0));
    file.read(reinterpret_cast<char*>(&record), sizeof record);
    newest = std::max(newest, record.root);
  }
  ASSERT_TRUE(file) << path;
  ASSERT_GE(newest, 3u);
  for (std::uint32_t copy = 0; copy < swap::kCopies; ++copy) {
    file.seekp(at(newest + 1, copy) + 512);  // the first sector is old, the second is not
    file << std::string(512, '\x5a');
  }
}

TEST_F(ARankAhead, OpensAfterAPowerFailureThatToreTheRecordOfATakeOver) {
  for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
    if (entry.path().extension() == ".store") {
      ASSERT_NO_FATAL_FAILURE(tear_next_record(entry.path()));
    }
  }
  EXPECT_TRUE(expect_common(durable(directory_.string())));
}

TEST_F(ARankAhead, OpensAfterAKillWhileTheWorldWasOpened) {
  const char* const text = std::getenv("HEADRACE_KILL_EVERY");
  const std::uint64_t stride = text == nullptr ? 5 : std::strtoull(text, nullptr, 10) / 8 + 1;
  std::uint64_t points = 0, behind = 0;
  for (std::uint64_t kill_at = 1;; kill_at += stride) {
    SCOPED_TRACE("killed at event " + std::to_string(kill_at));
    const TemporaryDirectory copy;
    const Settings settings = copy_to(copy);
    const Kill kill{"", 2, points % 4 > 1};
    const auto victim = static_cast<std::uint32_t>(1 - points % 2);
    if (!train_and_kill(kill, settings, victim, kill_at, kCommon)) break;  // it has opened
    ++points;
    behind += expect_common(settings) ? 0 : 1;
    if (HasFailure()) return;
  }
  EXPECT_GT(points, 40 / stride);
  std::cout << points << " points of an opening; after " << behind
            << " of them the epochs were the same\n";
}

// ---- calls ----

TEST(DurableRanks, CommitAndLoadTogether) {
  const TemporaryDirectory directory;
  const Settings settings = durable(directory.string(), 100);
  const std::vector<std::string> hashes = expected(2);
  expect_no_error(run_world(2, settings, [&](Rank& rank) {
    train_to(rank.engine, rank.trainer, 2);
    EXPECT_EQ(rank.engine.durable_step(), 0u);
    for (int i = 0; i < 4; ++i) rank.engine.commit();  // more than a ring has places
    EXPECT_EQ(rank.engine.durable_step(), 2u);
    // What the load overwrites is of the epoch before, which all ranks have left.
    rank.engine.load(ParameterId{0}, Content::kExpAvg, [](std::uint64_t, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3c});  // 0.0115 in f32
    });
    step(rank.trainer, 3);
    ASSERT_NE(rank.trainer.hashes(), hashes[3]);
  }));
  std::string saved[2];
  expect_no_error(run_world(2, settings, [&](Rank& rank) {
    ASSERT_TRUE(rank.engine.resumed());
    EXPECT_EQ(rank.engine.resumed()->step, 3u);  // close() has committed it
    saved[rank.number] = rank.trainer.hashes();
  }));
  EXPECT_EQ(saved[0], saved[1]);
}

// The random bits of a step follow from what the store has.
TEST(DurableRanks, GoOnInTheSameBitsWithQuantisedTransfers) {
  std::array<std::string, 2> hashes;
  for (const bool in_two : {false, true}) {
    const TemporaryDirectory directory;
    Settings settings = durable(directory.string());
    settings.zero_quantized_weights = settings.zero_quantized_gradients = true;
    const std::vector<std::uint64_t> ends =
        in_two ? std::vector<std::uint64_t>{2, kSteps} : std::vector<std::uint64_t>{kSteps};
    for (const std::uint64_t last : ends) {
      expect_no_error(run_world(2, settings, [&](Rank& rank) {
        train_to(rank.engine, rank.trainer, last);
        const std::string ended = rank.trainer.hashes();
        if (rank.number == 0) hashes[in_two] = ended;
      }));
    }
  }
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_NE(hashes[0], expected(2)[kSteps]);
}

TEST(DurableRanks, NameTheCallThatOneOfThemDoesNotMake) {
  const TemporaryDirectory directory;
  const Ended ended = run_world(2, durable(directory.string()), [&](Rank& rank) {
    train_to(rank.engine, rank.trainer, 1);
    if (rank.number == 1) rank.engine.commit();
    step(rank.trainer, 2);
  });
  for (const std::string& error : ended.errors)
    EXPECT_NE(error.find("rank 1 called commit where rank 0 called "), std::string::npos) << error;
}

TEST(DurableRanks, MayHavePathsOfTheirOwn) {
  const TemporaryDirectory directory;
  for (const char* const name : {"/nvme0", "/nvme1"})
    fs::create_directory(directory.string() + name);
  const Settings settings = durable(directory.string() + "/nvme{rank}");
  const std::vector<std::string> hashes = expected(2);
  for (std::uint64_t to : {2, 4}) {
    expect_no_error(run_world(2, settings, [&](Rank& rank) {
      EXPECT_EQ(rank.engine.resumed() ? rank.engine.resumed()->step : 0, to - 2);
      train_to(rank.engine, rank.trainer, to);
      EXPECT_EQ(rank.trainer.hashes(), hashes[to]);
    }));
  }
  Settings mixed_up = settings;
  fs::rename(directory.string() + "/nvme0", directory.string() + "/nvme");
  fs::rename(directory.string() + "/nvme1", directory.string() + "/nvme0");
  fs::rename(directory.string() + "/nvme", directory.string() + "/nvme1");
  for (const std::string& error : run_world(2, mixed_up, [](Rank&) {}).errors) {
    EXPECT_NE(error.find("the paths of rank 0 have files of rank 1 and none of its own"),
              std::string::npos)
        << error;
  }
}

// ---- refusals ----

class RanksRefusal : public ::testing::Test {
 protected:
  RanksRefusal() { train(settings_, 2); }
  static void train(const Settings& settings, std::uint64_t to) {
    expect_no_error(
        run_world(2, settings, [&](Rank& rank) { train_to(rank.engine, rank.trainer, to); }));
  }
  fs::path file(std::uint32_t rank, const std::string& store = "run") const {
    const std::string name = "rank" + std::to_string(rank) + ".0.store";
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
      if (entry.path().filename() == name &&
          entry.path().parent_path().filename() == "store-" + store)
        return entry.path();
    }
    return {};
  }
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
      if (entry.is_directory()) {
        all[entry.path().string()];
        continue;
      }
      std::ifstream stream(entry.path(), std::ios::binary);
      all[entry.path().string()] = {std::istreambuf_iterator<char>(stream), {}};
    }
    return all;
  }
  // On every rank with these words, and nothing written.
  void expect_refused(std::uint32_t world, const Settings& settings, const std::string& words) {
    const auto before = contents();
    const Ended ended = run_world(world, settings, [](Rank&) {});
    for (const std::string& error : ended.errors) {
      EXPECT_NE(error.find(words), std::string::npos) << error;
      EXPECT_NE(error.find("nothing was written"), std::string::npos) << error;
    }
    EXPECT_EQ(contents(), before);
  }
  void change(const fs::path& path, std::uint64_t offset) const {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 1));
  }
  void expect_whole() { train(settings_, 3); }

  const TemporaryDirectory directory_;
  const Settings settings_ = durable(directory_.string());
};

TEST_F(RanksRefusal, NamesTheRankWithoutFiles) {
  const fs::path of_1 = file(1), away = directory_.path() / "away";
  fs::rename(of_1, away);
  expect_refused(2, settings_, "rank 0 has epoch 2 of it, and rank 1 finds no files");
  fs::rename(away, of_1);
  expect_whole();
}

TEST_F(RanksRefusal, NamesAnotherNumberOfRanks) {
  expect_refused(3, settings_, "the store has ranks 2, this run has 3");
  expect_refused(1, settings_, "the store has ranks 2, this run has 1");
  expect_whole();
}

TEST_F(RanksRefusal, NamesAnotherRanksFile) {
  const fs::path away = directory_.path() / "away", of_0 = file(0), of_1 = file(1);
  fs::rename(of_0, away);
  fs::rename(of_1, of_0);
  fs::rename(away, of_1);
  expect_refused(2, settings_, "it was made for rank ");
}

TEST_F(RanksRefusal, NamesAnotherStoresFile) {
  Settings other = settings_;
  other.store = "other";
  train(other, 2);
  fs::copy_file(file(1, "other"), file(1), fs::copy_options::overwrite_existing);
  expect_refused(2, settings_, "rank 1 has files of another store of that name");
}

TEST_F(RanksRefusal, NamesAnOlderCopy) {
  const fs::path copy = directory_.path() / "copy";
  fs::copy_file(file(1), copy);
  train(settings_, 4);
  fs::copy_file(copy, file(1), fs::copy_options::overwrite_existing);
  expect_refused(2, settings_, "rank 0 has epoch 4 of it, and rank 1 only epoch 2");
}

// Two copies that both went on: the same step, and other values.
TEST_F(RanksRefusal, NamesFilesOfACopyThatWentOnByItself) {
  const TemporaryDirectory before, other;
  const fs::path copy = before.path() / "1", apart = other.path() / "0";
  fs::copy_file(file(0), before.path() / "0");
  fs::copy_file(file(1), copy);
  train(settings_, 4);
  fs::copy_file(file(0), apart);
  fs::copy_file(before.path() / "0", file(0), fs::copy_options::overwrite_existing);
  fs::copy_file(copy, file(1), fs::copy_options::overwrite_existing);
  train(settings_, 4);
  fs::copy_file(file(0), before.path() / "0", fs::copy_options::overwrite_existing);
  fs::copy_file(apart, file(0), fs::copy_options::overwrite_existing);
  expect_refused(2, settings_, "the files are of different runs");
  fs::copy_file(before.path() / "0", file(0), fs::copy_options::overwrite_existing);
  train(settings_, 5);
}

// ---- of two drives, one without its file ----

void erase_first_commit(const fs::path& path) {
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  stream.read(reinterpret_cast<char*>(&head), sizeof head);
  const swap::Extent at = swap::place_of(swap::kFirstCommitRoot, 0, 0, head.commit_bytes);
  stream.seekp(static_cast<std::streamoff>(at.offset_bytes));
  stream << std::string(swap::kCopies * head.commit_bytes, '\0');
}

class HalfMadeRank : public ::testing::Test {
 protected:
  fs::path file(std::uint32_t rank, std::uint32_t drive, const std::string& prefix = "") const {
    return settings_.nvme_paths[drive] + "/" + swap::user_directory_name() + "/store-run/" +
           prefix + "rank" + std::to_string(rank) + "." + std::to_string(drive) + ".store";
  }
  const TemporaryDirectory directory_;
  const Settings settings_ = [this] {
    Settings settings = durable(directory_.string());
    settings.nvme_paths = directory_.drives(2);
    return settings;
  }();
};

TEST_F(HalfMadeRank, IsBegunAnewWithTheOthers) {
  for (const bool both : {false, true}) {
    expect_no_error(run_world(2, settings_, [](Rank&) {}));
    fs::rename(file(1, 1), file(1, 1, swap::kBeingMade));
    if (both) fs::remove(file(0, 1));
    expect_no_error(run_world(2, settings_, [&](Rank& rank) {
      EXPECT_FALSE(rank.engine.resumed());
      EXPECT_EQ(rank.trainer.hashes(), expected(2)[0]);
    }));
    EXPECT_FALSE(fs::exists(file(1, 1, swap::kBeingMade)));
    expect_no_error(run_world(2, settings_, [](Rank&) {}));
  }
}

// One rank had its first commit when all were killed, the other had not; the next run is killed
// while it makes the store anew. `half`: a run before that was killed while it erased that commit.
TEST_F(HalfMadeRank, IsWhatTwoKillsAroundTheFirstCommitLeave) {
  for (const bool half : {false, true}) {
    SCOPED_TRACE(half);
    expect_no_error(
        run_world(2, settings_, [](Rank& rank) { train_to(rank.engine, rank.trainer, 1); }));
    for (const std::uint32_t drive : {0u, 1u}) erase_first_commit(file(1, drive));
    if (half) erase_first_commit(file(0, 0));
    const pid_t child = ::fork();
    if (child == 0) {
      testing::store_renames_to_live = 1;
      run_world(2, settings_, [](Rank&) {});
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    expect_no_error(run_world(2, settings_, [&](Rank& rank) {
      EXPECT_FALSE(rank.engine.resumed());
      EXPECT_EQ(rank.trainer.hashes(), expected(2)[0]);
    }));
  }
}

TEST_F(HalfMadeRank, IsRefusedWhereAnotherHasACommittedStep) {
  expect_no_error(run_world(2, settings_, [](Rank&) {}));
  const fs::path fresh = directory_.path() / "fresh";
  fs::copy_file(file(1, 0), fresh);
  expect_no_error(
      run_world(2, settings_, [](Rank& rank) { train_to(rank.engine, rank.trainer, 1); }));
  fs::copy_file(fresh, file(1, 0), fs::copy_options::overwrite_existing);
  fs::remove(file(1, 1));
  for (const std::string& error : run_world(2, settings_, [](Rank&) {}).errors)
    EXPECT_NE(error.find("rank 0 has epoch 1 of it, and rank 1 lacks files of its drives"),
              std::string::npos)
        << error;
  EXPECT_TRUE(fs::exists(file(1, 0)));
}

TEST_F(RanksRefusal, NamesAnotherFormat) {
  change(file(1), 8);
  expect_refused(2, settings_, "has version 5 of the format, and this build reads version 4");
  change(file(1), 8);
  expect_whole();
}

TEST_F(RanksRefusal, FollowsResume) {
  Settings other = settings_;
  other.resume = headrace::Resume::kNever;
  expect_refused(2, other, "exists, and headrace.resume is \"never\"");
  other.resume = headrace::Resume::kRequire;
  other.store = "another";
  expect_refused(2, other, "headrace.resume is \"require\"");
}

// Found only when the epoch is read, after the ranks have agreed on it.
TEST_F(RanksRefusal, NamesTheRankWhoseBytesAreDamaged) {
  std::uint64_t found = 0;
  const std::uint64_t size = fs::file_size(file(1));
  for (std::uint64_t at = size / 4096 * 4096; at >= 40960 && found < 2; at -= 4096) {
    std::fstream stream(file(1), std::ios::in | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    char magic[4] = {};
    stream.read(magic, sizeof magic);
    if (stream.gcount() != 4 || std::string(magic, 2) != "hr") continue;
    change(file(1), at + 40);
    const auto before = contents();
    const Ended ended = run_world(2, settings_, [](Rank&) {});
    if (!ended.errors[1].empty()) {
      ++found;
      EXPECT_NE(ended.errors[0].find("freeze: rank 1: "), std::string::npos) << ended.errors[0];
      EXPECT_NE(ended.errors[0].find("header is not what was written"), std::string::npos);
      EXPECT_EQ(contents(), before);
    }
    change(file(1), at + 40);
  }
  EXPECT_GT(found, 0u);
}
}  // namespace
}  // namespace headrace::durable_ranks_test
