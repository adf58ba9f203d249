// SPDX-License-Identifier: Apache-2.0
// sleep_test: an engine that slept goes on to the bits of one that did not; asleep it has given its
// memory back, refuses every other call, and wakes when it can.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "device/forwarding_device.hpp"
#include "engine/parts.hpp"
#include "headrace/error.hpp"
#include "platform/machine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/failing_drive.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::sleep_test {
namespace {
namespace fs = std::filesystem;
using testing::TemporaryDirectory;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(code_name(error.code())) + " " + error.what();
  }
  return "no error";
}

void expect_words(const std::string& text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    EXPECT_NE(text.find(word), std::string::npos) << text << "\nlacks " << word;
}

struct TrainedRun {
  explicit TrainedRun(const Settings& settings, device::HostOptions host = {.seed = 5},
                      std::shared_ptr<Collective> ranks = nullptr,
                      std::shared_ptr<device::ComputingDevice> given = nullptr,
                      engine::EngineParts parts = {})
      : device(given ? std::move(given) : device::make_computing_host(host)),
        engine(engine::engine_with_parts(
            settings, {.device = device, .collective = std::move(ranks), .log = [](auto, auto) {}},
            std::move(parts))),
        network(engine, *device, {.width = 300}) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) network.train_step();
  }
  std::string hashes() { return engine.hash_parameters() + engine.hash_optimizer_state(); }

  std::shared_ptr<device::ComputingDevice> device;
  Engine engine;
  testing::Mlp network;
};

// Has memory of its own, until it is full.
class FullDevice final : public device::ForwardingDevice<Device> {
 public:
  FullDevice()
      : ForwardingDevice(device::make_computing_host({.flavour = device::HostFlavour::kLate})) {}
  void* allocate(std::size_t size_bytes) noexcept override {
    void* const data = full ? nullptr : ForwardingDevice::allocate(size_bytes);
    if (data != nullptr) ++allocated;
    return data;
  }
  void deallocate(void* data, std::size_t size_bytes) noexcept override {
    --allocated;
    ForwardingDevice::deallocate(data, size_bytes);
  }
  std::atomic<bool> full{false};
  std::atomic<int> allocated{0};
};

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path().filename().string());
  return files;
}

enum class Where { kMemory, kPart, kNvme };

Settings settings_of(Where where, const std::string& folder, UpdateMode mode = UpdateMode::kAuto) {
  Settings settings = testing::all_on_nvme(folder);
  settings.update_mode = mode;
  if (where == Where::kMemory)
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kCpu;
  if (where == Where::kPart) settings.offload_parameters = OffloadDevice::kCpu;
  return settings;
}

TEST(Sleep, GoesOnToTheBitsOfARunThatDidNotSleep) {
  for (const Where where : {Where::kMemory, Where::kPart, Where::kNvme}) {
    for (const UpdateMode mode : {UpdateMode::kBarrier, UpdateMode::kDefer}) {
      for (const auto flavour : {device::HostFlavour::kPrompt, device::HostFlavour::kLate}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(where)) + " " +
                     std::to_string(static_cast<int>(mode)) + " " +
                     std::to_string(static_cast<int>(flavour)));
        const TemporaryDirectory directory;
        const Settings settings = settings_of(where, directory.string(), mode);
        TrainedRun whole(settings, {.flavour = flavour, .seed = 5});
        whole.train(3);
        TrainedRun sleeping(settings, {.flavour = flavour, .seed = 6});
        sleeping.engine.sleep();
        sleeping.engine.wake();
        for (int step = 0; step < 3; ++step) {
          sleeping.train(1);
          const Stats before = sleeping.engine.stats();
          sleeping.engine.sleep();
          EXPECT_GE(sleeping.engine.stats().nvme_read_bytes, before.nvme_read_bytes);
          EXPECT_EQ(sleeping.engine.stats().io_queue, before.io_queue);
          sleeping.engine.wake();
        }
        EXPECT_EQ(sleeping.hashes(), whole.hashes());
        sleeping.train(1);
        whole.train(1);
        EXPECT_EQ(sleeping.hashes(), whole.hashes());
      }
    }
  }
}

// [example]
// Trains, and lets something else use the engine's memory in between.
void alternate(Engine& engine, int rounds, const std::function<void(Engine&)>& train,
               const std::function<void()>& generate) {
  for (int round = 0; round < rounds; ++round) {
    train(engine);
    engine.sleep();
    generate();
    engine.wake();
  }
}
// [/example]

