// SPDX-License-Identifier: Apache-2.0
// drives_test: several drives: what each is given, what is said about it, and that no bit hangs on
// it.
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "engine/parts.hpp"
#include "support/computing_host.hpp"
#include "support/conductor_simulated.hpp"
#include "support/drive_at_speed.hpp"
#include "support/expect_code.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace {
namespace {
using testing::DriveAtSpeed;
using testing::DriveSpeedGiven;

Settings on_drives(const testing::TemporaryDirectory& directory, std::size_t drives) {
  Settings s;
  s.offload_optimizer = s.offload_parameters = OffloadDevice::kNvme;
  s.tile_elements = 65536;
  s.nvme_paths = directory.drives(drives);
  return s;
}

// An engine over drives of known speed under a virtual clock, with enough state that they are
// measured.
struct Measured {
  static constexpr std::int64_t kRows = 4096, kColumns = 1500;

  Measured(const Settings& settings, std::vector<DriveSpeedGiven> speeds) {
    engine::EngineParts parts;
    parts.update_threads = 0;
    parts.make_conductor = [] { return async::make_conductor_simulated({.seed = 5}); };
    parts.make_drive = [speeds](async::Conductor& conductor, swap::DriveOptions drive) {
      return std::make_unique<DriveAtSpeed>(conductor, speeds[drive.index]);
    };
    EngineOptions options;
    options.log = [this](LogLevel level, std::string_view text) {
      (level == LogLevel::kWarning ? warnings : infos).emplace_back(text);
    };
    engine = std::make_unique<Engine>(engine::engine_with_parts(settings, options, parts));
    group = engine->add_group("h.0", {{"weight", DType::kBf16, {kRows, kColumns}, {}}});
    engine->freeze();
  }
  void train_a_step() {
    std::vector<std::uint16_t> values(kRows * kColumns, 0x3c00);
    engine->load(group, [&](ParameterId, std::span<std::byte> out) {
      std::memcpy(out.data(), values.data(), out.size());
    });
    engine->add_gradient(engine->parameters(group)[0], values.data(), DType::kBf16);
    engine->step({.learning_rate = 0.1f});
  }

