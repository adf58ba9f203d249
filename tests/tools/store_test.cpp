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

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "store/open_store.hpp"
#include "support/all_on_nvme.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
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
