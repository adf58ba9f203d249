// SPDX-License-Identifier: Apache-2.0
// inspect_test: `headrace inspect` on what an engine has written, whole and damaged.
#include "inspect/inspect.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/record.hpp"
#include "swap/store_format.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::inspect_test {
namespace {
namespace fs = std::filesystem;

const InspectionProgress kQuiet = [](std::uint64_t) {};

// A network after three steps, all of it on NVMe, and a copy of its swap file.
class InspectTest : public ::testing::Test {
 protected:
  void train(Checksums checksums = Checksums::kOn) {
    Settings settings = testing::all_on_nvme(drive_.string());
    settings.checksums = checksums;
    device_ = device::make_computing_host();
    engine_ = std::make_unique<Engine>(settings, EngineOptions{.device = device_});
    testing::Mlp network(*engine_, *device_, {.layers = 3, .width = 300});
    for (int step = 0; step < 3; ++step) network.train_step();
    engine_->finish_step();
    const std::vector<std::string> files = find_swap_files(drive_.string());
    ASSERT_EQ(files.size(), 1u);
    live_ = files[0];
    copy_ = copies_.string() + "/rank0.0.swap";
    fs::copy_file(live_, copy_, fs::copy_options::overwrite_existing);
  }

  swap::RecordHeader header_at(std::uint64_t offset) const {
    swap::RecordHeader header;
    std::ifstream file(copy_, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    return header;
  }
  // Where the first record lies.
  std::uint64_t first_record() const {
    for (std::uint64_t at = 0; at < fs::file_size(copy_); at += 4096) {
      if (std::string_view(header_at(at).magic, 8) == "hrrecord") return at;
    }
    ADD_FAILURE() << "no record in " << copy_;
    return 0;
  }
  void write_header(std::uint64_t offset, swap::RecordHeader header) const {
    swap::finish_header(header);
    std::fstream file(copy_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
  }
  void flip_bit(std::uint64_t offset) const {
    std::fstream file(copy_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 4));
  }

  const testing::TemporaryDirectory drive_, copies_;
  std::shared_ptr<device::ComputingDevice> device_;
  std::unique_ptr<Engine> engine_;
  PlanReport plan_;
  std::string live_, copy_;
};

TEST_F(InspectTest, FindsEveryRecordAndWeightOfALiveRunWhole) {
  train();
  const SwapInspection found = inspect_swap_file(live_, kQuiet);
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  EXPECT_EQ(found.superseded, 0u);
  EXPECT_EQ(found.unchecked_bytes, 0u);
  EXPECT_EQ(found.size_bytes, fs::file_size(live_));
  ASSERT_EQ(found.runs.size(), 1u);
  EXPECT_EQ(fs::path(live_).parent_path().filename(), found.runs.begin()->first);
  // Loaded once, then three steps; the parameter without a gradient in one of them has fewer.
  EXPECT_EQ(found.last_generation, 4u);
  std::uint64_t bytes = 0;
  for (const auto& [name, totals] : found.streams) {
    EXPECT_EQ(totals.streams == found.records, name != "master" && name != "residual") << name;
    bytes += totals.size_bytes;
  }
  EXPECT_TRUE(found.streams.contains("weight"));
  EXPECT_EQ(found.verified_bytes, bytes);
  EXPECT_EQ(ranges_text(found.numbers), "0 to " + std::to_string(found.records - 1));
}

TEST_F(InspectTest, NamesTheStreamAndThePlaceOfAFlippedBit) {
  train();
  const std::uint64_t record = first_record();
  const swap::RecordHeader header = header_at(record);
  for (std::uint32_t s = 0; s < header.streams; ++s) {
    const swap::StreamEntry& entry = header.stream[s];
    const bool elsewhere = (entry.offset_bytes & swap::kElsewhere) != 0;
    const std::uint64_t at =
        elsewhere ? entry.offset_bytes & ~swap::kElsewhere : record + entry.offset_bytes;
    flip_bit(at + entry.size_bytes - 1);
    const SwapInspection found = inspect_swap_file(copy_, kQuiet);
    ASSERT_EQ(found.damaged, 1u) << entry.name;
    const Damage& damage = found.damage[0];
    EXPECT_EQ(damage.record, header.record);
    EXPECT_EQ(damage.generation, header.generation);
    EXPECT_EQ(damage.offset_bytes, at + (entry.checksums - 1) * swap::chunk_bytes(header, entry));
    EXPECT_TRUE(damage.what.starts_with("stream " + std::string(entry.name) + ",")) << damage.what;
    flip_bit(at + entry.size_bytes - 1);
  }
  EXPECT_EQ(inspect_swap_file(copy_, kQuiet).damaged, 0u) << "flipped back";
}

TEST_F(InspectTest, NamesADamagedHeaderAndGoesOnBehindIt) {
  train();
  const std::uint64_t record = first_record();
  const std::uint64_t all = inspect_swap_file(copy_, kQuiet).records;
  flip_bit(record + 100);
  const SwapInspection found = inspect_swap_file(copy_, kQuiet);
  ASSERT_EQ(found.damaged, 1u);
  EXPECT_EQ(found.damage[0].offset_bytes, record);
  EXPECT_NE(found.damage[0].what.find("header checksum"), std::string::npos)
      << found.damage[0].what;
  EXPECT_EQ(found.records, all - 1);
}

TEST_F(InspectTest, AHeaderWhoseMagicIsHitIsDamageAtItsPlace) {
  train();
  const std::uint64_t record = first_record();
  const std::uint64_t number = header_at(record).record;
  flip_bit(record + 3);
  const SwapInspection found = inspect_swap_file(copy_, kQuiet);
  ASSERT_EQ(found.damaged, 1u) << inspection_text({found});
  EXPECT_EQ(found.damage[0].offset_bytes, record);
  EXPECT_EQ(found.damage[0].record, number);
  EXPECT_NE(found.damage[0].what.find("magic"), std::string::npos) << found.damage[0].what;
  EXPECT_EQ(found.lost_records, 0u) << "it is found, and damaged";
}

TEST_F(InspectTest, ARecordWithoutAHeaderIsMissed) {
  train();
  const SwapInspection whole = inspect_swap_file(copy_, kQuiet);
  std::fstream(copy_, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(first_record()))
      .write(std::string(4096, '\0').data(), 4096);
  const SwapInspection zeroed = inspect_swap_file(copy_, kQuiet);
  EXPECT_EQ(zeroed.lost_records, 1u) << inspection_text({zeroed});
  EXPECT_EQ(zeroed.damaged, 1u);
  EXPECT_EQ(zeroed.records, whole.records - 1);
  const std::string report = copies_.string() + "/report.json";
  const Ran ran = run_headrace("inspect " + copy_ + " --json " + report);
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  EXPECT_NE(ran.out.find("DAMAGED: 1 of " + std::to_string(whole.records) + " records not found"),
            std::string::npos)
      << ran.out;
  EXPECT_EQ(ran.out.find("all whole"), std::string::npos) << ran.out;
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(report))["files"][0]["lost_records"], 1);
  // Cut off where its last record begins.
  fs::copy_file(live_, copy_, fs::copy_options::overwrite_existing);
  std::uint64_t last = 0;
  for (std::uint64_t at = 0; at < fs::file_size(copy_); at += 4096)
    if (std::string_view(header_at(at).magic, 8) == "hrrecord") last = at;
  fs::resize_file(copy_, last);
  EXPECT_EQ(inspect_swap_file(copy_, kQuiet).lost_records, 1u);
}

