// SPDX-License-Identifier: Apache-2.0
// join_checkpoint_test: `headrace checkpoint join`: files of another size, with the same values.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/training.hpp"
#include "support/temporary_directory.hpp"
#include "tools/called.hpp"
#include "tools/file_size_limit.hpp"

namespace headrace::tools::join_checkpoint_test {
namespace {
namespace fs = std::filesystem;
using testing_checkpoints::Training;

Called join(const std::string& from, const std::string& to,
            const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"checkpoint", "join", from, to};
  all.insert(all.end(), more.begin(), more.end());
  return call(checkpoint, all);
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

// Weights of 900 x 900 bf16, with several chunks each, and a file each.
class JoinTest : public ::testing::Test {
 protected:
  JoinTest() : run_({.width = 900}) {
    run_.train(2);
    save("a", 4'000'000);
  }
  void save(const std::string& name, std::uint64_t file_bytes) {
    save_checkpoint(run_.engine(), at(name),
                    {.file_bytes = file_bytes, .trainer_state = std::as_bytes(std::span(state_))});
  }
  std::string at(const std::string& name) const { return directory_.string() + "/" + name; }
  // Refused with a text that has `part`; nothing is left of "b".
  void expect_refused(const std::string& from, const std::string& part, int exit_code,
                      const std::vector<std::string>& more = {}) const {
    const Called called = join(from, at("b"), more);
    EXPECT_EQ(called.exit_code, exit_code) << called.out << called.err;
    EXPECT_NE(called.err.find(part), std::string::npos) << part << "\n" << called.err;
    EXPECT_FALSE(fs::exists(at("b")));
    EXPECT_FALSE(fs::exists(at("b.tmp")));
  }

  testing::TemporaryDirectory directory_;
  const std::string state_ = "state";
  Training run_;
};

TEST_F(JoinTest, MakesTheFilesThatASaveOfThatSizeHasMade) {
  const auto before = files_of(at("a"));
  ASSERT_TRUE(before.contains("model.safetensors.index.json"));
  save("one", SaveOptions{}.file_bytes);
  const Called joined = join(at("a"), at("b/"));
  ASSERT_EQ(joined.exit_code, 0) << joined.err;
  EXPECT_NE(joined.out.find("45 tensors in 2 files, "), std::string::npos) << joined.out;
  EXPECT_EQ(files_of(at("b")), files_of(at("one")));
  EXPECT_EQ(files_of(at("a")), before);
  ASSERT_EQ(join(at("b"), at("again"), {"--file-bytes", "4000000"}).exit_code, 0);
  EXPECT_EQ(files_of(at("again")), before);
}

TEST_F(JoinTest, MakesACheckpointThatLoadsWithTheTrainersState) {
  ASSERT_EQ(join(at("a"), at("b")).exit_code, 0);
  ASSERT_EQ(call(checkpoint, {"checkpoint", "verify", at("b")}).exit_code, 0);
  Training loaded({.width = 900});
  const auto state = load_checkpoint(loaded.engine(), at("b")).trainer_state;
  EXPECT_EQ(loaded.hashes(), run_.hashes());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(state.data()), state.size()), state_);
}

TEST_F(JoinTest, TakesTheLatestAndReportsWhatItLeavesOut) {
  std::ofstream(at("latest")) << "a\n";
  std::ofstream(at("model.safetensors")) << "as train_gpt --save leaves it";
  std::ofstream(at("a/config.json")) << "{}";
  const Called called = join(directory_.string(), at("b"), {"--json", "-"});
  ASSERT_EQ(called.exit_code, 0) << called.err;
  const auto report = nlohmann::json::parse(called.out);
  EXPECT_EQ(report["action"], "join");
  EXPECT_EQ(report["from"]["folder"], at("a"));
  EXPECT_EQ(report["from"]["files"], 2 + 9);
  EXPECT_EQ(report["to"]["files"], 2);
  EXPECT_EQ(report["left_out"], nlohmann::json({"config.json"}));
  EXPECT_NE(called.err.find("left out: config.json"), std::string::npos) << called.err;
  EXPECT_FALSE(fs::exists(at("b/config.json")));
}

TEST_F(JoinTest, RefusesWhatIsDamagedAndLeavesNothing) {
  const std::string file = at("a/optimizer-00003-of-00009.safetensors");
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 1);
  bytes.put('\x55');
  bytes.close();
  expect_refused(at("a"), "; nothing was joined. Take another checkpoint.", 1);
  fs::remove(file);
  expect_refused(at("a"), "optimizer-00003-of-00009.safetensors is not there", 2);
}

TEST_F(JoinTest, ComparesTheTrainersStateAndTheStepCounts) {
  std::ofstream(at("a/trainer_state.bin")) << "stale";
  expect_refused(at("a"), "the checksum of trainer_state.bin differs; nothing was joined", 1);
  std::ofstream(at("a/trainer_state.bin")) << state_;
  const Called shown =
      call(checkpoint, {"checkpoint", "inspect", at("a"), "--tensors", "--json", "-"});
  const auto tensors = nlohmann::json::parse(shown.out)["checkpoint"]["tensors"];
  for (const auto& tensor : tensors) {
    if (tensor["name"] != "step.layer.2.bias") continue;
    std::fstream file(at("a/" + tensor["file"].get<std::string>()),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(tensor["offset_bytes"].get<std::streamoff>());
    file.put('\x7f');
  }
  expect_refused(at("a"), "'step.layer.2.bias' differs in chunk 0; nothing was joined", 1);
}

TEST_F(JoinTest, RefusesFoldersThatItCannotReadOrWrite) {
  EXPECT_NE(join(at("a"), at("a/")).err.find("is the folder that is to be read"),
            std::string::npos);
  fs::create_directory(at("there"));
  EXPECT_NE(join(at("a"), at("there")).err.find("there exists; nothing was written"),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(at("there")));
  expect_refused(at("none"), "is not a directory", 2);
  expect_refused(directory_.string(), "has no file `latest` that chooses a checkpoint", 2);
  fs::create_directories(at("universal/zero"));
  expect_refused(at("universal"), "is a universal checkpoint of DeepSpeed; nothing was joined", 2);
  fs::create_directory(at("model"));
  std::ofstream(at("model/model.safetensors.index.json")) << "{}";
  expect_refused(at("model"), "is a model without manifest.json", 2);
}

TEST_F(JoinTest, RefusesOptionsThatDoNotFit) {
  expect_refused(at("a"), "--file-bytes 3239999 is too small: \"master.layer.", 2,
                 {"--file-bytes", "3239999"});
  expect_refused(at("a"), "--file-bytes 0 is out of range", 2, {"--file-bytes", "0"});
  expect_refused(at("a"), "--to is for convert alone", 2, {"--to", "headrace"});
  const Called shown = call(checkpoint, {"checkpoint", "inspect", at("a"), "--file-bytes", "1GB"});
  EXPECT_NE(shown.err.find("--file-bytes is for join alone"), std::string::npos) << shown.err;
  EXPECT_NE(call(checkpoint, {"checkpoint", "join", at("a")}).err.find("join needs two folders"),
            std::string::npos);
}

// After the file of the weights is there.
TEST_F(JoinTest, ADiskThatFillsLeavesNothing) {
  std::optional<FileSizeLimit> limit(10'000'000);
  expect_refused(at("a"), "b.tmp/optimizer.safetensors needs a file of", 2);
  limit.reset();
  EXPECT_EQ(join(at("a"), at("b")).exit_code, 0);
}
}  // namespace
}  // namespace headrace::tools::join_checkpoint_test
