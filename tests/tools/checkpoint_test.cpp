// SPDX-License-Identifier: Apache-2.0
// checkpoint_test: `headrace checkpoint` on whole and damaged checkpoints, on what a save has left,
// and on a folder with several.
#include "checkpoint/checkpoint.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/unique_fd.hpp"
#include "checkpoint/training.hpp"
#include "support/temporary_directory.hpp"
#include "tools/called.hpp"

namespace headrace::tools::checkpoint_test {
namespace {
namespace fs = std::filesystem;
using testing_checkpoints::Training;

// Weights of 900 x 900 bf16, which have two chunks each and a file each.
class CheckpointToolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    saved_ = new testing::TemporaryDirectory;
    Training run({.width = 900});
    run.train(2);
    const std::string state = "state";
    save_checkpoint(run.engine(), saved_->string() + "/a",
                    {.file_bytes = 2'000'000, .trainer_state = std::as_bytes(std::span(state))});
  }
  static void TearDownTestSuite() { delete saved_; }

  CheckpointToolTest() : folder_(directory_.string() + "/a") {
    fs::copy(saved_->string() + "/a", folder_);
  }
  static Called tool(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"checkpoint"};
    all.insert(all.end(), words.begin(), words.end());
    return call(checkpoint, all);
  }
  static nlohmann::json report_of(std::vector<std::string> words) {
    words.insert(words.end(), {"--json", "-"});
    return nlohmann::json::parse(tool(words).out);
  }
  std::string path(const std::string& file) const { return folder_ + "/" + file; }
  void flip(const std::string& file, std::uint64_t at) const {
    std::fstream bytes(path(file), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const char flipped = static_cast<char>(bytes.get() ^ 1);
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(flipped);
  }
  // The verification of the damaged checkpoint names each of `parts`, and how many there are.
  void expect_damage(std::size_t damages, const std::vector<std::string>& parts) const {
    const Called called = tool({"verify", folder_});
    EXPECT_EQ(called.exit_code, 1) << called.out << called.err;
    EXPECT_NE(called.out.find(", " + std::to_string(damages) + " DAMAGED"), std::string::npos)
        << called.out;
    for (const std::string& part : parts)
      EXPECT_NE(called.out.find(part), std::string::npos) << part << "\n" << called.out;
    EXPECT_EQ(report_of({"verify", folder_})["damage"].size(), damages);
  }
  static void expect_refused(const std::vector<std::string>& words, int exit_code,
                             const std::string& part) {
    const Called called = tool(words);
    EXPECT_EQ(called.exit_code, exit_code) << called.out << called.err;
    EXPECT_NE(called.err.find(part), std::string::npos) << part << "\n" << called.err;
  }

  static testing::TemporaryDirectory* saved_;
  testing::TemporaryDirectory directory_;
  const std::string folder_;
};
testing::TemporaryDirectory* CheckpointToolTest::saved_ = nullptr;

constexpr const char* kModel2 = "model-00002-of-00003.safetensors";

TEST_F(CheckpointToolTest, ShowsWhatACheckpointHolds) {
  const Called shown = tool({"inspect", folder_});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const std::string part : {"optimizer adamw, moments f32, steps 1 to 2\n",
                                 "9 parameters with 2,435,400 elements: 9 trained, 0",
                                 "BF16: 6 parameters", "trainer state 5 B", kModel2})
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  EXPECT_EQ(shown.out.find("exp_avg."), std::string::npos) << shown.out;
  const Called tensors = tool({"inspect", folder_, "--tensors"});
  for (const std::string part :
       {"  BF16 \"layer.0.weight\" [900,900] in model-0000", "F32  \"exp_avg_sq.layer.2.bias\"",
        "I64  \"step.layer.1.weight\" [] in optimizer-0000"})
    EXPECT_NE(tensors.out.find(part), std::string::npos) << part << "\n" << tensors.out;
}