  std::vector<std::string> warnings, infos;
  std::unique_ptr<Engine> engine;
  GroupId group{};
};

void expect_shares(const Engine& engine, const std::vector<double>& shares) {
  const PlanReport plan = engine.plan();
  ASSERT_EQ(plan.drives.size(), shares.size());
  for (std::size_t d = 0; d < shares.size(); ++d)
    EXPECT_NEAR(plan.drives[d].share, shares[d], 0.015) << "drive " << d;
}

bool any_holds(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(EngineDrives, FreezeDealsBytesByTheSpeedOfEachDriveAndSaysSo) {
  const testing::TemporaryDirectory directory;
  Measured measured(on_drives(directory, 2), {{4e8, 4e8}, {8e8, 8e8}});
  expect_shares(*measured.engine, {1.0 / 3, 2.0 / 3});
  measured.train_a_step();
  const Stats stats = measured.engine->stats();
  ASSERT_EQ(stats.drives.size(), 2u);
  EXPECT_NEAR(stats.drives[0].plan.read_bytes_per_second, 4e8, 4e6);
  EXPECT_NEAR(stats.drives[1].plan.write_bytes_per_second, 8e8, 8e6);
  EXPECT_EQ(stats.drives[0].read_bytes + stats.drives[1].read_bytes, stats.nvme_read_bytes);
  EXPECT_NEAR(
      static_cast<double>(stats.drives[0].read_bytes) / static_cast<double>(stats.nvme_read_bytes),
      1.0 / 3, 0.02);
  const std::string line = directory.drives(2)[1] + " holds 66.";
  EXPECT_TRUE(any_holds(measured.infos, line)) << line;
  EXPECT_TRUE(any_holds(measured.infos, "measured 0.40 GB/s read and 0.40 GB/s written"));
  EXPECT_NE(measured.engine->plan().to_text().find("measured: read 0.80 GB/s, write 0.80 GB/s"),
            std::string::npos);
  EXPECT_TRUE(measured.warnings.empty()) << measured.warnings[0];
  measured.engine->close();
  EXPECT_EQ(directory.entries(), 0u);
}

TEST(EngineDrives, ReadsAndWritesCountAsTheStepMovesThem) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_drives(directory, 2);
  settings.offload_parameters = OffloadDevice::kCpu;  // as much is read as written
  Measured measured(settings, {{1e9, 1e9}, {3e9, 6e8}});
  expect_shares(*measured.engine, {0.5, 0.5});
}

TEST(EngineDrives, ADriveUnderHalfOfTheFastestIsNamedInAWarning) {
  const testing::TemporaryDirectory directory;
  Measured measured(on_drives(directory, 3), {{2e9, 2e9}, {5e8, 5e8}, {1.5e9, 1.5e9}});
  expect_shares(*measured.engine, {0.5, 0.125, 0.375});
  ASSERT_EQ(measured.warnings.size(), 1u);
  EXPECT_NE(measured.warnings[0].find(" is slow: 0.50 GB/s read and 0.50 GB/s written, where " +
                                      directory.drives(3)[0] + " has 2.00 GB/s read"),
            std::string::npos)
      << measured.warnings[0];
}

TEST(EngineDrives, ADriveThatFailsIsNamedAndGetsNothing) {
  for (const bool reads : {true, false}) {
    const testing::TemporaryDirectory directory;
    DriveSpeedGiven failing;
    (reads ? failing.read_error : failing.write_error) = EIO;
    Measured measured(on_drives(directory, 2), {failing, {1e9, 1e9}});
    expect_shares(*measured.engine, {0, 1});
    measured.train_a_step();
    ASSERT_EQ(measured.warnings.size(), 1u);
    for (const char* part : {" failed when it was measured: ", "EIO", "nothing is stored there"})
      EXPECT_NE(measured.warnings[0].find(part), std::string::npos) << measured.warnings[0];
    const Stats stats = measured.engine->stats();
    EXPECT_EQ(stats.drives[0].read_bytes + stats.drives[0].written_bytes, 0u);
    EXPECT_EQ(stats.io_queue, "simulated");
  }
}

TEST(EngineDrives, FreezeIsRefusedWhereEveryDriveFails) {
  const testing::TemporaryDirectory directory;
  DriveSpeedGiven failing;
  failing.write_error = EIO;
  EXPECT_CODE(Code::kIo, Measured(on_drives(directory, 2), std::vector{failing, failing}),
              "no other path is left");
  EXPECT_EQ(directory.entries(), 0u);
}

// Of mappings that are left out of core dumps, as the arena is.
std::uint64_t undumped_bytes() {
  std::ifstream maps("/proc/self/smaps");
  std::uint64_t sum = 0, kib = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Size:")) kib = std::stoull(line.substr(5));
    if (line.starts_with("VmFlags:") && line.find(" dd") != std::string::npos) sum += kib * 1024;
  }
  return sum;
}

TEST(EngineDrives, ATransferThatNeverCompletesWhileMeasuringEndsFreezeAndKeepsTheMemory) {
  const testing::TemporaryDirectory directory;
  DriveSpeedGiven stalling;
  stalling.read_error = ETIMEDOUT;
  stalling.stalls = true;
  const std::uint64_t before = undumped_bytes();
  EXPECT_CODE(Code::kIoStalled,
              Measured(on_drives(directory, 2), std::vector{stalling, DriveSpeedGiven{1e9, 1e9}}),
              "the transfer never completed");
  // The arena holds the gradients, which are as large as this.
  EXPECT_GT(undumped_bytes(), before + Measured::kRows * Measured::kColumns * 2);
  EXPECT_EQ(directory.entries(), 0u);
}