// Their numbers have gaps, and no record is lost.
TEST_F(InspectTest, RecordsThatStayInMemoryOrLieOnAnotherDriveAreNotMissed) {
  Settings settings = testing::all_on_nvme(drive_.string());
  settings.nvme_paths = drive_.drives(2);
  settings.update_slots = 1;
  const auto inspected = [&] {
    const auto device = device::make_computing_host();
    Engine engine(settings, EngineOptions{.device = device});
    testing::Mlp network(engine, *device, {.layers = 12, .width = 300});
    network.train_step();
    engine.finish_step();
    plan_ = engine.plan();
    std::vector<SwapInspection> files;
    for (const std::string& drive : settings.nvme_paths) {
      for (const std::string& file : find_swap_files(drive))
        files.push_back(inspect_swap_file(file, kQuiet));
    }
    engine.close();
    return files;
  };
  const std::vector<SwapInspection> all = inspected();
  settings.host_budget_bytes = plan_.host_bytes + plan_.nvme_bytes / 2;
  const std::vector<SwapInspection> some = inspected();
  ASSERT_EQ(all.size(), 2u);
  ASSERT_EQ(some.size(), 2u);
  for (std::size_t drive = 0; drive < 2; ++drive) {
    for (const SwapInspection& file : {all[drive], some[drive]}) {
      EXPECT_EQ(file.damaged, 0u) << inspection_text({file});
      EXPECT_EQ(file.records_in_file, file.records);
    }
  }
  EXPECT_LT(some[0].records + some[1].records, all[0].records + all[1].records);
  EXPECT_NE(ranges_text(all[0].numbers).find(','), std::string::npos) << "gaps";
}

