// SPDX-License-Identifier: Apache-2.0
// exactness_test: where bytes live never changes them. One network, trained 20 steps over every
// combination of placement, update threads, clipping, I/O queue and device; parameters and moments
// must hash alike. Half of the runs end after a part of their steps, at an odd number, and another
// engine, with other settings of all these kinds but clipping, goes on from their store.
//
// HEADRACE_MATRIX=pairwise (all but ./check --all's release leg) takes rows in which every pair of
// values of two columns occurs, and fewer steps.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/pairwise.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"
#include "swap/io_queue.hpp"

namespace headrace::exactness_test {
namespace {
using device::HostFlavour;

enum class Placement { kMemory, kStateNvme, kAllNvme, kBudget };
constexpr const char* kPlacements[] = {"memory", "state on NVMe", "all on NVMe", "budget"};

struct Row {
  Placement placement;
  std::uint32_t threads;
  bool clip;
  IoQueueKind queue;
  HostFlavour device;
  UpdateMode mode = UpdateMode::kBarrier;
  bool resumed = false;  // begun as another row, and resumed as this one
  std::string text() const {
    return std::string(kPlacements[static_cast<int>(placement)]) + ", threads " +
           std::to_string(threads) + (clip ? ", clipped" : ", not clipped") + ", queue " +
           name_of(queue) + (device == HostFlavour::kLate ? ", late device" : ", prompt device") +
           (mode == UpdateMode::kDefer ? ", deferred" : "") + (resumed ? ", resumed" : "");
  }
};

bool pairwise() {
  const char* matrix = std::getenv("HEADRACE_MATRIX");
  return matrix != nullptr && std::string(matrix) == "pairwise";
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (int p = 0; p < 4; ++p) {
    for (int bits = 0; bits < 16; ++bits) {
      all.push_back({static_cast<Placement>(p), bits & 1 ? 2u : 1u, (bits & 2) != 0,
                     bits & 4 ? (p % 2 == 0 ? IoQueueKind::kThreads : IoQueueKind::kAio)
                              : IoQueueKind::kUring,
                     bits & 8 ? HostFlavour::kLate : HostFlavour::kPrompt,
                     (p + bits + bits / 4) % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier,
                     (p / 2 + bits / 2 + bits / 8) % 2 == 0});
    }
  }
  if (!pairwise()) return all;
  return testing::pairwise_cover(all, [](const Row& r) {
    return std::array{static_cast<int>(r.placement), static_cast<int>(r.threads),
                      static_cast<int>(r.clip),      static_cast<int>(r.queue),
                      static_cast<int>(r.device),    static_cast<int>(r.mode),
                      static_cast<int>(r.resumed)};
  });
}

// Differs from `row` in everything that may change when a run is resumed.
Row begun_as(const Row& row) {
  Row other = row;
  other.placement = static_cast<Placement>((static_cast<int>(row.placement) + 2) % 4);
  other.threads = 3 - row.threads;
  other.queue = row.queue == IoQueueKind::kUring ? IoQueueKind::kThreads : IoQueueKind::kUring;
  other.device = row.device == HostFlavour::kLate ? HostFlavour::kPrompt : HostFlavour::kLate;
  other.mode = row.mode == UpdateMode::kDefer ? UpdateMode::kBarrier : UpdateMode::kDefer;
  return other;
}

std::set<IoQueueKind> lacking_queues() {
  std::set<IoQueueKind> lacking;
  for (const IoQueueKind kind : {IoQueueKind::kUring, IoQueueKind::kAio}) {
    try {
      swap::choose_io_queue(kind, {.depth = 2});
    } catch (const Error& error) {
      std::printf("its rows have another queue: %s\n", error.what());
      lacking.insert(kind);
    }
  }
  return lacking;
}

// A queue that this machine or this build has not is replaced by one that serves.
IoQueueKind served(IoQueueKind wanted) {
  static const std::set<IoQueueKind> lacking = lacking_queues();
  return lacking.contains(wanted) ? IoQueueKind::kAuto : wanted;
}

Settings settings_of(const Row& row, const std::string& directory, std::uint32_t accumulation,
                     MasterLayout master) {
  Settings s;
  s.tile_elements = 65536;
  s.update_slots = 2;
  s.io_block_bytes = 128 * 1024;
  s.update_threads = row.threads;
  s.update_mode = row.mode;
  s.io_queue = served(row.queue);
  s.master = master;
  s.gradient_accumulation_steps = accumulation;
  if (row.placement != Placement::kMemory) {
    s.nvme_paths = {directory};
    s.offload_optimizer = OffloadDevice::kNvme;
    if (row.placement != Placement::kStateNvme) s.offload_parameters = OffloadDevice::kNvme;
  }
  // Slots come before residents: with all of the usual ones so small a model would be resident.
  if (row.placement == Placement::kBudget) s.update_slots = s.prefetch_groups = 1;
  return s;
}

// A budget under which part of the state stays in memory and part does not.
std::uint64_t middle_budget(Settings settings,
                            const std::shared_ptr<device::ComputingDevice>& device,
                            const testing::MlpOptions& options) {
  std::uint64_t budget = 0;
  for (;;) {
    settings.host_budget_bytes = budget;
    Engine engine(settings, {.device = device});
    testing::Mlp network(engine, *device, options);
    const PlanReport plan = engine.plan();
    const double share = plan.resident_share_of_state;
    if ((share > 0.05 && share < 0.95) || share == 1) return budget;  // 1: the test says so
    budget = (budget == 0 ? plan.smallest_host_bytes : budget) + (1 << 19);
  }
}

struct Outcome {
  std::string parameters, state;
  double resident_share = 0;
};

// The pairwise cover takes fewer steps too: it looks for races, not for drift.
int steps_of_matrix() { return pairwise() ? 4 : 20; }

// A run's part up to its step `last`, with the settings of one row.
class PartOfRun {
 public:
  PartOfRun(const Row& row, const std::string& directory, std::uint32_t accumulation,
            MasterLayout master, bool durable)
      : options_{.accumulation = accumulation, .max_norm = row.clip ? 0.05f : 0.0f},
        device_(device::make_computing_host(
            {.flavour = row.device, .seed = 11, .late_microseconds_max = 40})) {
    Settings settings = settings_of(row, directory, accumulation, master);
    if (row.placement == Placement::kBudget)
      settings.host_budget_bytes = middle_budget(settings, device_, options_);
    if (durable) {
      settings.nvme_paths = {directory};
      settings.durable_every = 1;
      settings.store = "exactness";
      // Beside that of the budget's search: the headers and the record of a store.
      if (settings.host_budget_bytes != 0) settings.host_budget_bytes += 1 << 19;
    }
    engine_ = std::make_unique<Engine>(
        settings, EngineOptions{.device = device_, .log = [](LogLevel, std::string_view) {}});
    network_ = std::make_unique<testing::Mlp>(*engine_, *device_, options_);
  }

