// SPDX-License-Identifier: Apache-2.0
// store_test: `headrace store` on the stores of durable engines: whole, in use, damaged, copied and
// removed.
#include "store/store.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "store/open_store.hpp"
#include "support/all_on_nvme.hpp"
#include "support/scripted_trainer.hpp"
#include "support/socket_ranks.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/store_format.hpp"
#include "tools/called.hpp"

namespace headrace::tools::store_test {
namespace {
namespace fs = std::filesystem;
using testing::ScriptedTrainer;

const std::vector<std::int64_t> kGroups = {3000, 150'000};

class StoreToolTest : public ::testing::Test {
 protected:
  Settings settings(const std::vector<std::string>& paths) const {
    Settings s = testing::all_on_nvme(paths[0]);
    s.nvme_paths = paths;
    s.durable_every = 1;
    s.store = "run-1";
    s.moments = MomentCodec::kBlock8;  // streams whose chunks are shorter than a page
    return s;
  }
  std::string train(const std::vector<std::string>& paths, int steps) const {
    Engine engine(settings(paths));
    ScriptedTrainer trainer(engine, kGroups);
    for (int step = 0; step < steps; ++step)
      trainer.step(script_of(testing::Departure::kNone, 2, false));
    const std::string hashes = trainer.hashes();
    engine.close();
    return hashes;
  }
  std::vector<std::string> words(const std::string& action,
                                 const std::vector<std::string>& paths) const {
    std::vector<std::string> all = {"store", action, "run-1"};
    all.insert(all.end(), paths.begin(), paths.end());
    return all;
  }
  std::string file(const std::string& path, int drive) const {
    return path + "/" + swap::user_directory_name() + "/store-run-1/rank0." +
           std::to_string(drive) + ".store";
  }

  testing::TemporaryDirectory drive_, other_;
};

TEST_F(StoreToolTest, ListsWhatIsThereAndWhoUsesIt) {
  const std::vector<std::string> list = {"store", "list", drive_.string(), "--json", "-"};
  EXPECT_TRUE(nlohmann::json::parse(call(store, list).out)["stores"].empty());
  train({drive_.string()}, 2);
  auto report = nlohmann::json::parse(call(store, list).out);
  ASSERT_EQ(report["stores"].size(), 1u);
  EXPECT_EQ(report["stores"][0]["name"], "run-1");
  EXPECT_EQ(report["stores"][0]["state"], "whole");
  EXPECT_EQ(report["stores"][0]["step"], 2);
  EXPECT_EQ(report["stores"][0]["ranks"], 1);
  EXPECT_EQ(report["stores"][0]["bytes"], fs::file_size(file(drive_.string(), 0)));

  Engine engine(settings({drive_.string()}));
  ScriptedTrainer trainer(engine, kGroups);
  report = nlohmann::json::parse(call(store, list).out);
  EXPECT_EQ(report["stores"][0]["state"], "in use");
  EXPECT_TRUE(report["stores"][0]["step"].is_null());
  const Called removed = call(store, words("remove", {drive_.string()}));
  EXPECT_EQ(removed.exit_code, 2);
  EXPECT_NE(removed.err.find("is in use"), std::string::npos) << removed.err;
  EXPECT_TRUE(fs::exists(file(drive_.string(), 0)));
  EXPECT_EQ(call(store, words("verify", {drive_.string()})).exit_code, 2);
}

TEST_F(StoreToolTest, VerifiesEveryStreamAndNamesTheDamagedTile) {
  const auto drives = drive_.drives(2);
  train(drives, 3);
  const Called whole = call(store, words("verify", {drives[1], drives[0]}));
  EXPECT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  EXPECT_NE(whole.out.find("step 3"), std::string::npos) << whole.out;
  // The last tile's record, one byte behind its header.
  std::uint64_t at = 0, tile = 0;
  std::uint32_t drive = 0;
  {
    const OpenStore open(find_store("run-1", 0, {{.path = drives[0]}, {.path = drives[1]}}));
    tile = open.tiles() - 1;
    drive = open.place_of_record(static_cast<std::uint32_t>(tile)).file;
    at = open.place_of_record(static_cast<std::uint32_t>(tile)).offset_bytes + 4096 + 7;
  }
  std::fstream bytes(file(drives[drive], static_cast<int>(drive)),
                     std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(static_cast<std::streamoff>(at));
  const char flipped = static_cast<char>(bytes.get() ^ 4);
  bytes.seekp(static_cast<std::streamoff>(at));
  bytes.put(flipped);
  bytes.close();
  const Called damaged = call(store, words("verify", drives));
  EXPECT_EQ(damaged.exit_code, 1) << damaged.out << damaged.err;
  EXPECT_NE(damaged.out.find("tile " + std::to_string(tile) + " on " + drives[drive]),
            std::string::npos)
      << damaged.out;
}

TEST_F(StoreToolTest, ACopyGoesOnAsTheStoreDoes) {
  train({drive_.string()}, 2);
  auto copying = words("copy", {drive_.string()});
  copying.insert(copying.end(), {"--to", other_.string()});
  const Called copied = call(store, copying);
  EXPECT_EQ(copied.exit_code, 0) << copied.out << copied.err;
  const Called again = call(store, copying);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("already"), std::string::npos) << again.err;
  EXPECT_EQ(train({drive_.string()}, 1), train({other_.string()}, 1));
}

TEST_F(StoreToolTest, RemovesAllFilesAndNamesThem) {
  const auto drives = drive_.drives(2);
  train(drives, 1);
  const Called removed = call(store, words("remove", drives));
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  for (int drive = 0; drive < 2; ++drive) {
    const std::string path = file(drives[static_cast<std::size_t>(drive)], drive);
    EXPECT_NE(removed.out.find("removed " + path), std::string::npos) << removed.out;
    EXPECT_FALSE(fs::exists(fs::path(path).parent_path()));
  }
  const Called none = call(store, words("remove", drives));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("has no files on these paths"), std::string::npos) << none.err;
}

// ---- what a kill leaves while a store is made ----

TEST_F(StoreToolTest, ListsAStoreThatIsHalfMadeAndRemovesIt) {
  const auto drives = drive_.drives(2);
  for (const bool first_has_its_name : {true, false}) {
    train(drives, 0);
    for (int drive = first_has_its_name ? 1 : 0; drive < 2; ++drive) {
      const fs::path path = file(drives[static_cast<std::size_t>(drive)], drive);
      fs::rename(path, path.parent_path() / (swap::kBeingMade + path.filename().string()));
    }
    const Called listed = call(store, {"store", "list", drives[0], drives[1]});
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
    EXPECT_NE(listed.out.find("run-1: half made"), std::string::npos) << listed.out;
    EXPECT_NE(listed.out.find("headrace store remove run-1"), std::string::npos) << listed.out;
    const Called removed = call(store, words("remove", drives));
    EXPECT_EQ(removed.exit_code, 0) << removed.err;
    for (const std::string& drive : drives)
      EXPECT_FALSE(fs::exists(drive + "/" + swap::user_directory_name())) << removed.out;
  }
}

TEST_F(StoreToolTest, AStoreWithAStepThatLacksAFileIsNotHalfMade) {
  const auto drives = drive_.drives(2);
  train(drives, 1);
  const Called listed = call(store, {"store", "list", drives[0]});
  EXPECT_NE(listed.out.find("run-1: incomplete"), std::string::npos) << listed.out;
}

TEST_F(StoreToolTest, RemovesTheFilesOfEveryRankFromEveryPath) {
  train({drive_.string()}, 1);
  const fs::path path = file(drive_.string(), 0);
  fs::rename(path, path.parent_path() / "rank3.0.store");
  fs::resize_file(path.parent_path() / "rank3.0.store", 7);
  const Called removed = call(store, words("remove", {drive_.string()}));
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_FALSE(fs::exists(path.parent_path()));
}

// ---- ranks that are a commit apart ----

// What a kill between the commits of two ranks leaves.
class StoreOfTwoRanks : public StoreToolTest {
 protected:
  void SetUp() override {
    train_both(3);
    // Rank 1 alone lost its newest record.
    const std::string file = file_of(1);
    const std::uint64_t place_bytes = head_of(file).commit_bytes;
    for (std::uint64_t place = 0; place < swap::kRingPlaces; ++place) {
      const std::uint64_t at = swap::kStoreHeadBytes + place * place_bytes;
      swap::CommitHead record{};
      std::ifstream in(file, std::ios::binary);
      in.seekg(static_cast<std::streamoff>(at));
      in.read(reinterpret_cast<char*>(&record), sizeof record);
      if (record.epoch == 3) overwrite(file, at, std::string(512, 'x'));
    }
  }
  // Returns the step after which the ranks went on.
  std::uint64_t train_both(int steps) const {
    std::uint64_t resumed = 0;
    const auto run = [&](std::shared_ptr<Collective> collective) {
      const bool first = collective->rank() == 0;
      Engine engine(settings({drive_.string()}), {.collective = std::move(collective)});
      ScriptedTrainer trainer(engine, kGroups);
      if (first && engine.resumed()) resumed = engine.resumed()->step;
      for (int step = 0; step < steps; ++step)
        trainer.step(script_of(testing::Departure::kNone, 2, false));
      engine.close();
    };
    auto ranks = testing::make_socket_ranks(2);
    std::thread second(run, std::move(ranks[1]));
    run(std::move(ranks[0]));
    second.join();
    return resumed;
  }
  std::string file_of(int rank) const {
    return drive_.string() + "/" + swap::user_directory_name() + "/store-run-1/rank" +
           std::to_string(rank) + ".0.store";
  }
  static swap::StoreHead head_of(const std::string& file) {
    swap::StoreHead head{};
    std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&head), sizeof head);
    return head;
  }
  static void overwrite(const std::string& file, std::uint64_t at, const std::string& bytes) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out << bytes;
  }
  // Spoils a tile of rank 0, in its slot of an epoch.
  void spoil(std::uint64_t epoch) const {
    std::uint64_t at = 0;
    {
      OpenStore open(find_store("run-1", 0, {{.path = drive_.string()}}));
      open.go_to(epoch);
      at = open.place_of_record(open.tiles() - 1).offset_bytes + swap::kHeaderBytes;
    }
    overwrite(file_of(0), at, std::string(64, 'x'));
  }
};