TEST_F(InspectTest, ATornRecordIsNotWhole) {
  train();
  const std::uint64_t record = first_record();
  const swap::RecordHeader header = header_at(record);
  // The second half of the record is what lay there before: zeros.
  const std::uint64_t end = header.stream[1].offset_bytes + header.stream[1].size_bytes;
  std::fstream file(copy_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(record + end / 2));
  const std::vector<char> zeros(end / 2);
  file.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
  file.close();
  const SwapInspection found = inspect_swap_file(copy_, kQuiet);
  EXPECT_GE(found.damaged, 1u);
  for (const Damage& damage : found.damage) EXPECT_EQ(damage.record, header.record);
}

TEST_F(InspectTest, SaysThatATruncatedFileWasCutOff) {
  train();
  fs::resize_file(copy_, first_record() + 8192);
  const SwapInspection found = inspect_swap_file(copy_, kQuiet);
  ASSERT_GE(found.damaged, 1u);
  EXPECT_NE(found.damage[0].what.find("past the file's end"), std::string::npos)
      << found.damage[0].what;
}

TEST_F(InspectTest, SaysWhatWasWrittenWithoutChecksums) {
  train(Checksums::kOff);
  const SwapInspection found = inspect_swap_file(live_, kQuiet);
  EXPECT_EQ(found.verified_bytes, 0u);
  EXPECT_GT(found.unchecked_bytes, 0u);
  EXPECT_NE(inspection_text({found}).find("without checksums"), std::string::npos);
}

TEST_F(InspectTest, FindsTheFilesOfARunAUserAndAPath) {
  train();
  const fs::path run = fs::path(live_).parent_path();
  const std::vector<std::string> wanted{live_};
  EXPECT_EQ(find_swap_files(live_), wanted);
  EXPECT_EQ(find_swap_files(run.string()), wanted);
  EXPECT_EQ(find_swap_files(run.parent_path().string()), wanted);
  fs::create_directory_symlink(run, copies_.string() + "/headrace-link");
  fs::create_directories(copies_.string() + "/other/deeper");
  fs::copy_file(live_, copies_.string() + "/other/deeper/some.swap");
  EXPECT_EQ(find_swap_files(copies_.string()), std::vector<std::string>{copy_});
  EXPECT_THROW(find_swap_files(copies_.string() + "/nothing"), Error);
  engine_->close();
  EXPECT_TRUE(find_swap_files(drive_.string()).empty());
}