  void train(int last, bool clip) {
    for (auto step = static_cast<int>(network_->steps()); step < last; ++step) {
      const StepResult result = network_->train_step();
      EXPECT_EQ(result.clip_factor < 1, clip) << "the clip must bite where it is on";
      EXPECT_EQ(result.parameters_left_alone, step % 2 == 0 ? 0u : options_.layers);
      if (step % 2 == 0) losses_.push_back(network_->last_loss());
    }
  }
  Outcome end() {
    Outcome outcome{engine_->hash_parameters(), engine_->hash_optimizer_state(),
                    engine_->plan().resident_share_of_state};
    engine_->close();
    return outcome;
  }
  // Of even steps, which use every parameter.
  const std::vector<double>& losses() const noexcept { return losses_; }
  std::uint64_t steps() const noexcept { return network_->steps(); }

 private:
  const testing::MlpOptions options_;
  const std::shared_ptr<device::ComputingDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<testing::Mlp> network_;
  std::vector<double> losses_;
};

Outcome train(const Row& row, std::uint32_t accumulation, MasterLayout master) {
  const testing::TemporaryDirectory directory;
  const int steps = steps_of_matrix(), first_part = steps / 4 * 2 + 1;  // odd
  std::vector<double> losses;
  if (row.resumed) {
    PartOfRun begun(begun_as(row), directory.string(), accumulation, master, true);
    begun.train(first_part, row.clip);
    losses = begun.losses();
    begun.end();
  }
  PartOfRun run(row, directory.string(), accumulation, master, row.resumed);
  EXPECT_EQ(run.steps(), static_cast<std::uint64_t>(row.resumed ? first_part : 0));
  run.train(steps, row.clip);
  losses.insert(losses.end(), run.losses().begin(), run.losses().end());
  EXPECT_LT(losses.back(), losses.front());
  Outcome outcome = run.end();
  EXPECT_EQ(directory.entries(), row.resumed ? 2u : 0u)
      << "close() leaves nothing behind but a store's folder and file";
  return outcome;
}

class Exactness : public ::testing::TestWithParam<std::tuple<std::uint32_t, MasterLayout>> {};

TEST_P(Exactness, PlacementThreadsQueueAndDeviceChangeNoBit) {
  const auto [accumulation, master] = GetParam();
  std::map<bool, Outcome> expected;  // by clipping
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.text());
    const Outcome outcome = train(row, accumulation, master);
    if (row.placement == Placement::kBudget) {
      EXPECT_GT(outcome.resident_share, 0.05);
      EXPECT_LT(outcome.resident_share, 0.95);
    }
    const auto [first, fresh] = expected.emplace(row.clip, outcome);
    EXPECT_EQ(outcome.parameters, first->second.parameters);
    EXPECT_EQ(outcome.state, first->second.state);
  }
  EXPECT_NE(expected[false].parameters, expected[true].parameters)
      << "clipping must change something";
}