TEST(Sleep, Alternates) {
  const TemporaryDirectory directory;
  TrainedRun run(settings_of(Where::kPart, directory.string()));
  int generated = 0;
  alternate(
      run.engine, 2, [&](Engine&) { run.train(1); }, [&] { ++generated; });
  EXPECT_EQ(generated, 2);
  EXPECT_EQ(run.network.steps(), 2u);
}

TEST(Sleep, SeveralRanksSleepByThemselves) {
  std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
  for (std::uint64_t r = 0; r < 2; ++r)
    hosts.push_back(
        device::make_computing_host({.flavour = device::HostFlavour::kLate, .seed = r + 1}));
  std::string undisturbed;
  for (const bool sleeps : {false, true}) {
    const TemporaryDirectory directory;
    const auto ranks =
        collective::make_collective_threads({hosts.begin(), hosts.end()}, std::chrono::seconds(60));
    std::vector<std::string> hashes(2);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        TrainedRun run(settings_of(Where::kPart, directory.string()), {}, ranks[r], hosts[r]);
        run.train(2);
        for (std::size_t i = 0; sleeps && i <= r; ++i) {
          run.engine.sleep();
          run.engine.wake();
        }
        run.train(1);
        hashes[r] = run.hashes();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(hashes[0], hashes[1]);
    if (!sleeps) undisturbed = hashes[0];
    EXPECT_EQ(hashes[0], undisturbed);
  }
}

// 14 bytes for each of 20 million parameters; ten times, so that a leak shows.
TEST(Sleep, GivesItsMemoryBackAndTakesItAgain) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  const TemporaryDirectory directory;
  constexpr std::int64_t kElements = 20'000'000;
  constexpr std::uint64_t kTables = 16 << 20;
  Settings settings = settings_of(Where::kMemory, directory.string());
  const std::uint64_t before = platform::resident_bytes();
  Engine engine(settings, {.log = [](auto, auto) {}});
  engine.add_group("g", {{.name = "w", .shape = {kElements}}});
  engine.freeze();
  engine.load(GroupId{0}, [](ParameterId, std::span<std::byte> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * 7 & 63);
  });
  const std::string hash = engine.hash_parameters() + engine.hash_optimizer_state();
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto open = descriptors();
  const std::uint64_t awake = platform::resident_bytes();
  EXPECT_GT(awake, before + 14 * kElements);
  for (int cycle = 0; cycle < 10; ++cycle) {
    engine.sleep();
    EXPECT_LT(platform::resident_bytes(), before + kTables) << "cycle " << cycle;
    EXPECT_FALSE(files_in(directory.string()).empty());
    engine.wake();
    EXPECT_LT(platform::resident_bytes(), awake + kTables) << "cycle " << cycle;
  }
  EXPECT_EQ(engine.hash_parameters() + engine.hash_optimizer_state(), hash);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (descriptors() != open && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(descriptors(), open);
  EXPECT_TRUE(files_in(directory.string()).empty());
}

TEST(Sleep, RefusesEveryOtherCallUntilItWakes) {
  const TemporaryDirectory directory;
  TrainedRun run(settings_of(Where::kPart, directory.string()));
  run.train(1);
  const std::string hashes = run.hashes();
  EXPECT_EQ(error_of([&] { run.engine.wake(); }), "kWrongState wake: the engine is awake");
  {
    const Gathered lease = run.engine.gather({0});
    expect_words(error_of([&] { run.engine.sleep(); }), {"kWrongState", "sleep", "'"});
  }
  run.network.compute_gradients();
  expect_words(error_of([&] { run.engine.sleep(); }),
               {"kWrongState", "gradients have arrived", "discard_gradients()"});
  run.engine.discard_gradients();
  EXPECT_EQ(run.hashes(), hashes);
  run.engine.sleep();
  const std::string asleep = "the engine sleeps; call wake() first";
  expect_words(error_of([&] { run.engine.sleep(); }), {"kWrongState sleep", asleep});
  expect_words(error_of([&] { (void)run.engine.gather({0}); }), {"gather", asleep});
  expect_words(error_of([&] { run.engine.step({}); }), {"step", asleep});
  expect_words(error_of([&] { run.engine.hash_parameters(); }), {asleep});
  expect_words(error_of([&] { run.engine.store({0}, Content::kWeight, [](auto, auto) {}); }),
               {"store", asleep});
  EXPECT_EQ(run.engine.group_name({0}).empty(), false);
  EXPECT_LT(run.engine.stats().engine_bytes, run.engine.plan().host_bytes / 2);
  EXPECT_GT(run.engine.plan().host_bytes, 0u);
  run.engine.wake();
  EXPECT_EQ(run.hashes(), hashes);
}

