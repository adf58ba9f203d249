// SPDX-License-Identifier: Apache-2.0
// checkpoint_test: a run goes on from a folder to the bits of the run that was not interrupted;
// what is damaged, missing or in the way is named, and leaves nothing behind.
#include "headrace/checkpoint.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace {
namespace {
namespace fs = std::filesystem;

struct Place {
  bool on_nvme = false;
  MasterLayout master = MasterLayout::kSplit;
  std::uint32_t width = 300;
};

class Training {
 public:
  explicit Training(const Place& place = {}, std::shared_ptr<Collective> ranks = nullptr,
                    std::shared_ptr<device::ComputingDevice> device = nullptr) {
    Settings settings;
    settings.tile_elements = 65536;
    settings.master = place.master;
    if (place.on_nvme) {
      settings.nvme_paths = {directory_.string()};
      settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
    }
    device_ = device ? std::move(device) : device::make_computing_host({.seed = 5});
    engine_ =
        std::make_unique<Engine>(settings, EngineOptions{.device = device_, .collective = ranks});
    network_ = std::make_unique<testing::Mlp>(*engine_, *device_,
                                              testing::MlpOptions{.width = place.width});
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) network_->train_step();
  }
  Engine& engine() { return *engine_; }
  std::string hashes() { return engine_->hash_parameters() + engine_->hash_optimizer_state(); }

 private:
  testing::TemporaryDirectory directory_;
  std::shared_ptr<device::ComputingDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<testing::Mlp> network_;
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(code_name(error.code())) + " " + error.what();
  }
  return "no error";
}

TEST(Checkpoint, GoesOnToTheBitsOfTheRunThatWasNotInterrupted) {
  for (const MasterLayout master : {MasterLayout::kSplit, MasterLayout::kF32}) {
    for (const bool on_nvme : {false, true}) {
      const testing::TemporaryDirectory directory;
      const std::string folder = directory.string() + "/a";
      Training whole({.on_nvme = on_nvme, .master = master});
      whole.train(2);
      save_checkpoint(whole.engine(), folder);
      const std::string saved = whole.hashes();
      whole.train(2);
      Training resumed({.on_nvme = !on_nvme, .master = master});
      load_checkpoint(resumed.engine(), folder);
      EXPECT_EQ(resumed.hashes(), saved);
      resumed.train(2);
      EXPECT_EQ(resumed.hashes(), whole.hashes());
      EXPECT_FALSE(fs::exists(folder + ".tmp"));
    }
  }
}

TEST(Checkpoint, ADamagedFileIsNamedBeforeAnythingChanges) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  save_checkpoint(run.engine(), folder);
  run.train(1);
  const std::string before = run.hashes();
  for (const char* const name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    for (const int from_end : {1, 50'000}) {
      std::fstream file(folder + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(0, std::ios::end);
      const auto at = std::max<std::streamoff>(0, file.tellg() - std::streamoff{from_end});
      file.seekg(at);
      const char old = static_cast<char>(file.get());
      file.seekp(at).put(static_cast<char>(old ^ 1)).flush();
      const std::string error = error_of([&] { load_checkpoint(run.engine(), folder); });
      EXPECT_TRUE(error.starts_with("kCorrupt")) << name << ": " << error;
      EXPECT_EQ(run.hashes(), before);
      file.seekp(at).put(old).flush();
    }
  }
  EXPECT_EQ(error_of([&] { load_checkpoint(run.engine(), folder); }), "no error");
}

TEST(Checkpoint, OtherShapesAndAMissingManifestAreNamed) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run, other({.width = 200});
  save_checkpoint(run.engine(), folder);
  const std::string shape = error_of([&] { load_checkpoint(other.engine(), folder); });
  EXPECT_TRUE(shape.starts_with("kInvalidArgument")) << shape;
  EXPECT_NE(shape.find("has shape"), std::string::npos) << shape;
  fs::remove(folder + "/manifest.json");
  const std::string missing = error_of([&] { load_checkpoint(run.engine(), folder); });
  EXPECT_TRUE(missing.starts_with("kNotFound")) << missing;
}

TEST(Checkpoint, TakesNoFolderThatExistsAndRemovesWhatADeadSaveLeft) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  fs::create_directory(folder + ".tmp");
  std::ofstream(folder + ".tmp/model.safetensors") << "half";
  save_checkpoint(run.engine(), folder);
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  const std::string again = error_of([&] { save_checkpoint(run.engine(), folder); });
  EXPECT_TRUE(again.starts_with("kInvalidArgument")) << again;
  const std::string nowhere =
      error_of([&] { save_checkpoint(run.engine(), directory.string() + "/none/a"); });
  EXPECT_TRUE(nowhere.starts_with("kIo")) << nowhere;
}
// A limit on file sizes stands for a full disk: both end a write on the way.
TEST(Checkpoint, ASaveThatFailsOnTheWayLeavesNothingAndTheEngineTrainsOn) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 500'000;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { save_checkpoint(run.engine(), folder); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_TRUE(error.starts_with("kNoSpace")) << error;
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  run.train(1);
  save_checkpoint(run.engine(), folder);
  EXPECT_TRUE(fs::exists(folder + "/manifest.json"));
}
TEST(Checkpoint, EveryWorldSizeLoadsItAndSeveralRanksCannotSave) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training alone;
  alone.train(2);
  save_checkpoint(alone.engine(), folder);
  const std::string saved = alone.hashes();
  for (const std::uint32_t world : {2u, 3u}) {
    std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
    for (std::uint32_t r = 0; r < world; ++r)
      hosts.push_back(device::make_computing_host({.seed = r + 1}));
    const auto ranks =
        collective::make_collective_threads({hosts.begin(), hosts.end()}, std::chrono::seconds(60));
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        Training run({}, ranks[r], hosts[r]);
        load_checkpoint(run.engine(), folder);
        EXPECT_EQ(run.hashes(), saved) << "rank " << r << " of " << world;
        const std::string mine = directory.string() + "/" + std::to_string(r);
        const std::string error = error_of([&] { save_checkpoint(run.engine(), mine); });
        EXPECT_TRUE(error.starts_with("kUnsupported")) << error;
        EXPECT_FALSE(fs::exists(mine));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}
}  // namespace
}  // namespace headrace
