// SPDX-License-Identifier: Apache-2.0
// durable_store_test: which stores a durable engine takes. One that is of another run, in use or
// damaged is refused by name and left as it is; one that was never whole is begun anew.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <thread>

#include "base/unique_fd.hpp"
#include "engine/parts.hpp"
#include "support/durable_training.hpp"
#include "support/expect_code.hpp"
#include "support/store_renames.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/store_format.hpp"

// In the place of the C library's.
extern "C" int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  if (std::string_view(to).ends_with(".store") && headrace::testing::store_renames_to_live >= 0 &&
      headrace::testing::store_renames_to_live-- == 0)
    ::raise(SIGKILL);
  return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, 0));
}

namespace headrace::durable_store_test {
namespace {
using namespace durable_training;
using testing::TemporaryDirectory;

// ---- refusals ----

class DurableRefusal : public ::testing::Test {
 protected:
  DurableRefusal() { train_run_to(settings_, 2); }
  // Refused with these words and nothing written; afterwards the store goes on.
  void expect_refused(Code code, const std::string& words, const std::function<void()>& open) {
    const auto before = contents();
    try {
      open();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_EQ(contents(), before);
  }
  void open(const Settings& settings, const std::vector<std::int64_t>& groups = kGroups) {
    Engine engine(settings, quiet());
    const ScriptedTrainer trainer(engine, groups);
  }
  std::vector<std::string> contents() const {
    std::vector<std::string> all;
    for (const auto& path : files()) {
      std::ifstream file(path, std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return all;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      if (entry.path().extension() == ".store") found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  void change(std::size_t file, std::uint64_t offset, std::uint64_t bytes) {
    std::fstream stream(files()[file], std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = offset; at < offset + bytes; ++at) {
      stream.seekg(static_cast<std::streamoff>(at));
      const int byte = stream.get();
      stream.seekp(static_cast<std::streamoff>(at));
      stream.put(static_cast<char>(byte ^ 1));
    }
  }
  // The two files as they were, or one of them.
  void put_back(const std::vector<std::string>& contents, std::size_t first = 0,
                std::size_t last = 1) {
    for (std::size_t file = first; file <= last; ++file)
      std::ofstream(files()[file], std::ios::binary) << contents[file];
  }
  void train_on(std::uint64_t last) { train_run_to(settings_, last); }

  const TemporaryDirectory directory_;
  const std::vector<std::string> paths_ = directory_.drives(2);
  const Settings settings_ = durable(paths_);
};

TEST_F(DurableRefusal, NamesTheSettingOrParameterThatDiffers) {
  Settings other = settings_;
  other.master = MasterLayout::kF32;
  expect_refused(Code::kWrongState, "headrace.master \"split\", this run has \"f32\"",
                 [&] { open(other); });
  other = settings_;
  other.tile_elements = 131072;
  expect_refused(Code::kWrongState, "headrace.tile_elements 65536, this run has 131072",
                 [&] { open(other); });
  other = settings_;
  other.rounding_seed = 7;
  expect_refused(Code::kWrongState, "headrace.rounding_seed 0, this run has 7",
                 [&] { open(other); });
  expect_refused(Code::kWrongState, "parameters 6, this run has 4", [&] {
    open(settings_, {3000, 150'000});
  });
  expect_refused(Code::kWrongState,
                 "'group.1.weight', has shape [150000] in the store and [150001] in this run", [&] {
                   open(settings_, {3000, 150'001, 70'000});
                 });
  Engine engine(settings_, quiet());
  engine.set_default_hyperparameters({.weight_decay = 0.5f});
  expect_refused(Code::kWrongState,
                 "hyperparameter set 0 has weight_decay 0.01 in the store and 0.5 in this run",
                 [&] { const ScriptedTrainer trainer(engine, kGroups); });
  open(settings_);
}

// Registers one parameter; trains one step where there is none yet.
void open_with(const std::string& path, const std::string& group, ParameterSpec spec,
               bool other_set = false) {
  Engine engine(durable({path}), quiet());
  const HyperparameterSetId set = engine.add_hyperparameters({.beta1 = 0.5f});
  if (other_set) spec.hyperparameters = set;
  const GroupId id = engine.add_group(group, {spec, {"other", DType::kF32, {8}}});
  engine.freeze();
  engine.load(id,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  engine.set_trainer_state({});
  const float gradient[8] = {};
  engine.add_gradient({1}, gradient, DType::kF32);
  engine.step({});
  engine.close();
}

TEST(DurableTerms, NameTheAttributeOfAParameterThatDiffersAndBothValues) {
  const TemporaryDirectory directory;
  const ParameterSpec spec{"b.c", DType::kF32, {4, 2}};
  open_with(directory.string(), "a", spec);
  struct Other {
    std::string group, words;
    ParameterSpec spec;
    bool other_set = false;
  };
  const std::string named = "parameter 0, 'a.b.c', ";
  for (const Other& other : std::vector<Other>{
           {"a",
            "parameter 0 is 'a.b.c' in the store and 'a.b.d' in this run",
            {"b.d", DType::kF32, {4, 2}}},
           {"a.b",
            named + "is of group 'a' in the store and 'a.b' in this run",
            {"c", DType::kF32, {4, 2}}},
           {"a",
            named + "has shape [4, 2] in the store and [2, 4] in this run",
            {"b.c", DType::kF32, {2, 4}}},
           {"a",
            named + "has type F32 in the store and BF16 in this run",
            {"b.c", DType::kBf16, {4, 2}}},
           {"a",
            named + "is trained in the store and frozen in this run",
            {"b.c", DType::kF32, {4, 2}, {}, true}},
           {"a", named + "has another hyperparameter set in the store than set 1", spec, true}}) {
    EXPECT_CODE(Code::kWrongState,
                open_with(directory.string(), other.group, other.spec, other.other_set),
                other.words);
  }
}

TEST_F(DurableRefusal, FollowsResume) {
  Settings other = settings_;
  other.resume = headrace::Resume::kNever;
  expect_refused(Code::kWrongState, "exists, and headrace.resume is \"never\"",
                 [&] { open(other); });
  other = settings_;
  other.resume = headrace::Resume::kRequire;
  open(other);
  other.store = "another";
  expect_refused(Code::kNotFound, "headrace.resume is \"require\"", [&] { open(other); });
}

TEST_F(DurableRefusal, NamesTheDriveThatIsMissing) {
  Settings one = settings_;
  one.nvme_paths = {paths_[0]};
  expect_refused(Code::kNotFound, "on 2 drives, and the settings name 1 paths", [&] { open(one); });
  one.nvme_paths = {paths_[1]};
  expect_refused(Code::kNotFound, "has a drive 1 in", [&] { open(one); });
  const auto moved = files()[0].string() + ".away";
  std::filesystem::rename(files()[0], moved);
  expect_refused(Code::kNotFound, "lacks its file of drive 0", [&] { open(settings_); });
}

// Two engines look for a store that is not there; one makes it, commits and ends meanwhile.
TEST(NewStore, DoesNotReplaceOneThatCameMeanwhile) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  engine::EngineParts parts;
  parts.make_conductor = [&] {
    EXPECT_EQ(in_a_child([&] {
                Engine other(settings, quiet());
                ScriptedTrainer trainer(other, kGroups);
                train_to(other, trainer, 2);
                other.close();
              }),
              0);
    return async::make_conductor_asio();
  };
  Engine late = engine::engine_with_parts(settings, quiet(), parts);
  EXPECT_CODE(Code::kWrongState, const ScriptedTrainer trainer(late, kGroups),
              "was made by another engine since this one looked for it");
  late.close();
  Engine again(settings, quiet());
  ScriptedTrainer trainer(again, kGroups);
  EXPECT_EQ(again.resumed()->step, 2u);
  EXPECT_EQ(trainer.hashes(), expected()[2]);
}

// As a killed engine leaves that slept.
TEST(ResumedStore, RemovesDeadRunsOfItsPaths) {
  const TemporaryDirectory directory;
  const Settings settings = durable({directory.string()});
  train_run_to(settings, 1);
  Settings scratch = settings;
  scratch.durable_every = 0;
  scratch.store.clear();
  EXPECT_EQ(in_a_child([&] {
              Engine killed(scratch, quiet());
              const ScriptedTrainer trainer(killed, kGroups);
              ::kill(::getpid(), SIGKILL);
            }),
            -SIGKILL);
  const std::string user = directory.string() + "/" + swap::user_directory_name();
  const auto entries = [&] { return std::distance(std::filesystem::directory_iterator(user), {}); };
  EXPECT_EQ(entries(), 2) << "the store, and the dead run";
  Engine resumed(settings, quiet());
  const ScriptedTrainer trainer(resumed, kGroups);
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableRefusal, IsInUseByOneEngineAtATime) {
  Engine engine(settings_, quiet());
  const ScriptedTrainer trainer(engine, kGroups);
  try {
    open(settings_);
    ADD_FAILURE() << "two engines on one store";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kWrongState);
    EXPECT_NE(std::string(error.what()).find("is in use"), std::string::npos);
  }
}

TEST_F(DurableRefusal, FindsDamage) {
  change(0, 20, 1);
  expect_refused(Code::kCorrupt, "its header's checksum differs", [&] { open(settings_); });
  change(0, 20, 1);
  std::filesystem::resize_file(files()[1], 8192);
  expect_refused(Code::kIo, "the file ends there", [&] { open(settings_); });
}

void wipe_ring(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  file.seekp(swap::kStoreHeadBytes);
  file << std::string(swap::kRingPlaces * head.commit_bytes, '\0');
}

// The slots are whole, and nothing says which of them belong together: that is no new store.
TEST_F(DurableRefusal, NamesRingsThatWereWiped) {
  for (const auto& file : files()) wipe_ring(file);
  expect_refused(Code::kCorrupt,
                 "no commit record is left: " + files()[0].string() + " and " + files()[1].string(),
                 [&] { open(settings_); });
  expect_refused(Code::kCorrupt, "restore the store from a copy", [&] { open(settings_); });
}

TEST_F(DurableRefusal, GoesOnByTheRingOfAnotherDrive) {
  wipe_ring(files()[0]);
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

// One copy is killed before it commits anything, and the other commits the same step: the same
// generations, in slots of different runs.
TEST_F(DurableRefusal, TellsCopiesApartOfWhichOneWasKilledInMidUpdate) {
  const auto before = contents();
  ASSERT_EQ(in_a_child([&] {
              Settings settings = durable(paths_, 100);
              settings.update_mode = UpdateMode::kBarrier;
              Engine engine(settings, quiet());
              ScriptedTrainer trainer(engine, kGroups);
              train_to(engine, trainer, 3);
              ::raise(SIGKILL);
            }),
            -SIGKILL);
  const auto killed = contents();
  put_back(before);
  train_on(3);
  put_back(killed, 0, 0);
  expect_refused(Code::kCorrupt, "the files are of different runs", [&] { open(settings_); });
}

// No record of one drive has the number of one of the other.
TEST_F(DurableRefusal, NamesAFileOfAnOlderCopy) {
  const auto before = contents();
  train_on(kSteps);
  const auto expect_named = [&] {
    put_back(before, 0, 0);
    expect_refused(Code::kCorrupt, files()[0].string() + " is of an older copy",
                   [&] { open(settings_); });
  };
  const auto newest = contents();
  expect_named();
  // Nor where the ring has records of openings alone, and of no commit.
  put_back(newest);
  for (int opening = 0; opening < 4; ++opening) train_on(kSteps);
  expect_named();
}

// A drive that lost the writes of one record, and has the next: no older copy.
TEST_F(DurableRefusal, GoesOnWhereARecordBeforeTheNewestWasLost) {
  const auto before = contents();
  train_on(3);  // record 4 when it is opened, 5 of the commit
  auto lost = contents();
  swap::StoreHead head;
  std::memcpy(&head, lost[0].data(), sizeof head);
  for (std::size_t file = 0; file < 2; ++file) {
    for (std::uint32_t copy = 0; copy < swap::kCopies; ++copy) {
      const swap::Extent at = swap::place_of(4, copy, 0, head.commit_bytes);
      lost[file].replace(at.offset_bytes, at.size_bytes, before[file], at.offset_bytes,
                         at.size_bytes);
    }
  }
  put_back(lost);
  std::string log;
  Engine engine(settings_, {.log = [&](LogLevel, std::string_view text) { log += text; }});
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_NE(log.find("it lacks commit record 4"), std::string::npos) << log;
  EXPECT_EQ(engine.resumed()->step, 3u);
  EXPECT_EQ(trainer.hashes(), expected()[3]);
}

// One copy of the newest record is damaged: the other serves, after all of it was verified.
TEST_F(DurableRefusal, GoesOnByAnotherCopyOfARecord) {
  for (std::uint64_t page = 1; page < 4; ++page) change(0, 4096 * page + 200, 1);
  std::string log;
  Engine engine(settings_, {.log = [&](LogLevel, std::string_view text) { log += text; }});
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_NE(log.find("torn or damaged"), std::string::npos) << log;
  EXPECT_EQ(engine.resumed()->step, 2u);
  train_to(engine, trainer, kSteps);
  EXPECT_EQ(trainer.hashes(), expected()[kSteps]);
}

// ---- stores that were never whole ----

// On every copy, as a crash leaves it that comes before the sync.
void tear_first_commit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  swap::StoreHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  for (std::uint32_t copy = 0; copy < swap::kCopies; ++copy) {
    const swap::Extent at = swap::place_of(swap::kFirstCommitRoot, copy, 0, head.commit_bytes);
    file.seekp(static_cast<std::streamoff>(at.offset_bytes));
    file << std::string(512, 'x');
  }
}

// What a kill leaves between the renames of two drives, or before the first.
class HalfMadeStore : public ::testing::Test {
 protected:
  void make(std::uint64_t steps, std::size_t first_without_name = 1) {
    train_run_to(settings_, steps);
    for (std::size_t drive = first_without_name; drive < paths_.size(); ++drive)
      std::filesystem::rename(file(drive), file(drive, swap::kBeingMade));
  }
  std::filesystem::path file(std::size_t drive, const std::string& prefix = "") const {
    return paths_[drive] + "/" + swap::user_directory_name() + "/store-run/" + prefix + "rank0." +
           std::to_string(drive) + ".store";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      if (!entry.is_directory()) found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  const std::vector<std::string> whole_ = {"rank0.0.store", "rank0.1.store"};
  const TemporaryDirectory directory_;
  const std::vector<std::string> paths_ = directory_.drives(2);
  const Settings settings_ = durable(paths_);
};

TEST_F(HalfMadeStore, IsRemovedAndBegunAnewInWhateverOrderOfThePaths) {
  for (const std::size_t without_name : {1u, 0u}) {
    for (const bool turned : {false, true}) {
      SCOPED_TRACE(std::to_string(without_name) + (turned ? " turned" : ""));
      make(0, without_name);
      Settings settings = settings_;
      if (turned) std::ranges::reverse(settings.nvme_paths);
      for (const std::uint64_t step : {0, 1}) {
        Engine engine(settings, quiet());
        ScriptedTrainer trainer(engine, kGroups);
        ASSERT_EQ(engine.resumed() ? engine.resumed()->step : 0, step);
        ASSERT_EQ(trainer.hashes(), expected()[step]);
        train_to(engine, trainer, step + 1);
        engine.close();
      }
      EXPECT_EQ(names(), whole_);
      for (const std::string& path : paths_)
        std::filesystem::remove_all(path + "/" + swap::user_directory_name());
    }
  }
}

// The renames are some syncs apart.
TEST_F(HalfMadeStore, IsWhatAKillBetweenTheRenamesOfTwoDrivesLeaves) {
  bool between = false;
  for (int attempt = 0; attempt < 50 && !between; ++attempt) {
    for (const std::string& path : paths_)
      std::filesystem::remove_all(path + "/" + swap::user_directory_name());
    in_a_child([&] {
      std::thread([&] {
        while (!std::filesystem::exists(file(0))) {
        }
        ::kill(::getpid(), SIGKILL);
      }).detach();
      make(0, paths_.size());
    });
    between = std::filesystem::exists(file(0)) && !std::filesystem::exists(file(1));
  }
  ASSERT_TRUE(between);
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_EQ(trainer.hashes(), expected()[0]);
  EXPECT_EQ(names(), whole_);
}

// The first comes in mid-commit, the second between the renames of the store that is made anew.
TEST_F(HalfMadeStore, IsWhatTwoKillsAroundTheFirstCommitLeave) {
  make(1, paths_.size());
  for (const std::size_t drive : {0u, 1u}) tear_first_commit(file(drive));
  ASSERT_EQ(in_a_child([&] {
              testing::store_renames_to_live = 1;
              Engine engine(settings_, quiet());
              const ScriptedTrainer trainer(engine, kGroups);
            }),
            -SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1))) << "the one before went first";
  Engine engine(settings_, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  EXPECT_EQ(trainer.hashes(), expected()[0]);
  EXPECT_EQ(names(), whole_);
}

TEST_F(HalfMadeStore, HoldsNoStepForAResumeThatRequiresOne) {
  make(0);
  Settings settings = settings_;
  settings.resume = headrace::Resume::kRequire;
  Engine engine(settings, quiet());
  EXPECT_CODE(Code::kNotFound, const ScriptedTrainer trainer(engine, kGroups),
              "holds no committed step");
  EXPECT_EQ(names().size(), 2u) << "nothing was removed";
}

TEST_F(HalfMadeStore, IsNoneWithACommittedStepOrAnythingUnknown) {
  make(2);
  const auto refused = [&] {
    Engine engine(settings_, quiet());
    EXPECT_CODE(Code::kNotFound, const ScriptedTrainer trainer(engine, kGroups),
                "lacks its file of drive 1 of 2");
    EXPECT_TRUE(std::filesystem::exists(file(0)));
    EXPECT_TRUE(std::filesystem::exists(file(1, swap::kBeingMade)));
  };
  refused();
  std::filesystem::remove(file(0));
  std::filesystem::remove(file(1, swap::kBeingMade));
  make(0);
  wipe_ring(file(0));
  refused();
}

TEST_F(HalfMadeStore, ThatIsBeingMadeIsInUse) {
  make(0);
  const base::UniqueFd maker(::open(file(1, swap::kBeingMade).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(maker.get(), LOCK_EX | LOCK_NB), 0);
  Engine engine(settings_, quiet());
  EXPECT_CODE(Code::kWrongState, const ScriptedTrainer trainer(engine, kGroups), "is in use");
  EXPECT_TRUE(std::filesystem::exists(file(0)));
}

// ---- paths ----

TEST(DurablePaths, ThatAreOneDirectoryAreRefusedByBothNames) {
  const TemporaryDirectory directory;
  const std::string one = directory.string() + "/one", two = directory.string() + "/two";
  std::filesystem::create_directory(one);
  std::filesystem::create_directory_symlink(one, two);
  const std::string named = "'" + one + "' and '" + two + "' are one directory";
  const auto expect_named = [&] {
    Engine engine(durable({one, two}), quiet());
    EXPECT_CODE(Code::kInvalidArgument, const ScriptedTrainer trainer(engine, kGroups), named);
    EXPECT_TRUE(std::filesystem::is_empty(one));
  };
  expect_named();
  std::filesystem::remove(two);
  std::filesystem::create_directory(two);
  const int mounted = in_a_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(one.c_str(), two.c_str(), nullptr, MS_BIND, nullptr) != 0)
      ::_exit(77);
    expect_named();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  if (mounted == 77) GTEST_SKIP() << "needs root, to mount a directory twice";
  EXPECT_EQ(mounted, 0);
}

// A store has all state on its drives: memory does not help.
TEST(DurablePaths, WithoutRoomAreNamedWithTheBytesAndTheSettingThatHelps) {
  const TemporaryDirectory directory;
  const std::uint64_t free = std::filesystem::space(directory.path()).available;
  if (free > (1ull << 43)) GTEST_SKIP() << "too much is free for a table of all tiles";
  Settings settings = durable({directory.string()});
  settings.tile_elements = 4 << 20;
  engine::EngineParts parts;
  parts.machine_left_bytes = [] { return 0; };  // memory is not what this is about
  Engine engine(engine::engine_with_parts(settings, quiet(), parts));
  const auto rows = static_cast<std::int64_t>(free / 24 / 65536 + 65536);
  engine.add_group("h.0", {{"weight", DType::kBf16, {rows, 65536}, {}}});
  const Error error = testing::error_of([&] { engine.freeze(); });
  EXPECT_EQ(error.code(), Code::kNoSpace) << error.what();
  const std::string text = error.what();
  for (const char* const part : {"the plan needs ", " bytes) are free", "headrace.nvme_paths"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find("host_budget_bytes"), std::string::npos) << text;
}

// A store stays on its drives: another path alone is no way out.
TEST(DurablePaths, ThatBecomeFullAreNamedWithTheFreeBytesAndTheWayOut) {
  const TemporaryDirectory directory;
  Engine engine(engine::engine_with_parts(durable({directory.string()}), quiet(),
                                          with_faults({.enospc = 1, .skip_requests = 200})));
  ScriptedTrainer trainer(engine, kGroups);
  const Error error = testing::error_of([&] { train_to(engine, trainer, kSteps); });
  EXPECT_EQ(error.code(), Code::kNoSpace) << error.what();
  const std::string text = error.what();
  for (const char* const part :
       {"rank0.0.store", "ENOSPC", " are free there", "headrace store copy", "headrace.nvme_paths"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find("name another nvme_path"), std::string::npos) << text;
}

// Every byte of a slot that counts is covered: a flipped one is found before or when it is used.
TEST_F(DurableRefusal, NeverUsesAFlippedByte) {
  std::uint64_t found = 0;
  const std::uint64_t size = std::filesystem::file_size(files()[0]);
  for (std::uint64_t at = 40960; at < size; at += 40'961) {
    change(0, at, 1);
    try {
      Engine engine(settings_, quiet());
      ScriptedTrainer trainer(engine, kGroups);
      EXPECT_EQ(trainer.hashes(), expected()[2]);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
      ++found;
    }
    change(0, at, 1);
  }
  EXPECT_GT(found, 5u);
}

// A new run finds the same damage on whatever drive: a store is not left by starting again.
TEST_F(DurableRefusal, SaysOfDamagedSlotsThatTheStoreIsToBeRestored) {
  std::ifstream file(files()[0], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t headers = 0, bodies = 0;
  for (std::uint64_t page = 0; page + 4096 < bytes.size(); page += 4096) {
    if (bytes.compare(page, 8, "hrrecord") != 0) continue;
    for (const std::uint64_t at : {page + 100, page + 4096 + 7}) {
      change(0, at, 1);
      try {
        Engine engine(settings_, quiet());
        ScriptedTrainer trainer(engine, kGroups);
        EXPECT_EQ(trainer.hashes(), expected()[2]) << "only of the slot that does not count";
      } catch (const Error& error) {
        const std::string text = error.what();
        headers += text.find("the record's header is not what was written") != std::string::npos;
        bodies += text.find("the checksum differs from what was written") != std::string::npos;
        EXPECT_NE(
            text.find("was changed or the drive is failing. Restore the store from a copy, or "
                      "name another headrace.store."),
            std::string::npos)
            << text;
      }
      change(0, at, 1);
    }
  }
  EXPECT_GT(headers, 0u);
  EXPECT_GT(bodies, 0u);
}
}  // namespace
}  // namespace headrace::durable_store_test