TEST(Sleep, CanBeClosedAsleepAndLeavesNoFiles) {
  const TemporaryDirectory directory;
  {
    TrainedRun run(settings_of(Where::kPart, directory.string()));
    run.train(1);
    run.engine.sleep();
    EXPECT_FALSE(files_in(directory.string()).empty());
    run.engine.close();
    EXPECT_TRUE(files_in(directory.string()).empty());
    EXPECT_EQ(error_of([&] { run.engine.wake(); }), "kWrongState wake: the engine is closed");
  }
  {
    TrainedRun run(settings_of(Where::kMemory, directory.string()));
    run.engine.sleep();
  }
  EXPECT_TRUE(files_in(directory.string()).empty());
}

TEST(Sleep, NeedsADirectoryWhereNoDriveIsSet) {
  const TemporaryDirectory directory;
  TrainedRun run(Settings{});
  run.train(1);
  const std::string hashes = run.hashes();
  expect_words(error_of([&] { run.engine.sleep(); }), {"kInvalidArgument", "Name a directory"});
  expect_words(error_of([&] { run.engine.sleep(directory.string() + "/none"); }),
               {"kNotFound", "/none"});
  EXPECT_EQ(run.hashes(), hashes);
  run.engine.sleep(directory.string());
  EXPECT_FALSE(files_in(directory.string()).empty());
  run.engine.wake();
  EXPECT_EQ(run.hashes(), hashes);
}

TEST(Sleep, StaysAsleepWithoutMemoryAndWakesLater) {
  const TemporaryDirectory directory;
  std::uint64_t left = std::uint64_t{1} << 40;
  engine::EngineParts parts;
  parts.machine_left_bytes = [&left] { return left; };
  TrainedRun run(settings_of(Where::kPart, directory.string()), {}, nullptr, nullptr, parts);
  run.train(1);
  const std::string hashes = run.hashes();
  run.engine.sleep();
  left = 1 << 20;
  expect_words(error_of([&] { run.engine.wake(); }),
               {"kOutOfBudget wake", "a test leaves 1 MiB", "still sleeps", "call wake() again"});
  expect_words(error_of([&] { run.engine.step({}); }), {"the engine sleeps"});
  left = std::uint64_t{1} << 40;
  run.engine.wake();
  EXPECT_EQ(run.hashes(), hashes);
}