TEST_F(InspectTest, WorksOnAFileThatMayOnlyBeRead) {
  train();
  fs::permissions(copy_, fs::perms::owner_read);
  const auto before = fs::last_write_time(copy_);
  EXPECT_EQ(inspect_swap_file(copy_, kQuiet).damaged, 0u);
  EXPECT_EQ(fs::last_write_time(copy_), before);
}

// Their own checksum makes such headers pass for whole ones.
TEST_F(InspectTest, AHeaderThatPointsOutsideItselfOrTheFileIsDamageAndNotFollowed) {
  train();
  const std::uint64_t at = first_record();
  const swap::RecordHeader whole = header_at(at);
  const auto expect_damage = [&](const char* what, const auto& change) {
    swap::RecordHeader header = whole;
    change(header.stream[0]);
    write_header(at, header);
    const SwapInspection found = inspect_swap_file(copy_, kQuiet);
    ASSERT_EQ(found.damaged, 1u) << inspection_text({found});
    EXPECT_EQ(found.damage[0].offset_bytes, at);
    EXPECT_NE(found.damage[0].what.find(what), std::string::npos) << found.damage[0].what;
  };
  expect_damage("has checksums 448 to", [](auto& entry) { entry.first_checksum = 448; });
  expect_damage("has checksums 4294967295 to", [](auto& entry) { entry.first_checksum = ~0u; });
  expect_damage("checksums where", [](auto& entry) { ++entry.checksums; });
  expect_damage("past the file's end", [](auto& entry) { entry.size_bytes = ~std::uint64_t{0}; });
  expect_damage("past the file's end", [](auto& entry) { entry.offset_bytes = 1ull << 62; });
}

// ---- stores ----

class InspectStoreTest : public ::testing::Test {
 protected:
  const std::vector<std::int64_t> kGroups = {3000, 150'000, 70'000};

  Settings settings() const {
    Settings s = testing::all_on_nvme(drive_.string());
    s.durable_every = 1;
    s.store = "run-1";
    return s;
  }
  void train(Settings settings, int steps, std::optional<std::uint32_t> frozen = {}) {
    Engine engine(settings);
    testing::ScriptedTrainer trainer(engine, kGroups, {}, frozen);
    for (int step = 0; step < steps; ++step)
      trainer.step(script_of(frozen ? testing::Departure::kFrozenGroup : testing::Departure::kNone,
                             3, false));
    engine.close();
  }
  SwapInspection look() const { return inspect_swap_file(file(), kQuiet); }
  std::string file(int drive = 0) const {
    return drive_.string() + "/" + swap::user_directory_name() + "/store-run-1/rank0." +
           std::to_string(drive) + ".store";
  }
  void flip_bit(std::uint64_t offset) const {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(offset));
    const int byte = bytes.get();
    bytes.seekp(static_cast<std::streamoff>(offset));
    bytes.put(static_cast<char>(byte ^ 4));
  }
  std::uint64_t place_of_newest() const {
    const StoreFacts store = *look().store;
    return swap::place_of(store.commit, 0, 0, store.place_bytes).offset_bytes;
  }
  const testing::TemporaryDirectory drive_;
};

