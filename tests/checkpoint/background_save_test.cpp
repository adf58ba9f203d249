// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are saved while training goes on: their bits, their errors, and what waits.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/training.hpp"

namespace headrace::background_save_test {
namespace {
namespace fs = std::filesystem;
using testing::TemporaryDirectory;
using testing_checkpoints::error_of;
using testing_checkpoints::network_of;
using testing_checkpoints::Place;

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

Settings durable(const Place& place, const std::string& directory, std::uint64_t rate) {
  Settings settings = testing_checkpoints::settings_of(place, directory);
  settings.nvme_paths = {directory};
  settings.durable_every = 1;
  settings.store = "run";
  settings.background_save_bytes_per_second = rate;
  return settings;
}

class DurableTraining : public testing::NetworkTraining {
 public:
  explicit DurableTraining(std::uint64_t rate = kNoLimit, const Place& place = {.on_nvme = true},
                           std::shared_ptr<Collective> ranks = nullptr,
                           std::shared_ptr<device::ComputingDevice> device = nullptr,
                           const std::string& drive = "")
      : NetworkTraining(network_of(place), std::move(ranks),
                        device ? std::move(device) : device::make_computing_host({.seed = 5})) {
    begin(durable(place, drive.empty() ? directory() : drive, rate));
  }
};

std::map<std::string, std::string> bytes_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

class BackgroundSaves : public ::testing::Test {
 protected:
  const TemporaryDirectory folder_;
  const std::string blocking_ = folder_.string() + "/blocking",
                    beside_ = folder_.string() + "/beside";
};

// At this rate a save outlasts any test, and ends once it is awaited.
constexpr std::uint64_t kSlow = 1 << 10;

void expect_the_bytes_of_a_blocking_save(const Place& place, const std::string& blocking,
                                         const std::string& beside) {
  DurableTraining run(kSlow, place);
  run.train(3);
  const std::vector<std::byte> state(77, std::byte{7});
  save_checkpoint(run.engine(), blocking, {.file_bytes = 100'000, .trainer_state = state});
  const BackgroundSave save = save_checkpoint_in_background(
      run.engine(), beside, {.file_bytes = 100'000, .trainer_state = state});
  run.train(4);
  EXPECT_FALSE(save.done());  // the steps ran beside it
  EXPECT_FALSE(fs::exists(beside));
  save.wait();
  EXPECT_TRUE(save.done());
  EXPECT_EQ(bytes_in(beside), bytes_in(blocking));
  EXPECT_FALSE(fs::exists(beside + ".tmp"));
}

TEST_F(BackgroundSaves, HaveTheBytesOfABlockingSaveThoughStepsGoOn) {
  expect_the_bytes_of_a_blocking_save({.on_nvme = true}, blocking_, beside_);
}

TEST_F(BackgroundSaves, HaveThemWhereTheStateLivesInMemory) {
  expect_the_bytes_of_a_blocking_save({.on_nvme = false}, blocking_, beside_);
}

TEST_F(BackgroundSaves, HaveThemWithDeferredUpdatesAndSmallMoments) {
  expect_the_bytes_of_a_blocking_save(
      {.on_nvme = true, .moments = MomentCodec::kBlock8, .mode = UpdateMode::kDefer}, blocking_,
      beside_);
}

TEST_F(BackgroundSaves, ChangeNothingOfWhatIsTrained) {
  DurableTraining with(kSlow), without(kSlow);
  with.train(2);
  without.train(2);
  const BackgroundSave save = save_checkpoint_in_background(with.engine(), beside_);
  with.train(4);
  without.train(4);
  EXPECT_EQ(with.hashes(), without.hashes());
  save.wait();
}

TEST_F(BackgroundSaves, TakeTheStepsSinceTheLastCommitToo) {
  const Place place{.on_nvme = true};
  testing::NetworkTraining run(network_of(place), nullptr,
                               device::make_computing_host({.seed = 5}));
  Settings settings = durable(place, run.directory(), kNoLimit);
  settings.durable_every = 100;
  run.begin(settings);
  run.train(3);
  save_checkpoint_in_background(run.engine(), beside_).wait();
  save_checkpoint(run.engine(), blocking_);
  EXPECT_EQ(bytes_in(beside_), bytes_in(blocking_));
}

TEST_F(BackgroundSaves, HoldCommitsUntilTheyHaveRead) {
  DurableTraining run(kSlow);
  run.train(2);
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
  run.train(5);
  EXPECT_EQ(run.engine().durable_step(), 2u);
  ASSERT_FALSE(save.done());
  run.engine().commit();  // ends the reading
  EXPECT_EQ(run.engine().durable_step(), 7u);
  save.wait();
  run.train(2);  // its first ends the commit of the step before
  EXPECT_GE(run.engine().durable_step(), 8u);
}

TEST_F(BackgroundSaves, KeepToTheirRate) {
  DurableTraining run(4 << 20);
  run.train(1);
  const auto began = std::chrono::steady_clock::now();
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
  while (!save.done()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : bytes_in(beside_)) bytes += content.size();
  ASSERT_GT(bytes, 2u << 20);
  // The last portion, of at most 1 MiB, is not waited for. Headers and the manifest do not count.
  EXPECT_GE(took.count(), static_cast<double>(bytes - (bytes / 20) - (1 << 20)) / (4 << 20));
}

TEST_F(BackgroundSaves, EndWithTheEngineThatIsClosed) {
  auto run = std::make_unique<DurableTraining>(kSlow);
  run->train(2);
  save_checkpoint(run->engine(), blocking_);
  const BackgroundSave save = save_checkpoint_in_background(run->engine(), beside_);
  run->train(1);
  ASSERT_FALSE(save.done());
  run->engine().close();
  EXPECT_TRUE(save.done());
  run.reset();
  save.wait();
  EXPECT_EQ(bytes_in(beside_), bytes_in(blocking_));
}

TEST_F(BackgroundSaves, AreGivenUpByAnEngineThatWasInterrupted) {
  DurableTraining run(kSlow);
  run.train(2);
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
  run.engine().interrupt();
  const std::string error = error_of([&] { save.wait(); });
  EXPECT_NE(error.find("save_checkpoint_in_background: the engine has failed or was interrupted"),
            std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists(beside_));
  EXPECT_FALSE(fs::exists(beside_ + ".tmp"));
}

TEST_F(BackgroundSaves, RefuseSleepAndASecondOne) {
  DurableTraining run(kSlow);
  run.train(1);
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
  EXPECT_NE(error_of([&] { run.engine().sleep(); }).find("a background save reads"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              (void)save_checkpoint_in_background(run.engine(), blocking_);
            }).find("another background save still runs"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(blocking_ + ".tmp"));
  save.wait();
  run.engine().sleep();
  run.engine().wake();
  save_checkpoint_in_background(run.engine(), blocking_).wait();
  EXPECT_EQ(bytes_in(beside_), bytes_in(blocking_));
}

TEST_F(BackgroundSaves, AreRefusedWhereNothingIsDurable) {
  testing_checkpoints::Training run;
  run.train(1);
  EXPECT_NE(error_of([&] {
              (void)save_checkpoint_in_background(run.engine(), beside_);
            }).find("Call save_checkpoint(), or set headrace.durable"),
            std::string::npos);
  DurableTraining unlimited(0);
  unlimited.train(1);
  EXPECT_NE(error_of([&] {
              (void)save_checkpoint_in_background(unlimited.engine(), beside_);
            }).find("background_save_bytes_per_second is 0"),
            std::string::npos);
}

TEST_F(BackgroundSaves, ThrowWhatCanBeSeenAtOnce) {
  DurableTraining run;
  run.train(1);
  fs::create_directory(beside_);
  EXPECT_NE(error_of([&] {
              (void)save_checkpoint_in_background(run.engine(), beside_);
            }).find("exists; nothing was written"),
            std::string::npos);
  run.train(2);  // commits go on: nothing is pinned
  EXPECT_GE(run.engine().durable_step(), 2u);
}

TEST_F(BackgroundSaves, NameWhatIsDamagedInTheStore) {
  DurableTraining run(kSlow);
  run.train(2);
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
  for (const auto& entry : fs::recursive_directory_iterator(run.directory())) {
    if (entry.path().extension() != ".store") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string junk(fs::file_size(entry.path()) / 2, '\x55');
    file.seekp(static_cast<std::streamoff>(fs::file_size(entry.path()) / 2));
    file.write(junk.data(), static_cast<std::streamsize>(junk.size()));
  }
  const std::string error = error_of([&] { save.wait(); });
  EXPECT_TRUE(error.starts_with("kCorrupt save_checkpoint_in_background: swap in")) << error;
  EXPECT_TRUE(error.ends_with("No checkpoint was made.")) << error;
  EXPECT_FALSE(fs::exists(beside_));
  EXPECT_FALSE(fs::exists(beside_ + ".tmp"));
}

// [background]
// Each checkpoint has the time until the next one.
void train_and_save(Engine& engine, const std::string& folder, int steps,
                    const std::function<void()>& train_step) {
  std::optional<BackgroundSave> save;
  for (int step = 1; step <= steps; ++step) {
    train_step();
    if (step % 2 != 0) continue;
    if (save) save->wait();  // throws what ended it
    save = save_checkpoint_in_background(engine, folder + "/step-" + std::to_string(step));
  }
  if (save) save->wait();
}
// [/background]

TEST_F(BackgroundSaves, FollowEachOther) {
  DurableTraining run(kSlow);
  train_and_save(run.engine(), folder_.string(), 5, [&] { run.train(1); });
  DurableTraining other(kSlow);
  other.train(4);
  save_checkpoint(other.engine(), blocking_);
  EXPECT_EQ(bytes_in(folder_.string() + "/step-4"), bytes_in(blocking_));
  EXPECT_TRUE(fs::exists(folder_.string() + "/step-2"));
}

TEST_F(BackgroundSaves, EndInTheFolderThatTheyWereGiven) {
  const fs::path before = fs::current_path();
  DurableTraining run(kSlow);
  run.train(1);
  fs::create_directory(folder_.string() + "/given");
  fs::create_directory(folder_.string() + "/other");
  fs::current_path(folder_.string() + "/given");
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), "ck");
  fs::current_path(folder_.string() + "/other");
  EXPECT_EQ(error_of([&] { save.wait(); }), "no error");
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(folder_.string() + "/given/ck/manifest.json"));
}

// ---- several ranks ----

void on_durable_ranks(std::uint32_t world, std::uint64_t rate,
                      const std::function<void(DurableTraining&, std::uint32_t)>& body) {
  const TemporaryDirectory drive;
  testing_checkpoints::on_rank_threads(
      world, [&](std::uint32_t r, const auto& ranks, const auto& host) {
        DurableTraining run(rate, {.on_nvme = true}, ranks, host, drive.string());
        body(run, r);
      });
}

TEST_F(BackgroundSaves, HaveTheBytesOfABlockingSaveOfSeveralRanks) {
  for (const std::uint32_t world : {2u, 3u}) {
    const std::string end = std::to_string(world);
    on_durable_ranks(world, kSlow, [&](DurableTraining& run, std::uint32_t rank) {
      run.train(2);
      save_checkpoint(run.engine(), blocking_ + end);
      const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_ + end);
      run.train(3);
      EXPECT_EQ(run.engine().durable_step(), 2u) << rank;
      EXPECT_EQ(error_of([&] { save.wait(); }), "no error") << rank;
      run.train(3);
      EXPECT_GE(run.engine().durable_step(), 7u) << rank;
    });
    EXPECT_EQ(bytes_in(beside_ + end), bytes_in(blocking_ + end));
  }
}

// One rank reads for longer than the other: both go on with commits after the same step.
TEST_F(BackgroundSaves, HoldTheCommitsOfAllRanksUntilTheLastHasRead) {
  on_durable_ranks(2, kSlow, [&](DurableTraining& run, std::uint32_t rank) {
    run.train(1);
    const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
    std::thread awaits;
    if (rank == 0) awaits = std::thread([&] { save.wait(); });
    for (int step = 0; step < 4; ++step) run.train(1);
    EXPECT_EQ(run.engine().durable_step(), 1u) << rank;
    if (rank == 1) save.wait();
    if (awaits.joinable()) awaits.join();
    run.train(2);
    run.engine().commit();
    EXPECT_EQ(run.engine().durable_step(), 7u) << rank;
  });
}

TEST_F(BackgroundSaves, EndOnAllRanksWhereOneIsInterrupted) {
  on_durable_ranks(2, kSlow, [&](DurableTraining& run, std::uint32_t rank) {
    run.train(1);
    const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
    if (rank == 1) run.engine().interrupt();
    const std::string error = error_of([&] { save.wait(); });
    EXPECT_NE(error.find(rank == 1 ? "was interrupted" : "rank 1: "), std::string::npos) << error;
  });
  EXPECT_FALSE(fs::exists(beside_));
  EXPECT_FALSE(fs::exists(beside_ + ".tmp"));
}

// Rank 1 leaves the collective, as if it were killed, and its save says nothing.
TEST_F(BackgroundSaves, EndWithACollectiveThatHasEnded) {
  const TemporaryDirectory drive;
  std::promise<void> closed;
  testing_checkpoints::on_rank_threads(2, [&](std::uint32_t rank, const auto& ranks,
                                              const auto& host) {
    DurableTraining run(kSlow, {.on_nvme = true}, ranks, host, drive.string());
    run.train(1);
    const BackgroundSave save = save_checkpoint_in_background(run.engine(), beside_);
    if (rank == 1) {
      ranks->abort("as if killed");
      EXPECT_EQ(closed.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
      return;
    }
    EXPECT_NE(error_of([&] { run.train(9); }), "no error");
    (void)error_of([&] { run.engine().close(); });
    closed.set_value();
    const std::string error = error_of([&] { save.wait(); });
    EXPECT_NE(error.find("the collective of the ranks has ended"), std::string::npos) << error;
  });
  EXPECT_FALSE(fs::exists(beside_));
}

TEST_F(BackgroundSaves, AreRefusedOnAllRanksWhereOneCannot) {
  on_durable_ranks(2, kNoLimit, [&](DurableTraining& run, std::uint32_t rank) {
    run.train(1);
    const std::uint64_t bytes = rank == 1 ? 0 : 1000;
    const std::string error = error_of(
        [&] { (void)save_checkpoint_in_background(run.engine(), beside_, {.file_bytes = bytes}); });
    EXPECT_NE(error.find("SaveOptions::file_bytes is 0"), std::string::npos) << error;
    run.train(2);
    EXPECT_GE(run.engine().durable_step(), 2u);
  });
}
}  // namespace
}  // namespace headrace::background_save_test