// Of slots in a device's memory.
TEST(Sleep, StaysAsleepWithoutDeviceMemoryAndWakesLater) {
  const TemporaryDirectory directory;
  const auto device = std::make_shared<FullDevice>();
  Engine engine(settings_of(Where::kPart, directory.string()),
                {.device = device, .log = [](auto, auto) {}});
  engine.add_group("g", {{.name = "w", .shape = {100'000}}});
  engine.freeze();
  engine.load(GroupId{0}, [](ParameterId, std::span<std::byte> values) {
    std::ranges::fill(values, std::byte{1});
  });
  const std::string hash = engine.hash_parameters();
  EXPECT_GT(device->allocated, 0);
  engine.sleep();
  EXPECT_EQ(device->allocated, 0);
  device->full = true;
  expect_words(error_of([&] { engine.wake(); }), {"kOutOfBudget", "no room"});
  expect_words(error_of([&] { engine.step({}); }), {"the engine sleeps"});
  device->full = false;
  engine.wake();
  EXPECT_EQ(engine.hash_parameters(), hash);
}

// Fails reads, writes or syncs of all files, or of those with this end, while it is told to.
struct Faults {
  std::atomic<bool> reads{false}, writes{false}, syncs{false};
  engine::EngineParts parts(const std::string& end = "") {
    engine::EngineParts parts;
    parts.make_drive = [=, this](async::Conductor& conductor, swap::DriveOptions options) {
      const bool fails = options.path.ends_with(end);
      return std::make_unique<testing::FailingDrive>(
          conductor, std::move(options), [=, this](const swap::Transfer& transfer) {
            const bool now = transfer.kind == swap::IoKind::kRead    ? reads
                             : transfer.kind == swap::IoKind::kWrite ? writes
                                                                     : syncs;
            return fails && now;
          });
    };
    return parts;
  }
};

TEST(Sleep, AFailedDriveLeavesItAwakeOrAsleepAndTheCallCanBeRepeated) {
  const TemporaryDirectory directory;
  Faults faults;
  TrainedRun run(settings_of(Where::kPart, directory.string()), {}, nullptr, nullptr,
                 faults.parts());
  run.train(1);
  const std::string hashes = run.hashes();
  faults.writes = true;
  expect_words(error_of([&] { run.engine.sleep(); }),
               {"kIo sleep: write of 'what lives in memory'"});
  faults.writes = false;
  EXPECT_EQ(run.hashes(), hashes);
  run.engine.sleep();
  faults.reads = true;
  expect_words(error_of([&] { run.engine.wake(); }), {"kIo wake: read of 'what lives in memory'"});
  expect_words(error_of([&] { run.engine.step({}); }), {"the engine sleeps"});
  faults.reads = false;
  run.engine.wake();
  EXPECT_EQ(run.hashes(), hashes);
  run.train(1);
}

// What was written through the page cache, and of what the kernel then says that it is lost.
TEST(Sleep, KeepsItsMemoryUntilTheImageIsWritten) {
  const TemporaryDirectory directory, other;
  TrainedRun whole(settings_of(Where::kPart, other.string()));
  whole.train(2);
  Faults faults;
  TrainedRun run(settings_of(Where::kPart, directory.string()), {}, nullptr, nullptr,
                 faults.parts());
  run.train(1);
  const std::string hashes = run.hashes();
  faults.syncs = true;
  expect_words(error_of([&] { run.engine.sleep(); }), {"kIo sleep: sync of ", ".swap: EIO"});
  EXPECT_EQ(run.hashes(), hashes);
  run.train(1);
  EXPECT_EQ(run.hashes(), whole.hashes());
  faults.syncs = false;
  run.engine.sleep();
  run.engine.wake();
  EXPECT_EQ(run.hashes(), whole.hashes());
}

// Loads before the first commit: a later commit names what they wrote, and its drives are new ones.
TEST(Sleep, DoesNotForgetThatAStoreMayHaveLostWhatWasLoaded) {
  const TemporaryDirectory directory;
  Settings settings = settings_of(Where::kPart, directory.string());
  settings.durable_every = 1;
  settings.store = "run";
  Faults faults;
  TrainedRun run(settings, {}, nullptr, nullptr, faults.parts(".store"));
  const std::string hashes = run.hashes();
  faults.syncs = true;
  expect_words(error_of([&] { run.engine.sleep(); }), {"kIo sleep: sync of ", ".store: EIO"});
  EXPECT_EQ(run.hashes(), hashes);
  faults.syncs = false;  // for close()
}

TEST(Sleep, NamesADamagedImageAndDoesNotWakeFromIt) {
  const TemporaryDirectory directory, elsewhere;
  TrainedRun run(settings_of(Where::kPart, directory.string()));
  run.engine.sleep(elsewhere.string());
  for (const auto& entry : fs::recursive_directory_iterator(elsewhere.string())) {
    if (entry.path().extension() != ".swap") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(100'000);
    file.get(byte);
    file.seekp(100'000);
    file.put(static_cast<char>(byte ^ 1));
  }
  expect_words(error_of([&] { run.engine.wake(); }),
               {"kCorrupt wake", "the checksum differs", "still sleeps"});
  run.engine.close();
}

TEST(Sleep, ADurableEngineCommitsBeforeAndAKillAsleepLosesNothing) {
  const TemporaryDirectory directory;
  Settings settings = settings_of(Where::kPart, directory.string());
  settings.durable_every = 3;
  settings.store = "run";
  std::string hashes;
  {
    const TemporaryDirectory other;
    TrainedRun whole(settings_of(Where::kPart, other.string()));
    whole.train(4);
    hashes = whole.hashes();
  }
  const pid_t child = ::fork();
  if (child == 0) {
    TrainedRun run(settings);
    run.train(4);
    run.engine.sleep();
    EXPECT_EQ(run.engine.durable_step(), 4u);
    run.engine.wake();
    run.engine.sleep();
    if (::testing::Test::HasFailure()) ::_exit(1);
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  TrainedRun resumed(settings);
  ASSERT_TRUE(resumed.engine.resumed());
  EXPECT_EQ(resumed.engine.resumed()->step, 4u);
  EXPECT_EQ(resumed.hashes(), hashes);
  resumed.engine.sleep();
  resumed.engine.wake();
  resumed.train(4);
  resumed.engine.sleep();
  resumed.engine.close();
  TrainedRun again(settings);
  EXPECT_EQ(again.engine.resumed()->step, 8u);
}
}  // namespace
}  // namespace headrace::sleep_test
