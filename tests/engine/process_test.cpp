// SPDX-License-Identifier: Apache-2.0
// process_test: the engine and the process around it: forks, CPUs, other engines, and what a closed
// engine leaves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "headrace/engine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/process_facts.hpp"
#include "support/temporary_directory.hpp"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif

namespace headrace {
namespace {
using testing::all_on_nvme;

// ---- forks ----

#if !defined(__SANITIZE_THREAD__)  // which does not follow a child of a process with threads
// Forks every ten milliseconds for as long as it lives, at once when it is made. A child uses
// memory and a file and ends.
class Forking {
 public:
  Forking() : thread_([this] { run(); }) {
    while (forks_ == 0) std::this_thread::yield();
  }
  ~Forking() { stop(); }
  // How many there were; those of them that did not end with 0.
  std::pair<int, int> stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return {forks_, failed_};
  }

 private:
  // Only what POSIX lets a child of a process with threads call: with the address sanitizer,
  // malloc() may wait for ever for a thread that the child does not have.
  static void be_a_child() {
    constexpr std::size_t kBytes = 1 << 20;
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) ::_exit(1);
    std::memset(memory, 1, kBytes);
    const int file = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    const bool read = file >= 0 && ::read(file, memory, 64) > 0;
    ::_exit(read ? 0 : 1);
  }
  void run() {
    while (!stop_) {
      const pid_t child = ::fork();
      if (child == 0) be_a_child();
      int status = -1;
      const bool ended = child > 0 && ::waitpid(child, &status, 0) == child;
      ++forks_;
      failed_ += ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::atomic<bool> stop_ = false;
  std::atomic<int> forks_ = 0;
  int failed_ = 0;
  std::thread thread_;  // last: it uses the others
};

struct Hashes {
  std::string parameters, state;
  bool operator==(const Hashes&) const = default;
};
Hashes fifty_steps(const Settings& settings) {
  const auto device = device::make_computing_host();
  Engine engine(settings, {.device = device});
  testing::Mlp network(engine, *device, {});
  for (int step = 0; step < 50; ++step) network.train_step();
  Hashes hashes{engine.hash_parameters(), engine.hash_optimizer_state()};
  engine.close();
  return hashes;
}

class EngineForks : public ::testing::TestWithParam<IoQueueKind> {};
INSTANTIATE_TEST_SUITE_P(Queues, EngineForks,
                         ::testing::Values(IoQueueKind::kAuto, IoQueueKind::kThreads),
                         [](const auto& info) {
                           return info.param == IoQueueKind::kAuto ? "Auto" : "Threads";
                         });

TEST_P(EngineForks, EveryTenMillisecondsDuringFiftyStepsChangeNoBit) {
  const testing::TemporaryDirectory directory;
  Settings settings = all_on_nvme(directory.string());
  settings.io_queue = GetParam();
  const Hashes alone = fifty_steps(settings);
  Forking forking;
  const Hashes forked = fifty_steps(settings);
  const auto [forks, failed] = forking.stop();
  std::printf("%d forks during 50 steps\n", forks);
  EXPECT_EQ(forked, alone);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(directory.entries(), 0u);
}
#endif

// ---- threads ----

// Names a variable of the environment for a scope; null takes it away.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = std::make_unique<std::string>(before);
    set(value);
  }
  ~Environment() { set(before_ ? before_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }
  const char* name_;
  std::unique_ptr<std::string> before_;
};

class EngineThreads : public ::testing::Test {
 protected:
  EngineThreads() {
    if (::sched_getaffinity(0, sizeof before_, &before_) == 0) return;
    ADD_FAILURE() << "more CPUs than a cpu_set_t has";
  }
  ~EngineThreads() override { ::sched_setaffinity(0, sizeof before_, &before_); }

  // The first `count` CPUs of those that this thread may use; false if there are fewer.
  bool allow(int count) {
    cpu_set_t fewer;
    CPU_ZERO(&fewer);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&fewer) < count; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &fewer);
    }
    return CPU_COUNT(&fewer) == count && ::sched_setaffinity(0, sizeof fewer, &fewer) == 0;
  }

  struct Seen {
    std::uint32_t threads;      // as stats() has them
    std::string source;         // what says so
    std::size_t threads_own;    // started by the engine; a trainer that waits is one more
    std::size_t affinity_cpus;  // of the calling thread, afterwards
  };
  Seen of_an_engine(const Settings& settings) {
    Seen seen{};
    const std::size_t others = testing::what_is_held_at_rest().threads;
    Engine engine(settings);
    engine.add_group("g", {{"w", DType::kF32, {1000}}});
    engine.freeze();
    until([&] {  // the new ones have named themselves
      return testing::engine_threads().size() + others == testing::what_is_held().threads;
    });
    seen.threads_own = static_cast<std::size_t>(std::ranges::count_if(
        testing::engine_threads(),
        [](const std::string& name) { return name.starts_with("headrace-upd"); }));
    seen.threads = engine.stats().update_threads;
    seen.source = engine.stats().update_threads_source;
    engine.close();
    cpu_set_t after;
    ::sched_getaffinity(0, sizeof after, &after);
    seen.affinity_cpus = static_cast<std::size_t>(CPU_COUNT(&after));
    return seen;
  }

  static void until(const std::function<bool()>& condition) {
    for (int tries = 0; tries < 10000 && !condition(); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(condition());
  }

  const Environment no_setting_{"HEADRACE_NUM_THREADS", nullptr};
  const Environment no_slurm_{"SLURM_CPUS_PER_TASK", nullptr};
  cpu_set_t before_{};
};

