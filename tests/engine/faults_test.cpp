// SPDX-License-Identifier: Apache-2.0
// faults_test: the drive fails under the engine in every way the fault queue knows, 1,000 seeded
// schedules. Each run either ends with the hashes of the undisturbed one or reports an error; never
// neither, never a hang, nothing left behind.
//
// HEADRACE_FAULT_SEED starts at another seed; HEADRACE_FAULT_SCHEDULES runs another number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "engine/parts.hpp"
#include "support/computing_host.hpp"
#include "support/io_queue_fault.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::faults_test {
namespace {
constexpr int kSteps = 3;

struct Attempt {
  std::string hash;  // empty: it ended in an error
  std::string error;
  Code code = Code::kOk;
  int repeated = 0;  // calls that failed, left everything whole, and were repeated
  swap::FaultCounts faults;
  std::vector<std::string> log;
};

// A lost request is given up after `deadline`. Without one the deadline is out of the way of a
// loaded machine.
constexpr double kGivesUp = 1, kWaits = 60;

Settings settings_for(const std::string& directory, double deadline = kWaits,
                      UpdateMode mode = UpdateMode::kBarrier) {
  Settings s;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = OffloadDevice::kNvme;
  s.nvme_paths = {directory};
  s.tile_elements = 65536;
  s.io_block_bytes = 64 * 1024;
  s.queue_depth = 4;
  s.update_slots = 2;
  s.update_mode = mode;
  s.io_warn_seconds = 0.1;
  s.io_deadline_seconds = deadline;
  return s;
}

// Trains; a step whose error left the engine whole is discarded and done again.
void train(Engine& engine, device::ComputingDevice& device, Attempt& run) {
  testing::Mlp network(engine, device, {.layers = 2, .width = 280, .batch = 1, .max_norm = 0.05f});
  for (int step = 0; step < kSteps; ++step) {
    for (;;) {
      try {
        network.compute_gradients();
        network.step();
        break;
      } catch (const Error& error) {
        if (++run.repeated > 20) throw;
        engine.discard_gradients();  // throws kFailed where there is no way back
      }
    }
  }
  run.hash = engine.hash_parameters() + engine.hash_optimizer_state();
}

Attempt run_with(const swap::FaultPlan& plan, UpdateMode mode = UpdateMode::kBarrier) {
  const testing::TemporaryDirectory directory;
  Attempt run;
  const auto device = device::make_computing_host();
  engine::EngineParts parts;
  parts.update_threads = 1;
  parts.make_queue = [&](const swap::IoQueueOptions& options) {
    return swap::ChosenIoQueue{
        swap::make_io_queue_fault(swap::make_io_queue_threads(options), plan, &run.faults), ""};
  };
  const LogSink log = [&](LogLevel, std::string_view text) { run.log.emplace_back(text); };
  {
    const double deadline = plan.lost > 0 ? kGivesUp : kWaits;
    Engine engine = engine::engine_with_parts(settings_for(directory.string(), deadline, mode),
                                              EngineOptions{.device = device, .log = log}, parts);
    try {
      train(engine, *device, run);
    } catch (const Error& error) {
      run.error = error.what();
      run.code = error.code();
    }
    try {
      engine.close();
    } catch (const Error& error) {
      if (run.error.empty()) run.error = error.what();
      EXPECT_EQ(error.code(), Code::kIoStalled) << error.what();
    }
  }
  EXPECT_EQ(directory.entries(), 0u) << "something was left behind";
  return run;
}

swap::FaultPlan random_plan(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  swap::FaultPlan plan;
  plan.seed = seed;
  const auto chance = [&] { return 0.002 + 0.1 * static_cast<double>(random() % 1000) / 1000; };
  double* const kinds[] = {&plan.short_read, &plan.short_write, &plan.eio_read, &plan.eio_write,
                           &plan.eagain,     &plan.eintr,       &plan.enospc,   &plan.flip_bit,
                           &plan.late,       &plan.flush_eagain};
  const int count = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < count; ++i) *kinds[random() % std::size(kinds)] = chance();
  // Lost completions wait out the deadline: a few schedules have them.
  if (random() % 100 == 0) plan.lost = 0.01;
  plan.skip_requests = random() % 200;
  return plan;
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(EngineFaults, EndInTheSameBitsOrInAnErrorNeverSilently) {
  const Attempt clean = run_with({});
  ASSERT_FALSE(clean.hash.empty()) << clean.error;
  const std::uint64_t first = from_environment("HEADRACE_FAULT_SEED", 1);
  const std::uint64_t schedules = from_environment("HEADRACE_FAULT_SCHEDULES", 1000);
  std::uint64_t faults = 0, recovered = 0, reported = 0, untouched = 0, repeated = 0;
  for (std::uint64_t seed = first; seed < first + schedules; ++seed) {
    SCOPED_TRACE("HEADRACE_FAULT_SEED=" + std::to_string(seed));
    const swap::FaultPlan plan = random_plan(seed);
    const Attempt run = run_with(plan, seed % 2 == 0 ? UpdateMode::kBarrier : UpdateMode::kDefer);
    const swap::FaultCounts& f = run.faults;
    const std::uint64_t injected = f.shorts + f.errors + f.flips + f.late + f.lost;
    faults += injected;
    repeated += run.repeated;
    if (!run.hash.empty()) {
      EXPECT_EQ(run.hash, clean.hash) << "wrong bits without a word";
      ++(injected == 0 ? untouched : recovered);
      continue;
    }
    ++reported;
    EXPECT_FALSE(run.error.empty());
    // The real drive may take longer than the short deadline as well.
    EXPECT_TRUE(injected > 0 || plan.lost > 0) << "an error without a fault: " << run.error;
    EXPECT_TRUE(run.code == Code::kIo || run.code == Code::kNoSpace || run.code == Code::kCorrupt ||
                run.code == Code::kIoStalled || run.code == Code::kFailed)
        << run.error;
    // Which tensor, which file.
    EXPECT_NE(run.error.find("layer."), std::string::npos) << run.error;
    EXPECT_NE(run.error.find(".swap at "), std::string::npos) << run.error;
    if (HasFailure()) break;
  }
  std::printf(
      "%llu schedules from seed %llu: %llu faults; %llu runs ended in the same bits in spite of "
      "faults, %llu in "
      "an error, %llu met none; %llu calls were repeated\n",
      static_cast<unsigned long long>(schedules), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(faults), static_cast<unsigned long long>(recovered),
      static_cast<unsigned long long>(reported), static_cast<unsigned long long>(untouched),
      static_cast<unsigned long long>(repeated));
  if (schedules >= 100) {
    EXPECT_GT(recovered, schedules / 10);
    EXPECT_GT(reported, schedules / 20);
  }
}

TEST(EngineFaults, AFailedWriteIsRepeatedOnAnotherExtent) {
  const Attempt clean = run_with({});
  swap::FaultPlan plan;
  plan.fail_request = 30;
  plan.fail_errno = EIO;
  plan.only_writes = true;
  const Attempt run = run_with(plan);
  EXPECT_EQ(run.faults.errors, 1u);
  EXPECT_EQ(run.hash, clean.hash) << run.error;
}

// Every read brings a flipped bit: what is repeated is damaged again, until the run gives up.
TEST(EngineFaults, DamagedBytesAreNamedAndNeverUsed) {
  swap::FaultPlan plan;
  plan.flip_bit = 1;
  const Attempt run = run_with(plan);
  EXPECT_EQ(run.code, Code::kCorrupt) << run.error;
  EXPECT_TRUE(run.hash.empty());
  EXPECT_TRUE(run.error.find("checksum") != std::string::npos ||
              run.error.find("header") != std::string::npos)
      << run.error;
}

TEST(EngineFaults, ALostCompletionIsNamedAndGivenUpAtTheDeadline) {
  swap::FaultPlan plan;
  plan.lost = 1;
  plan.skip_requests = 60;
  const Attempt run = run_with(plan);
  EXPECT_TRUE(run.code == Code::kIoStalled || run.code == Code::kFailed) << run.error;
  EXPECT_TRUE(std::ranges::any_of(
      run.log, [](const std::string& line) { return line.find("swap") != std::string::npos; }));
}

// The quota or the drive is full, though the file was reserved: a copy-on-write file system.
TEST(EngineFaults, AFullDriveOrQuotaInMidRunIsNamedWithWhatHelps) {
  for (const int error : {ENOSPC, EDQUOT}) {
    swap::FaultPlan plan;
    plan.enospc = 1;
    plan.full_errno = error;
    plan.skip_requests = 60;
    const Attempt run = run_with(plan);
    EXPECT_TRUE(run.hash.empty());
    EXPECT_NE(run.error.find(error == EDQUOT ? "EDQUOT" : "ENOSPC"), std::string::npos)
        << run.error;
    EXPECT_NE(run.error.find(error == EDQUOT ? "free some of this user's quota"
                                             : "free some space (and inodes"),
              std::string::npos)
        << run.error;
  }
}

// The end of a drive's fast cache, heat, a neighbour: far slower from one request to the next.
TEST(EngineFaults, ADriveThatSlowsDownInMidRunChangesNoBitAndTimesNothingOut) {
  const Attempt clean = run_with({});
  swap::FaultPlan plan;
  plan.skip_requests = 100;
  plan.bytes_per_second = 10'000'000;
  const Attempt run = run_with(plan);
  EXPECT_GT(run.faults.requests, plan.skip_requests + 50);
  EXPECT_EQ(run.hash, clean.hash) << run.error;
  EXPECT_EQ(run.repeated, 0);
}

// A slow drive is still at what was prefetched for the next step.
TEST(EngineFaults, CloseAndDestructionWaitForWhatIsInFlight) {
  for (const bool closes : {true, false}) {
    const testing::TemporaryDirectory directory;
    const auto device = device::make_computing_host();
    swap::FaultCounts counts;
    engine::EngineParts parts;
    parts.update_threads = 1;
    parts.make_queue = [&](const swap::IoQueueOptions& options) {
      const swap::FaultPlan plan{.skip_requests = 200, .bytes_per_second = 4'000'000};
      return swap::ChosenIoQueue{
          swap::make_io_queue_fault(swap::make_io_queue_threads(options), plan, &counts), ""};
    };
    {
      Engine engine(engine::engine_with_parts(settings_for(directory.string()),
                                              EngineOptions{.device = device}, parts));
      testing::Mlp network(engine, *device, {.layers = 2, .width = 280, .batch = 1});
      network.train_step();
      network.train_step();
      if (closes) engine.close();
    }
    EXPECT_GT(counts.requests, 200u) << "nothing was slow";
    EXPECT_EQ(directory.entries(), 0u);
  }
}

// Two groups of one weight each, all on NVMe, with one gather slot; every request after the
// first `skip` is lost.
struct Losing {
  explicit Losing(std::uint64_t skip) {
    plan.lost = skip > 0 ? 1 : 0;
    plan.skip_requests = skip;
    engine::EngineParts parts;
    parts.update_threads = 1;
    parts.make_queue = [this](const swap::IoQueueOptions& options) {
      return swap::ChosenIoQueue{
          swap::make_io_queue_fault(swap::make_io_queue_threads(options), plan, &counts), ""};
    };
    Settings settings = settings_for(directory.string(), kGivesUp);
    settings.prefetch_groups = 0;
    engine = std::make_unique<Engine>(
        engine::engine_with_parts(settings, EngineOptions{.device = device}, parts));
    for (const char* name : {"a", "b"}) engine->add_group(name, {{"w", DType::kBf16, {1000}}});
    engine->freeze();
    for (const std::uint32_t g : {0u, 1u}) {
      engine->load(
          {g}, [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{1}); });
    }
  }
  void expect(Code code, const std::function<void()>& call) const {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find("swap in 'a.w'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("can only be closed"), std::string::npos)
          << error.what();
    }
  }
  const testing::TemporaryDirectory directory;
  const std::shared_ptr<device::ComputingDevice> device = device::make_computing_host();
  swap::FaultPlan plan;
  swap::FaultCounts counts;
  std::unique_ptr<Engine> engine;
};

// The kernel may yet write to where 'a' was being read; that buffer would be the next group's.
TEST(EngineFaults, AfterALostReadNothingIsHandedOutAgain) {
  std::uint64_t requests = 0;
  {
    Losing whole(0);
    whole.engine->close();
    requests = whole.counts.requests;
  }
  Losing losing(requests);
  Engine& engine = *losing.engine;
  losing.expect(Code::kIoStalled, [&] { (void)engine.gather({0}); });
  losing.expect(Code::kFailed, [&] { (void)engine.gather({1}); });
  const std::vector<float> gradient(1000, 1.0f);
  losing.expect(Code::kFailed, [&] { engine.add_gradient({1}, gradient.data(), DType::kF32); });
  losing.expect(Code::kFailed, [&] { (void)engine.step({}); });
  EXPECT_EQ(losing.counts.lost, 1u) << "another transfer began";
  EXPECT_THROW(engine.close(), Error);
  EXPECT_EQ(losing.directory.entries(), 0u);
}
}  // namespace
}  // namespace headrace::faults_test