TEST(EngineDrives, SharesThatAreGivenAreFollowedAndNothingIsMeasured) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_drives(directory, 2);
  settings.drive_shares = {3, 1};
  Measured measured(settings, {{1e8, 1e8}, {8e8, 8e8}});
  expect_shares(*measured.engine, {0.75, 0.25});
  EXPECT_EQ(measured.engine->plan().drives[0].read_bytes_per_second, 0);
  EXPECT_TRUE(measured.warnings.empty()) << measured.warnings[0];
  EXPECT_FALSE(any_holds(measured.infos, "measured"));
}

TEST(EngineDrives, SharesForAnotherNumberOfPathsAreRefused) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_drives(directory, 2);
  settings.drive_shares = {1, 2, 3};
  EXPECT_CODE(Code::kSettings, Engine{settings}, "headrace.drive_shares: 3 numbers for 2 paths");
  settings.drive_shares = {1, 0};
  EXPECT_CODE(Code::kSettings, Engine{settings}, "a list of numbers over 0");
}

TEST(EngineDrives, WhatFitsOnNoDriveIsRefusedByNameBeforeAnythingIsWritten) {
  const testing::TemporaryDirectory directory;
  struct statvfs space {};
  ASSERT_EQ(::statvfs(directory.string().c_str(), &space), 0);
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free > (1ull << 43)) GTEST_SKIP() << "too much is free for a table of all tiles";
  Settings settings = on_drives(directory, 2);
  settings.tile_elements = 4 << 20;
  engine::EngineParts parts;
  parts.machine_left_bytes = [] { return 0; };  // memory is not what this is about
  Engine engine(engine::engine_with_parts(settings, EngineOptions{}, parts));
  // 12 bytes per parameter, both paths full and a little more.
  const auto rows = static_cast<std::int64_t>(2 * free / 12 / 65536 + 65536);
  engine.add_group("h.0", {{"weight", DType::kBf16, {rows, 65536}, {}}});
  EXPECT_CODE(Code::kNoSpace, engine.freeze(),
              "nvme_path " + directory.drives(2)[0] + ": the plan needs ");
  EXPECT_EQ(directory.entries(), 0u);
}

TEST(EngineDrives, MorePathsThanTilesLeavesSomeOfThemEmpty) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_drives(directory, 9);
  Engine engine(settings);
  const GroupId group = engine.add_group("h.0", {{"weight", DType::kBf16, {300, 300}, {}}});
  engine.freeze();
  engine.load(
      group, [](ParameterId, std::span<std::byte> out) { std::memset(out.data(), 0, out.size()); });
  EXPECT_EQ(engine.stats().drives.size(), 9u);
  EXPECT_EQ(engine.plan().drives[8].bytes, 0u);
  engine.close();
  EXPECT_EQ(directory.entries(), 0u);
}

// As a killed run leaves it: nobody holds its lock.
std::string dead_run_on(const std::string& drive) {
  const std::string id(32, 'a'), uid = std::to_string(::geteuid());
  const std::string run = drive + "/headrace-" + uid + "/" + id;
  std::filesystem::create_directories(run);
  std::ofstream(run + "/lock") << "";
  std::ofstream(run + "/rank0.0.swap") << "left";
  std::ofstream(run + "/manifest.json")
      << R"({"format":"headrace-run","version":1,"run":")" << id << R"(","uid":)" << uid << "}";
  return run;
}

TEST(EngineDrives, WhatDeadRunsLeftIsRemovedFromAPathOnWhichNothingIsStored) {
  for (const bool on_nvme : {true, false}) {
    const testing::TemporaryDirectory directory;
    Settings settings = on_drives(directory, 2);
    settings.host_budget_bytes = on_nvme ? 1ull << 30 : 0;  // room for all of it
    if (!on_nvme) settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kCpu;
    std::vector<std::string> dead;
    for (const std::string& drive : settings.nvme_paths) dead.push_back(dead_run_on(drive));
    EngineOptions options;
    std::string log;
    options.log = [&](LogLevel, std::string_view text) { log += text; };
    Engine engine(settings, options);
    engine.add_group("h.0", {{"weight", DType::kBf16, {300, 300}, {}}});
    engine.freeze();
    EXPECT_EQ(engine.plan().nvme_bytes, 0u);
    for (const std::string& run : dead) EXPECT_FALSE(std::filesystem::exists(run)) << on_nvme;
    EXPECT_NE(log.find("removed what 1 dead run left in "), std::string::npos) << log;
  }
}