TEST_F(CheckpointToolTest, WritesWhatItShowsAsJson) {
  const auto shown = report_of({"inspect", folder_, "--tensors"});
  EXPECT_EQ(shown["program"], "headrace checkpoint");
  EXPECT_EQ(shown["folder"], folder_);
  const auto& one = shown["checkpoint"];
  EXPECT_EQ(one["step_min"], 1);
  EXPECT_EQ(one["step_max"], 2);
  EXPECT_EQ(one["elements"], 2'435'400);
  EXPECT_EQ(one["weight_bytes"], 2 * 2'432'700 + 4 * 2700);
  EXPECT_EQ(one["state_bytes"], 3 * 4 * 2'435'400 + 9 * 8);
  EXPECT_EQ(one["dtypes"]["BF16"]["parameters"], 6);
  EXPECT_EQ(one["tensors"].size(), 45u);
  for (const auto& file : one["files"]) {
    EXPECT_EQ(file["size_bytes"], file["found_bytes"]);
    EXPECT_EQ(file["size_bytes"], fs::file_size(path(file["name"])));
  }
  const auto verified = report_of({"verify", folder_});
  EXPECT_EQ(verified["exit_code"], 0);
  EXPECT_EQ(verified["verified_bytes"], 14 * 2'432'700 + 16 * 2700 + 9 * 8 + 5);
  EXPECT_TRUE(verified["damage"].empty());
}