TEST_F(StoreOfTwoRanks, AreVerifiedAndListedAtTheStepThatBothHave) {
  const Called whole = call(store, words("verify", {drive_.string()}));
  EXPECT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  EXPECT_NE(whole.out.find("rank 0: step 2"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("rank 1: step 2"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("step 3 is not verified"), std::string::npos) << whole.out;
  const Called listed = call(store, {"store", "list", drive_.string()});
  EXPECT_NE(listed.out.find("whole, 2 ranks, step 2"), std::string::npos) << listed.out;
  EXPECT_EQ(train_both(0), 2u);
}

TEST_F(StoreOfTwoRanks, AreDamagedWhereTheStepIsThatBothHave) {
  spoil(2);
  const Called damaged = call(store, words("verify", {drive_.string()}));
  EXPECT_EQ(damaged.exit_code, 1) << damaged.out << damaged.err;
  EXPECT_NE(damaged.out.find("rank 0: step 2"), std::string::npos) << damaged.out;
  EXPECT_NE(damaged.out.find("DAMAGED: tile"), std::string::npos) << damaged.out;
}

TEST_F(StoreOfTwoRanks, AreWholeWhereOnlyAStepIsDamagedThatNobodyNeeds) {
  spoil(3);
  const Called whole = call(store, words("verify", {drive_.string()}));
  EXPECT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  EXPECT_EQ(train_both(0), 2u);
}

TEST_F(StoreOfTwoRanks, AreNeitherWholeNorCopiedWithFilesOfAnOlderCopy) {
  const std::string older = other_.string() + "/older";
  fs::copy_file(file_of(1), older);
  train_both(4);
  fs::copy_file(older, file_of(1), fs::copy_options::overwrite_existing);
  const std::string part = "rank 1 only epoch 2: files of an older copy";
  auto copying = words("copy", {drive_.string()});
  copying.insert(copying.end(), {"--to", other_.string()});
  for (const auto& line : {words("verify", {drive_.string()}), copying}) {
    const Called called = call(store, line);
    EXPECT_EQ(called.exit_code, 1) << called.out;
    EXPECT_NE(called.err.find(part), std::string::npos) << called.err;
  }
  const Called listed = call(store, {"store", "list", drive_.string()});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_NE(listed.out.find("run-1: damaged, 2 ranks"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find(part), std::string::npos) << listed.out;
}

// Two copies that both went on: the same steps and epochs, in different runs.
TEST_F(StoreOfTwoRanks, AreNotVerifiedTogetherWithFilesOfACopyThatWentOn) {
  train_both(1);  // both at step 3
  const auto files = [&] { return std::vector<std::string>{file_of(0), file_of(1)}; };
  const auto keep = [&](const std::string& name) {
    for (int rank = 0; rank < 2; ++rank)
      fs::copy_file(file_of(rank), other_.string() + "/" + name + std::to_string(rank),
                    fs::copy_options::overwrite_existing);
  };
  const auto put_back = [&](const std::string& name, int rank) {
    fs::copy_file(other_.string() + "/" + name + std::to_string(rank), files()[rank],
                  fs::copy_options::overwrite_existing);
  };
  keep("base");
  train_both(2);
  keep("one");
  put_back("base", 0);
  put_back("base", 1);
  train_both(2);
  EXPECT_EQ(call(store, words("verify", {drive_.string()})).exit_code, 0);
  put_back("one", 0);
  const Called mixed = call(store, words("verify", {drive_.string()}));
  EXPECT_EQ(mixed.exit_code, 1) << mixed.out;
  EXPECT_NE(mixed.err.find("rank 1"), std::string::npos) << mixed.err;
  EXPECT_NE(mixed.err.find("the files are of different runs"), std::string::npos) << mixed.err;
}

// ---- stores that cannot be used as they are ----

TEST_F(StoreToolTest, ATruncatedFileIsNamedAndIsNotWhole) {
  train({drive_.string()}, 2);
  const std::string path = file(drive_.string(), 0);
  for (const std::uint64_t size :
       {fs::file_size(path) / 8192 * 6144, std::uint64_t{1} << 20, std::uint64_t{8192}}) {
    fs::resize_file(path, size);
    const std::string part = path + " was truncated: it has ";
    const Called verified = call(store, words("verify", {drive_.string()}));
    EXPECT_EQ(verified.exit_code, 1) << verified.out;
    EXPECT_NE(verified.err.find(part), std::string::npos) << verified.err;
    EXPECT_EQ(verified.err.find("in use"), std::string::npos) << verified.err;
    const Called listed = call(store, {"store", "list", drive_.string()});
    EXPECT_EQ(listed.exit_code, 1) << listed.out;
    EXPECT_NE(listed.out.find("run-1: damaged"), std::string::npos) << listed.out;
    EXPECT_NE(listed.out.find(part), std::string::npos) << listed.out;
    try {
      train({drive_.string()}, 1);
      ADD_FAILURE() << "it went on with " << size << " bytes";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(path), std::string::npos) << text;
      EXPECT_NE(text.find("was truncated"), std::string::npos) << text;
      EXPECT_EQ(text.find("in use"), std::string::npos) << text;
    }
  }
}

TEST_F(StoreToolTest, TwoCopiesOnThePathsAreNoStoreInUse) {
  train({drive_.string()}, 2);
  auto copying = words("copy", {drive_.string()});
  copying.insert(copying.end(), {"--to", other_.string()});
  ASSERT_EQ(call(store, copying).exit_code, 0);
  const Called listed =
      call(store, {"store", "list", drive_.string(), other_.string(), "--json", "-"});
  EXPECT_EQ(listed.exit_code, 1);
  const auto report = nlohmann::json::parse(listed.out)["stores"][0];
  EXPECT_EQ(report["state"], "doubled");
  EXPECT_TRUE(report["ranks"].is_null());
  EXPECT_NE(listed.err.find("run-1: doubled\n"), std::string::npos) << listed.err;
  EXPECT_NE(listed.err.find("two files for drive 0 of rank 0"), std::string::npos) << listed.err;
  EXPECT_NE(listed.err.find("two copies of one store"), std::string::npos) << listed.err;
  EXPECT_EQ(call(store, words("verify", {drive_.string(), other_.string()})).exit_code, 2);
}

TEST_F(StoreToolTest, AFileThatMayNotBeReadIsNotCalledDamaged) {
  train({drive_.string()}, 1);
  const std::string path = file(drive_.string(), 0);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  } else {
    fs::permissions(path, fs::perms::none);
  }
  const Called listed = call(store, {"store", "list", drive_.string()});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_NE(listed.out.find("run-1: unreadable, 1 rank\n"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find(root ? "EPERM" : "EACCES"), std::string::npos) << listed.out;
}

// A backup is often kept like this.
TEST_F(StoreToolTest, ReadsAStoreOnAReadOnlyFileSystem) {
  train({drive_.string()}, 2);
  const std::string mounted = drive_.string();
  const char* const path = mounted.c_str();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(path, path, nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0)
      ::_exit(77);
    const Called listed = call(store, {"store", "list", path});
    EXPECT_NE(listed.out.find("run-1: whole, 1 rank, step 2"), std::string::npos) << listed.out;
    const Called verified = call(store, words("verify", {path}));
    EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
    auto copying = words("copy", {path});
    copying.insert(copying.end(), {"--to", other_.string()});
    const Called copied = call(store, copying);
    EXPECT_EQ(copied.exit_code, 0) << copied.out << copied.err;
    const Called removed = call(store, words("remove", {path}));
    EXPECT_EQ(removed.exit_code, 1) << removed.err;
    EXPECT_NE(removed.err.find("EROFS"), std::string::npos) << removed.err;
    std::fflush(nullptr);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "needs root, to mount a directory read-only";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(train({drive_.string()}, 1), train({other_.string()}, 1));
}

// A power loss leaves the folder and not the files.
TEST_F(StoreToolTest, ListsAStoreWithoutFilesAsEmpty) {
  const fs::path folder = fs::path(file(drive_.string(), 0)).parent_path();
  fs::create_directories(folder);
  const Called listed = call(store, {"store", "list", drive_.string()});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_NE(listed.out.find("run-1: empty, 0 ranks"), std::string::npos) << listed.out;
}

TEST_F(StoreToolTest, RefusesWhatItCannotDo) {
  const std::string path = drive_.string();
  for (const auto& [line, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "action is missing"},
           {{"burn"}, "'burn' is no action"},
           {{"list"}, "needs a path"},
           {{"verify", "a"}, "store's name"},
           {{"verify", "/x", path}, "no store's name"},
           {{"verify", "a", path}, "has no files on these paths"},
           {{"list", path + "/nothing"}, "not a directory"},
           {{"copy", "a", path}, "--to"},
           {{"remove", "a", path, "--to", path}, "--to"}}) {
    std::vector<std::string> all = {"store"};
    all.insert(all.end(), line.begin(), line.end());
    const Called called = call(store, all);
    EXPECT_EQ(called.exit_code, 2) << part;
    EXPECT_NE(called.err.find(part), std::string::npos) << called.err;
  }
}
}  // namespace
}  // namespace headrace::tools::store_test