TEST_F(EngineThreads, AreOneOnOneCpu) {
  ASSERT_TRUE(allow(1));
  const Seen seen = of_an_engine({});
  EXPECT_EQ(seen.threads, 1u);
  EXPECT_EQ(seen.source, "CPU affinity");
  EXPECT_EQ(seen.threads_own, 1u);
  EXPECT_EQ(seen.affinity_cpus, 1u);
}

TEST_F(EngineThreads, AreAsManyAsCpusWhateverOpenMpIsTold) {
  if (!allow(2)) GTEST_SKIP() << "one CPU";
  for (const char* openmp : {"1", "64"}) {
    const Environment told("OMP_NUM_THREADS", openmp);
    const Seen seen = of_an_engine({});
    // A quota of this process's control group may leave one CPU of the two.
    if (seen.source == "CPU affinity") {
      EXPECT_EQ(seen.threads, 2u);
    } else {
      EXPECT_EQ(seen.threads, 1u) << seen.source;
    }
    EXPECT_EQ(seen.threads_own, 1u) << "of two the trainer's is one";
    EXPECT_EQ(seen.affinity_cpus, 2u);
  }
  const Environment told("OMP_NUM_THREADS", nullptr);
  const std::uint32_t without = of_an_engine({}).threads;
  const Environment one("OMP_NUM_THREADS", "1");
  EXPECT_EQ(of_an_engine({}).threads, without);
}

TEST_F(EngineThreads, FollowTheSettingWhateverTheCpus) {
  ASSERT_TRUE(allow(1));
  Settings settings;
  settings.update_threads = 3;
  const Seen seen = of_an_engine(settings);
  EXPECT_EQ(seen.threads, 3u);
  EXPECT_EQ(seen.source, "headrace.update_threads");
  EXPECT_EQ(seen.threads_own, 2u);
}

// ---- after close ----

TEST(EngineClose, LeavesNoThreadFileMappingOrLockAHundredTimesOver) {
  const testing::TemporaryDirectory directory;
  const auto device = device::make_computing_host();
  testing::Held before = testing::what_is_held_at_rest();
  std::uint64_t engine_bytes = 0;
  for (int round = 0; round < 100; ++round) {
    Settings settings = all_on_nvme(directory.string());
    settings.io_queue = round % 2 == 0 ? IoQueueKind::kAuto : IoQueueKind::kThreads;
    Engine engine(settings, {.device = device});
    testing::Mlp network(engine, *device, {.layers = 2, .width = 130});
    network.train_step();
    const testing::Held open = testing::what_is_held();
    EXPECT_GT(open.threads, before.threads);
    EXPECT_GT(open.files, before.files);
    EXPECT_GT(open.locks, before.locks);
    EXPECT_EQ(open.ring_mappings > 0, engine.stats().io_queue == "uring");
    engine_bytes = engine.stats().engine_bytes;
    engine.close();
    const testing::Held after = testing::what_is_held_with(before.threads);
    ASSERT_EQ(after.threads, before.threads) << "round " << round;
    ASSERT_EQ(after.files, before.files) << "round " << round;
    ASSERT_EQ(after.locks, before.locks) << "round " << round;
    ASSERT_EQ(after.ring_mappings, 0u) << "round " << round;
    ASSERT_EQ(directory.entries(), 0u) << "round " << round;
    if (round == 9) before = after;
  }
  if (kSanitizer) return;  // which keeps freed memory
  // libc keeps stacks and heaps of threads that ended for later ones, now and then one more; what
  // is lost in each of ninety rounds is twice this.
  const testing::Held after = testing::what_is_held();
  EXPECT_LE(after.mappings, before.mappings + 45);
  EXPECT_LE(after.mapped_bytes, before.mapped_bytes + 45 * engine_bytes);
}

// ---- two engines ----

// One with settings of its own, on a folder of its own.
struct Trained {
  Trained(const Settings& settings, const testing::MlpOptions& options)
      : engine(settings, {.device = device}), network(engine, *device, options) {}
  std::string hashes() { return engine.hash_parameters() + engine.hash_optimizer_state(); }

  std::shared_ptr<device::ComputingDevice> device = device::make_computing_host();
  Engine engine;
  testing::Mlp network;
};

TEST(EngineProcess, TwoEnginesOfDifferentSettingsStepInTurnsAsEachDoesAlone) {
  const testing::TemporaryDirectory first, second;
  Settings a = all_on_nvme(first.string());
  a.update_threads = 1;
  a.io_queue = IoQueueKind::kThreads;
  Settings b = all_on_nvme(second.string());
  b.master = MasterLayout::kF32;
  b.tile_elements = 2 * 65536;
  b.checksums = Checksums::kOff;
  b.gradient_accumulation_steps = 2;
  b.update_threads = 3;
  const testing::MlpOptions of_a{.layers = 2, .max_norm = 1}, of_b{.width = 200, .accumulation = 2};
  const auto alone = [](const Settings& settings, const testing::MlpOptions& options) {
    Trained trained(settings, options);
    for (int step = 0; step < 5; ++step) trained.network.train_step();
    return trained.hashes();
  };
  const std::string wanted_a = alone(a, of_a), wanted_b = alone(b, of_b);
  EXPECT_NE(wanted_a, wanted_b);

  Trained x(a, of_a), y(b, of_b);
  for (int step = 0; step < 5; ++step) {
    x.network.compute_gradients();
    y.network.train_step();  // between the other's gradients and their step
    x.network.step();
  }
  EXPECT_EQ(x.hashes(), wanted_a);
  EXPECT_EQ(y.hashes(), wanted_b);
  x.engine.close();
  EXPECT_EQ(first.entries(), 0u);
  EXPECT_GT(second.entries(), 0u);
  y.network.train_step();
}
}  // namespace
}  // namespace headrace