TEST_F(CheckpointToolTest, VerifiesAWholeOneAndLeavesItAsItIs) {
  std::ofstream(path("config.json")) << "{}";  // as Hugging Face's libraries want it
  const Called verified = tool({"verify", folder_ + "/"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_NE(verified.out.find("MiB verified, whole\n"), std::string::npos) << verified.out;
  EXPECT_NE(verified.out.find("config.json does not belong"), std::string::npos) << verified.out;
  Training run({.width = 900});
  load_checkpoint(run.engine(), folder_);
}

TEST_F(CheckpointToolTest, NamesEveryDamagedTensorWithItsBytes) {
  const auto tensors = report_of({"inspect", folder_, "--tensors"})["checkpoint"]["tensors"];
  const auto place = [&](const std::string& name) {
    for (const auto& tensor : tensors)
      if (tensor["name"] == name) return tensor;
    return nlohmann::json();
  };
  const auto weight = place("layer.1.weight"), moment = place("exp_avg.layer.2.weight"),
             step = place("step.layer.0.bias");
  const std::uint64_t chunk = 1 << 20, at = weight["offset_bytes"],
                      of_moment = moment["offset_bytes"];
  flip(weight["file"], at + chunk + 5);  // in its last chunk, which is cut by its end
  flip(moment["file"], of_moment);       // in its first two chunks
  flip(moment["file"], of_moment + chunk);
  flip(moment["file"], of_moment + 3 * chunk);
  flip(step["file"], step["offset_bytes"]);
  const auto bytes = [](std::uint64_t begin, std::uint64_t end) {
    return ", bytes " + std::to_string(begin) + " to " + std::to_string(end) + ": tensor ";
  };
  expect_damage(4, {weight["file"].get<std::string>() + bytes(at + chunk, at + 1'620'000) +
                        "\"layer.1.weight\": its checksum differs",
                    bytes(of_moment, of_moment + 2 * chunk) + "\"exp_avg.layer.2.weight\"",
                    bytes(of_moment + 3 * chunk, of_moment + 3'240'000),
                    "\"step.layer.0.bias\": its checksum differs"});
}

TEST_F(CheckpointToolTest, NamesFilesThatAreCutLongerDamagedOrMissing) {
  const std::uint64_t size = fs::file_size(path(kModel2));
  fs::resize_file(path(kModel2), size + 1);
  expect_damage(1, {std::string(kModel2) + ": " + kModel2 + " has " + std::to_string(size + 1)});
  fs::resize_file(path(kModel2), size);
  flip(kModel2, 20);
  expect_damage(1, {"the checksum of the header of " + std::string(kModel2) + " differs"});
  flip(kModel2, 20);
  fs::resize_file(path(kModel2), size - 1);
  expect_damage(2, {"has " + std::to_string(size - 1) + " bytes", ": it is cut off"});
  EXPECT_NE(tool({"inspect", folder_}).out.find("DAMAGED: it has"), std::string::npos);
  fs::resize_file(path(kModel2), 100);
  expect_damage(1 + 3, {"its header: it is cut off", "\"layer.1.weight\": it is cut off"});
  fs::remove(path(kModel2));
  expect_damage(4, {std::string(kModel2) + ": it is not there",
                    "\"layer.1.weight\": it is not there", "\"layer.1.bias\": it is not there"});
  const Called shown = tool({"inspect", folder_});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_NE(shown.out.find("DAMAGED: it is not there"), std::string::npos) << shown.out;
}

TEST_F(CheckpointToolTest, NamesDamageOfTheOtherFiles) {
  flip("trainer_state.bin", 2);
  expect_damage(1, {"trainer_state.bin: its checksum differs"});
  std::ofstream(path("trainer_state.bin"), std::ios::app) << "x";
  expect_damage(1, {"trainer_state.bin: it has 6 bytes, not 5"});
  fs::remove(path("trainer_state.bin"));
  expect_damage(1, {"trainer_state.bin: it is not there"});
  flip("model.safetensors.index.json", 30);
  expect_damage(2, {"model.safetensors.index.json: it differs from manifest.json"});
  fs::remove(path("optimizer.safetensors.index.json"));
  expect_damage(3, {"optimizer.safetensors.index.json: it is not there"});
  std::ofstream(path("model.safetensors")) << "old";
  expect_damage(4, {"model.safetensors: it does not belong to the checkpoint"});
  flip("manifest.json", 100);
  expect_damage(1, {"manifest.json: the checksum of manifest.json differs"});
  expect_refused({"inspect", folder_}, 1, "the checksum of manifest.json differs");
}

TEST_F(CheckpointToolTest, SaysWhatASaveHasLeftAndWhetherItGoesOn) {
  const std::string temporary = folder_ + ".tmp";
  fs::rename(folder_, temporary);
  for (const std::string& named : {folder_, temporary, temporary + "/"}) {
    for (const char* const action : {"verify", "inspect"}) {
      expect_refused({action, named}, 1,
                     "a.tmp is what a save that was interrupted has left: nothing in it is "
                     "complete. Remove it, or save again");
    }
  }
  const base::UniqueFd save(::open(temporary.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(save.get(), LOCK_EX), 0);
  expect_refused({"verify", temporary}, 2, "is being written by a save that is under way");
  expect_refused({"verify", folder_}, 2, "is being written by a save that is under way");
}

TEST_F(CheckpointToolTest, ListsSeveralAndTakesTheLatest) {
  const std::string above = directory_.string();
  expect_refused({"verify", above}, 2, "has no file `latest` that chooses");
  fs::create_directory(above + "/b.tmp");
  fs::create_directory(above + "/logs");
  fs::create_directory(above + "/old");
  std::ofstream(above + "/old/manifest.json") << "{}";
  const Called listed = tool({"inspect", above});
  EXPECT_EQ(listed.exit_code, 1) << listed.out << listed.err;
  for (const std::string part :
       {"  a: whole, steps 1 to 2, ", "  b.tmp: interrupted save\n", "  logs: not a checkpoint\n",
        "  old: damaged: the checksum of manifest.json differs\n"})
    EXPECT_NE(listed.out.find(part), std::string::npos) << part << "\n" << listed.out;
  std::ofstream(above + "/latest") << "a\n";
  const base::UniqueFd save(::open((above + "/b.tmp").c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(save.get(), LOCK_EX), 0);
  const auto report = report_of({"verify", above});
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["latest"], "a");
  EXPECT_EQ(report["folder"], folder_);
  ASSERT_EQ(report["listed"].size(), 4u);
  EXPECT_EQ(report["listed"][1]["state"], "save under way");
  EXPECT_NE(tool({"inspect", above}).out.find("latest names a\n"), std::string::npos);
  for (const char* const name : {"logs", "b.tmp", "gone", "../a", ""}) {
    std::ofstream(above + "/latest") << name;
    expect_refused({"inspect", above}, 1, "/latest does not name a checkpoint beside it");
  }
}

// Whatever is asked for, a save of this moment goes on.
TEST_F(CheckpointToolTest, ASaveIsNotDisturbed) {
  Training run({.width = 40});
  for (int i = 0; i < 20; ++i) {
    std::thread asks([&] { (void)tool({"inspect", directory_.string()}); });
    save_checkpoint(run.engine(), directory_.string() + "/s" + std::to_string(i));
    asks.join();
  }
}

TEST_F(CheckpointToolTest, RefusesWhatItCannotDo) {
  testing::TemporaryDirectory none;
  expect_refused({}, 2, "an action is missing");
  expect_refused({"remove", folder_}, 2, "'remove' is no action");
  expect_refused({"verify"}, 2, "verify needs a folder");
  expect_refused({"verify", folder_, folder_}, 2, "is one folder too many");
  expect_refused({"verify", folder_, "--tensors"}, 2, "--tensors is for inspect alone");
  expect_refused({"verify", folder_ + "/none"}, 2, "is not a directory");
  expect_refused({"inspect", none.string()}, 2, "is no checkpoint, since it has no manifest.json");
  expect_refused({"inspect", path("manifest.json")}, 2, "is not a directory");
}
}  // namespace
}  // namespace headrace::tools::checkpoint_test