std::string hashes(const Settings& settings, const engine::EngineParts& parts,
                   const EngineOptions& options, device::ComputingDevice& device) {
  Engine engine(engine::engine_with_parts(settings, options, parts));
  testing::Mlp network(engine, device, {.max_norm = 0.05f});
  for (int step = 0; step < 4; ++step) network.train_step();
  std::string hash = engine.hash_parameters() + engine.hash_optimizer_state();
  engine.close();
  return hash;
}

TEST(EngineDrives, NeitherTheirNumberNorTheirSharesChangeABit) {
  std::string expected;
  for (const std::vector<double>& shares :
       {std::vector<double>{}, {1.0}, {1.0, 3.0}, {3.0, 1.0}, {5.0, 0.5, 2.0}}) {
    const testing::TemporaryDirectory directory;
    Settings settings = on_drives(directory, std::max<std::size_t>(1, shares.size()));
    settings.drive_shares = shares;
    settings.update_slots = shares.size() == 3 ? 2 : 4;
    const auto device = device::make_computing_host();
    const std::string hash = hashes(settings, {}, {.device = device}, *device);
    if (expected.empty()) expected = hash;
    EXPECT_EQ(hash, expected) << shares.size() << " shares";
  }
}

// Two ranks on two drives, in threads. `parts_of` makes those of each rank, from its number.
// Returns what freeze() threw on each; empty: nothing.
std::vector<std::string> freeze_two_ranks(
    const std::function<engine::EngineParts(std::uint32_t rank)>& parts_of) {
  const testing::TemporaryDirectory directory;
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < 2; ++r) devices.push_back(device::make_computing_host());
  const auto ranks = collective::make_collective_threads(devices, std::chrono::seconds(120));
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Settings settings = on_drives(directory, 2);
      const engine::EngineParts parts = parts_of(r);
      settings.host_budget_auto = parts.machine_left_bytes != nullptr;
      EngineOptions options{.device = devices[r], .collective = ranks[r]};
      options.log = [](LogLevel, std::string_view) {};
      Engine engine(engine::engine_with_parts(settings, options, parts));
      engine.add_group("h.0", {{"weight", DType::kBf16, {4096, 3000}, {}}});
      try {
        engine.freeze();
      } catch (const Error& error) {
        thrown[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(directory.entries(), 0u);
  return thrown;
}

// A drive that calls `started` at each transfer.
class DriveThatSays final : public testing::DriveSimulated {
 public:
  DriveThatSays(async::Conductor& conductor, std::function<void()> started)
      : DriveSimulated(conductor, 1), started_(std::move(started)) {}

 protected:
  async::Nanoseconds duration_of(const swap::Transfer& transfer) noexcept override {
    started_();
    return DriveSimulated::duration_of(transfer);
  }

 private:
  std::function<void()> started_;
};

// Rank 1 comes late, and rank 0 moves nothing before.
TEST(EngineDrives, RanksMeasureAtTheSameTime) {
  std::atomic<bool> late_is_there{false};
  std::atomic<int> transfers{0}, too_early{0};
  const auto thrown = freeze_two_ranks([&](std::uint32_t rank) {
    engine::EngineParts parts;
    parts.make_drive = [&, rank](async::Conductor& conductor, swap::DriveOptions drive) {
      if (rank == 1 && drive.index == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        late_is_there = true;
      }
      return std::make_unique<DriveThatSays>(conductor, [&] {
        ++transfers;
        if (!late_is_there) ++too_early;
      });
    };
    return parts;
  });
  EXPECT_EQ(thrown, (std::vector<std::string>{"", ""}));
  EXPECT_GT(transfers, 0);
  EXPECT_EQ(too_early, 0);
}

TEST(EngineDrives, ARankWithNothingToMeasureMeetsThoseThatMeasure) {
  std::array<std::atomic<int>, 2> transfers{};
  const auto thrown = freeze_two_ranks([&](std::uint32_t rank) {
    engine::EngineParts parts;
    parts.machine_left_bytes = [rank] { return rank == 0 ? 136ull << 20 : 1ull << 30; };
    parts.make_drive = [&, rank](async::Conductor& conductor, swap::DriveOptions) {
      return std::make_unique<DriveThatSays>(conductor, [&, rank] { ++transfers[rank]; });
    };
    return parts;
  });
  EXPECT_EQ(thrown, (std::vector<std::string>{"", ""}));
  EXPECT_GT(transfers[0], 0);
  EXPECT_EQ(transfers[1], 0);
}

TEST(EngineDrives, ARankThatFailsWhileItMeasuresEndsFreezeOnAll) {
  const auto thrown = freeze_two_ranks([&](std::uint32_t rank) {
    engine::EngineParts parts;
    parts.make_drive = [rank](async::Conductor& conductor, swap::DriveOptions) {
      DriveSpeedGiven speed;
      if (rank == 1) speed.write_error = EIO;
      return std::make_unique<DriveAtSpeed>(conductor, speed);
    };
    return parts;
  });
  EXPECT_NE(thrown[1].find("no other path is left"), std::string::npos) << thrown[1];
  EXPECT_NE(thrown[0].find("rank 1"), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find("no other path is left"), std::string::npos) << thrown[0];
}

// What a rank finds decides where its own tiles lie: freeze does not compare it.
TEST(EngineDrives, RanksMayDealTheirTilesDifferently) {
  const auto train = [](bool alike) {
    const testing::TemporaryDirectory directory;
    std::vector<std::shared_ptr<Device>> devices;
    std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
    for (int r = 0; r < 2; ++r)
      devices.push_back(hosts.emplace_back(device::make_computing_host()));
    const auto ranks = collective::make_collective_threads(devices, std::chrono::seconds(120));
    std::vector<std::string> found(2), deals(2);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        engine::EngineParts parts;
        parts.make_drive = [&, r](async::Conductor& conductor, swap::DriveOptions drive) {
          const bool fast = alike || drive.index == r;
          DriveSpeedGiven speed{fast ? 4e9 : 1e9, fast ? 4e9 : 1e9};
          // On one rank each, another drive fails: certain to deal differently.
          if (!alike && !fast) speed.write_error = EIO;
          return std::make_unique<DriveAtSpeed>(conductor, speed);
        };
        EngineOptions options{.device = hosts[r], .collective = ranks[r]};
        options.log = [](LogLevel, std::string_view) {};
        Engine engine(engine::engine_with_parts(on_drives(directory, 2), options, parts));
        const GroupId group = engine.add_group("h.0", {{"weight", DType::kBf16, {4096, 2000}, {}}});
        engine.freeze();
        std::vector<std::uint16_t> values(4096 * 2000, 0x3c00);
        engine.load(group, [&](ParameterId, std::span<std::byte> out) {
          std::memcpy(out.data(), values.data(), out.size());
        });
        engine.add_gradient(engine.parameters(group)[0], values.data(), DType::kBf16);
        engine.step({.learning_rate = 0.1f});
        found[r] = engine.hash_parameters() + engine.hash_optimizer_state();
        deals[r] = std::to_string(engine.plan().drives[0].bytes > 0) +
                   std::to_string(engine.plan().drives[1].bytes > 0);
        engine.close();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(deals[0], alike ? "11" : "10");
    EXPECT_EQ(deals[1], alike ? "11" : "01");
    return found;
  };
  EXPECT_EQ(train(true), train(false));
}
}  // namespace
}  // namespace headrace