INSTANTIATE_TEST_SUITE_P(Matrix, Exactness,
                         ::testing::Combine(::testing::Values(1u, 4u),
                                            ::testing::Values(MasterLayout::kSplit,
                                                              MasterLayout::kF32)),
                         [](const auto& info) {
                           return "Accumulation" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == MasterLayout::kSplit ? "SplitMaster"
                                                                                   : "F32Master");
                         });

// fp16 weights have f32 masters; their gradients keep 16 bits unless they are summed.
TEST(ExactnessOfF16, PlacementAndDeviceChangeNoBit) {
  for (const std::uint32_t accumulation : {1u, 4u}) {
    if (pairwise() && accumulation == 4) continue;
    std::map<std::string, int> hashes;
    for (const Row& row : rows()) {
      if (!row.clip) continue;
      const testing::TemporaryDirectory directory;
      const auto device = device::make_computing_host({.flavour = row.device});
      const testing::MlpOptions options{
          .accumulation = accumulation, .max_norm = 0.05f, .dtype = DType::kF16};
      Settings settings = settings_of(row, directory.string(), accumulation, MasterLayout::kSplit);
      if (row.placement == Placement::kBudget)
        settings.host_budget_bytes = middle_budget(settings, device, options);
      Engine engine(settings, {.device = device});
      testing::Mlp network(engine, *device, options);
      for (int step = 0; step < 3; ++step) network.train_step();
      ++hashes[engine.hash_parameters() + engine.hash_optimizer_state()];
    }
    EXPECT_EQ(hashes.size(), 1u) << "accumulation " << accumulation;
  }
}

TEST(ExactnessOverTiles, TileSizeSlotsAndSharesOfDrivesChangeNoBit) {
  std::map<std::string, int> hashes;
  for (const std::uint64_t tile : {1u, 2u, 3u}) {
    for (const std::uint32_t slots : {1u, 4u}) {
      if (pairwise() && tile == 3) continue;
      const testing::TemporaryDirectory directory;
      const Row row{Placement::kAllNvme, 2, true, IoQueueKind::kThreads, HostFlavour::kPrompt};
      Settings settings = settings_of(row, directory.string(), 1, MasterLayout::kSplit);
      settings.tile_elements = tile * 65536;
      settings.update_slots = slots;
      settings.prefetch_groups = slots == 1 ? 0 : 3;
      settings.nvme_paths = directory.drives(2);
      settings.drive_shares = {1.0, static_cast<double>(tile)};
      const auto device = device::make_computing_host();
      Engine engine(settings, {.device = device});
      testing::Mlp network(engine, *device, {.max_norm = 0.05f});
      for (int step = 0; step < 4; ++step) network.train_step();
      ++hashes[engine.hash_parameters() + engine.hash_optimizer_state()];
    }
  }
  EXPECT_EQ(hashes.size(), 1u);
}

// Each rank has a thread, a device and data of its own.
std::string train_ranks(std::uint32_t world, const Row& row, std::uint32_t accumulation) {
  const testing::TemporaryDirectory directory;
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
  for (std::uint32_t r = 0; r < world; ++r) {
    hosts.push_back(device::make_computing_host(
        {.flavour = row.device, .seed = r + 1, .late_microseconds_max = 40}));
    devices.push_back(hosts.back());
  }
  const auto ranks = collective::make_collective_threads(devices, std::chrono::seconds(120));
  std::vector<std::string> hashes(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        Settings settings =
            settings_of(row, directory.string(), accumulation, MasterLayout::kSplit);
        Engine engine(settings, {.device = hosts[r], .collective = ranks[r]});
        testing::Mlp network(engine, *hosts[r],
                             {.accumulation = accumulation,
                              .max_norm = row.clip ? 0.05f : 0.0f,
                              .data_seed = r + 1});
        for (int step = 0; step < (pairwise() ? 2 : 6); ++step) network.train_step();
        hashes[r] = engine.hash_parameters() + engine.hash_optimizer_state();
        engine.close();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(directory.entries(), 0u);
  std::string all;
  for (const std::string& hash : hashes) all += hash + '\n';
  return all;
}

class ExactnessOverRanks : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(ExactnessOverRanks, PlacementAndDeviceChangeNoBit) {
  for (const std::uint32_t accumulation : {1u, 4u}) {
    if (pairwise() && accumulation != 1 && GetParam() != 2) continue;
    std::string expected;
    for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
      for (const Placement placement :
           {Placement::kMemory, Placement::kStateNvme, Placement::kAllNvme}) {
        const Row row{placement, placement == Placement::kMemory ? 1u : 2u,
                      true,      IoQueueKind::kThreads,
                      flavour,   accumulation == 1 ? UpdateMode::kDefer : UpdateMode::kBarrier};
        SCOPED_TRACE(row.text());
        const std::string hashes = train_ranks(GetParam(), row, accumulation);
        if (expected.empty()) expected = hashes;
        EXPECT_EQ(hashes, expected);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(WorldSize, ExactnessOverRanks, ::testing::Values(2u, 3u));
}  // namespace
}  // namespace headrace::exactness_test