TEST_F(InspectStoreTest, ShowsTheNewestCommitAndTheSlotsOfItsTiles) {
  train(settings(), 3);
  train(settings(), 1);  // opened again
  const SwapInspection found = look();
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  ASSERT_TRUE(found.store.has_value());
  const StoreFacts& store = *found.store;
  EXPECT_EQ(store.steps, 4u);
  EXPECT_EQ(store.epoch, 4u);
  EXPECT_EQ(store.commit, 6u) << "one of the making, and one when it was opened again";
  EXPECT_EQ(store.opening, 1u);
  EXPECT_EQ(store.ranks, 1u);
  EXPECT_TRUE(store.torn.empty());
  ASSERT_EQ(store.tiles.size(), store.tiles_of_rank);
  EXPECT_EQ(found.records, store.tiles.size());
  for (const StoreTile& tile : store.tiles) {
    EXPECT_EQ(tile.generation >> 40, 1u);
    EXPECT_NE(tile.record_offset[0], tile.record_offset[1]);
    EXPECT_NE(tile.weight_offset[0], tile.weight_offset[1]);
    EXPECT_FALSE(tile.frozen);
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, totals] : found.streams) bytes += totals.size_bytes;
  EXPECT_EQ(found.verified_bytes, bytes);
  EXPECT_TRUE(found.streams.contains("weight"));
  const std::string text = inspection_text({found});
  for (const char* part :
       {"rank 0 of 1, drive 0 of 1", "step 4, epoch 4, commit record 6, opening 1", "of opening 1",
        "  in slot ", "all whole"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(find_swap_files(drive_.string()), std::vector<std::string>{file()});
}

TEST_F(InspectStoreTest, VerifiesWhatACommitWroteFromMemoryAndReadsALiveStore) {
  Settings s = settings();
  s.host_budget_bytes = 1ull << 30;  // all of it stays there
  Engine engine(s);
  testing::ScriptedTrainer trainer(engine, kGroups);
  for (int step = 0; step < 2; ++step) trainer.step(script_of(testing::Departure::kNone, 3, false));
  engine.commit();
  const SwapInspection found = look();
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  EXPECT_EQ(found.store->steps, 2u);
  EXPECT_TRUE(found.streams.contains("weight"));
  EXPECT_GT(found.verified_bytes, 0u);
}

// The engine writes to the slots that were named when the inspection began.
TEST_F(InspectStoreTest, AStoreInUseIsWholeThoughItGoesOnMeanwhile) {
  Engine engine(settings());
  testing::ScriptedTrainer trainer(engine, kGroups);
  const auto step = [&] { trainer.step(script_of(testing::Departure::kNone, 3, false)); };
  for (int i = 0; i < 3; ++i) step();
  const SwapInspection found = inspect_swap_file(file(), [&](std::uint64_t) {
    for (int i = 0; i < 3; ++i) step();
  });
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  EXPECT_EQ(found.records, found.store->tiles_of_rank);
  EXPECT_EQ(found.store->unsettled_tiles, 0u);
  EXPECT_GE(found.store->commits_meanwhile, 3u);
  EXPECT_NE(inspection_text({found}).find("more commits meanwhile"), std::string::npos);
  std::uint64_t bytes = 0;
  for (const auto& [name, totals] : found.streams) bytes += totals.size_bytes;
  EXPECT_EQ(found.verified_bytes, bytes) << "no tile is counted twice";
}

TEST_F(InspectStoreTest, AStoreThatIsWrittenAllTheTimeIsWhole) {
  std::atomic<bool> enough = false;
  Engine engine(settings());
  testing::ScriptedTrainer trainer(engine, kGroups);
  trainer.step(script_of(testing::Departure::kNone, 3, false));
  engine.commit();
  std::thread training([&] {
    while (!enough) trainer.step(script_of(testing::Departure::kNone, 3, false));
  });
  for (int i = 0; i < 20; ++i) {
    const SwapInspection found = look();
    EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
    EXPECT_TRUE(found.store->torn.empty());
  }
  enough = true;
  training.join();
}

TEST_F(InspectStoreTest, NamesTheTileThatIsDamagedAndNotTheOtherSlot) {
  train(settings(), 3);
  const StoreTile tile = look().store->tiles.back();
  const std::uint32_t other = tile.slot ^ 1;
  flip_bit(tile.record_offset[other] + 4096 + 7);
  flip_bit(tile.weight_offset[other]);
  EXPECT_EQ(look().damaged, 0u);
  for (const std::uint64_t at :
       {tile.record_offset[tile.slot] + 4096 + 7, tile.record_offset[tile.slot] + 50,
        tile.weight_offset[tile.slot]}) {
    flip_bit(at);
    const SwapInspection found = look();
    ASSERT_EQ(found.damaged, 1u) << at;
    EXPECT_EQ(found.damage[0].record, tile.tile);
    EXPECT_EQ(found.damage[0].generation, tile.generation);
    flip_bit(at);
  }
  fs::resize_file(file(), tile.record_offset[tile.slot]);
  const SwapInspection cut = look();
  EXPECT_GE(cut.damaged, 1u);
  EXPECT_NE(inspection_text({cut}).find("past the file's end"), std::string::npos);
}

TEST_F(InspectStoreTest, ATornCommitRecordIsNamedAndTheOneBeforeItCounts) {
  train(settings(), 3);
  const StoreFacts newest = *look().store;
  const std::uint64_t place = place_of_newest();
  flip_bit(place + 300);
  SwapInspection found = look();
  EXPECT_EQ(found.store->commit, newest.commit) << "its copy is whole";
  ASSERT_EQ(found.store->torn.size(), 1u);
  EXPECT_EQ(found.store->torn[0].offset_bytes, place);
  flip_bit(place + newest.place_bytes + 300);
  found = look();
  EXPECT_EQ(found.store->commit, newest.commit - 1);
  EXPECT_EQ(found.store->steps, 2u);
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  EXPECT_NE(inspection_text({found}).find("is not whole: its checksum differs; the newest whole"),
            std::string::npos);
  for (std::uint32_t other = 0; other < swap::kRingPlaces; ++other) {
    const std::uint64_t at = swap::kStoreHeadBytes + other * newest.place_bytes;
    if (at != place && at != place + newest.place_bytes) flip_bit(at + 300);
  }
  found = look();
  EXPECT_EQ(found.damaged, 1u);
  EXPECT_NE(inspection_text({found}).find("no commit record is whole"), std::string::npos);
  flip_bit(20);
  EXPECT_NE(inspection_text({look()}).find("header's checksum differs"), std::string::npos);
  fs::resize_file(file(), 100);
  EXPECT_NE(inspection_text({look()}).find("DAMAGED at 0"), std::string::npos);
}

TEST_F(InspectStoreTest, ARingWithoutARecordIsDamage) {
  train(settings(), 3);
  const std::uint64_t bytes = swap::kRingPlaces * look().store->place_bytes;
  {
    std::fstream out(file(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(swap::kStoreHeadBytes);
    out << std::string(bytes, '\0');
  }
  const SwapInspection found = look();
  EXPECT_GE(found.damaged, 1u);
  EXPECT_NE(inspection_text({found}).find("no commit record is left"), std::string::npos);
}

TEST_F(InspectStoreTest, AFrozenTileHasAWeightAloneAndAStoreWithoutAStepNothing) {
  train(settings(), 2, 1);
  const SwapInspection found = look();
  EXPECT_EQ(found.damaged, 0u) << inspection_text({found});
  EXPECT_EQ(std::ranges::count_if(found.store->tiles, &StoreTile::frozen) +
                static_cast<std::ptrdiff_t>(found.records),
            static_cast<std::ptrdiff_t>(found.store->tiles_of_rank));
  EXPECT_NE(inspection_text({found}).find("are frozen"), std::string::npos);
  fs::remove(file());
  {
    Engine engine(settings());
    testing::ScriptedTrainer trainer(engine, kGroups);  // loads, and makes no step
    const Ran ran = run_headrace("inspect " + drive_.string());
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_NE(ran.out.find("no step was committed"), std::string::npos) << ran.out;
  }
}

TEST_F(InspectStoreTest, TheReportHasEveryTilesSlots) {
  const auto drives = drive_.drives(2);
  Settings s = settings();
  s.nvme_paths = drives;
  train(s, 2);
  std::size_t tiles = 0, tiles_of_rank = 0;
  for (const std::string& path : drives) {
    const std::string report = drive_.string() + "/report.json";
    const Ran ran = run_headrace("inspect " + path + " --json " + report);
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    const auto json = nlohmann::json::parse(std::ifstream(report))["files"][0]["store"];
    EXPECT_EQ(json["epoch"], 2);
    EXPECT_EQ(json["drives"], 2);
    for (const auto& tile : json["tiles"]) {
      ++tiles;
      EXPECT_EQ(tile["record_offsets"].size(), 2u);
      EXPECT_LE(tile["slot"], 1);
    }
    EXPECT_LT(json["tiles"].size(), json["tiles_of_rank"]);
    tiles_of_rank = json["tiles_of_rank"];
  }
  EXPECT_EQ(tiles, tiles_of_rank);
}

// ---- the program ----

TEST_F(InspectTest, TheProgramEndsWithZeroForAWholeFileAndOneForADamagedOne) {
  train();
  const Ran whole = run_headrace("inspect " + drive_.string());
  EXPECT_EQ(whole.exit_code, 0) << whole.out;
  EXPECT_NE(whole.out.find("all whole"), std::string::npos) << whole.out;
  flip_bit(first_record() + 5000);
  const std::string report = copies_.string() + "/report.json";
  const Ran damaged = run_headrace("inspect " + copy_ + " --json " + report);
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.out.find("DAMAGED at "), std::string::npos) << damaged.out;
  const auto json = nlohmann::json::parse(std::ifstream(report));
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["files"][0]["damaged_places"], 1);
  EXPECT_EQ(json["files"][0]["damage"].size(), 1u);
}

TEST(HeadraceProgram, AFileWhereNothingCouldBeVerifiedIsNotCalledWhole) {
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/weights.swap";
  std::ofstream(file, std::ios::binary) << std::string(1 << 20, 'w');
  const Ran ran = run_headrace("inspect " + file);
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  EXPECT_NE(ran.out.find("nothing could be verified"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("whole"), std::string::npos) << ran.out;
}

TEST(HeadraceProgram, WhatCannotBeOpenedIsRefused) {
  const testing::TemporaryDirectory folder;
  const std::string pipe = folder.string() + "/pipe", link = folder.string() + "/link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(pipe, link);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const std::string name = folder.string() + "/socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(name.copy(address.sun_path, sizeof address.sun_path - 1), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  for (const std::string& path : {pipe, link, name}) {
    const Ran ran = run_headrace("inspect " + path);
    EXPECT_EQ(ran.exit_code, 2) << ran.out;
    EXPECT_NE(ran.out.find("nothing was checked. Name a swap file"), std::string::npos) << ran.out;
  }
  ::close(socket);
}

TEST(HeadraceProgram, RefusesWhatItCannotDoWithCauseConsequenceAndFix) {
  const testing::TemporaryDirectory empty;
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "a subcommand is missing"},
           {"insepct", "'insepct' is no subcommand"},
           {"inspect", "PATH is required"},
           {"inspect a b", "'b' is one word too many"},
           {"inspect --jsn x", "Did you mean --json?"},
           {"inspect /nothing/here", "/nothing/here cannot be read: ENOENT"},
           {"inspect /dev/null", "is not a regular file"},
           {"inspect " + empty.string(), "holds no swap file"},
           {"inspect . --json " + empty.string() + "/no/report", "/no/report"}}) {
    const Ran ran = run_headrace(words);
    EXPECT_EQ(ran.exit_code, 2) << words << ": " << ran.out;
    EXPECT_NE(ran.out.find(expected), std::string::npos) << words << ": " << ran.out;
  }
  const Ran json = run_headrace("inspect /nothing/here --json - 2>/dev/null");
  EXPECT_NE(json.out.find("\"kNotFound\""), std::string::npos) << json.out;
  EXPECT_EQ(run_headrace("--help").exit_code, 0);
  EXPECT_EQ(run_headrace("inspect --help").exit_code, 0);
  EXPECT_EQ(run_headrace("--version").out.rfind("headrace ", 0), 0u);
}
}  // namespace
}  // namespace headrace::tools::inspect_test
