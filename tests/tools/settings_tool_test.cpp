// SPDX-License-Identifier: Apache-2.0
// `headrace settings` as it is run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "headrace/settings.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::settings_tool_test {
namespace {
class SettingsTool : public ::testing::Test {
 protected:
  std::string written(const std::string& name, const std::string& text) const {
    std::ofstream(path_of(name)) << text;
    return path_of(name);
  }
  std::string path_of(const std::string& name) const { return (folder_.path() / name).string(); }
  static bool has(const Ran& ran, const std::string& part) {
    return ran.out.find(part) != std::string::npos;
  }
  // A directory that is made on the first use, on whatever file system tests run.
  std::string drive(const std::string& name = "drive") const {
    std::filesystem::create_directories(path_of(name));
    return path_of(name);
  }

  const headrace::testing::TemporaryDirectory folder_;
};

TEST_F(SettingsTool, ChecksEveryFileAndEndsWithTwoWhereOneIsRefused) {
  const std::string good = written("good.json", R"({"gradient_clipping": 1})");
  const std::string bad = written("bad.json", R"({"gradient_cliping": 1})");
  const Ran both = run_headrace("settings check " + good + " " + bad);
  EXPECT_EQ(both.exit_code, 2) << both.out;
  EXPECT_TRUE(has(both, good + ": ok\n")) << both.out;
  EXPECT_TRUE(has(both, bad + ":1:2: gradient_cliping: unknown key")) << both.out;
  EXPECT_EQ(run_headrace("settings check " + good).exit_code, 0);
}

TEST_F(SettingsTool, SaysWhichDtypeParametersAreToHave) {
  const auto said = [&](const std::string& text, const std::string& line) {
    const Ran ran = run_headrace("settings check " + written("dtype.json", text));
    EXPECT_TRUE(has(ran, "\n  parameters: " + line + "\n")) << ran.out;
  };
  said(R"({"fp16": {"enabled": false}})", "F32");
  said(R"({"bf16": {"enabled": true}})", "BF16");
  said(R"({"bf16": {"enabled": "auto"}})", "of the dtype that the trainer has");
}

TEST_F(SettingsTool, RefusesAKeyThatDeepSpeedIgnoresIfItIsToBeStrict) {
  const std::string file = written("log.json", R"({"log": "x", "gradient_clipping": 1})");
  const Ran lenient = run_headrace("settings check " + file);
  EXPECT_EQ(lenient.exit_code, 0) << lenient.out;
  EXPECT_TRUE(has(lenient, ":1:2: log: unknown key: nothing follows it")) << lenient.out;
  const Ran strict = run_headrace("settings check --strict " + file);
  EXPECT_EQ(strict.exit_code, 2) << strict.out;
  EXPECT_TRUE(has(strict, ":1:2: log: unknown key; nothing known")) << strict.out;
  expect_refused(run_headrace("settings schema --strict"), "--strict", "would change nothing");
}

TEST_F(SettingsTool, ClosesWhatIsLeftAutoAndTakesTheFileBehindTheOption) {
  const std::string file = written("auto.json", R"({"gradient_clipping": "auto"})");
  const Ran open = run_headrace("settings check " + file);
  EXPECT_EQ(open.exit_code, 0);
  EXPECT_TRUE(has(open, "open: gradient_clipping")) << open.out;
  const Ran table = run_headrace("settings show " + file);
  EXPECT_TRUE(has(table, "\"auto\"")) << table.out;
  EXPECT_TRUE(has(table, "auto.json:1:2 (open)")) << table.out;
  const Ran closed =
      run_headrace("settings check --set gradient_clipping=2 --set bf16.enabled=true " + file);
  EXPECT_EQ(closed.exit_code, 0) << closed.out;
  EXPECT_FALSE(has(closed, "open:")) << closed.out;
  const Ran shown = run_headrace("settings show --set gradient_clipping=2 " + file);
  EXPECT_TRUE(has(shown, "--set gradient_clipping")) << shown.out;
}

TEST_F(SettingsTool, SaysWhichDefaultHoldsWhereDeepSpeedsHasChanged) {
  const Ran ran = run_headrace("settings check " + written("empty.json", "{}"));
  EXPECT_TRUE(has(ran, "gradient_clipping is not given: 0.0 holds (DeepSpeed: 0 until 0.19.2"))
      << ran.out;
  const Ran given =
      run_headrace("settings check " + written("given.json", R"({"gradient_clipping": 0,
        "bf16": {"enabled": true}})"));
  EXPECT_FALSE(has(given, "default:")) << given.out;
  const Ran fp16 =
      run_headrace("settings check " + written("fp16.json", R"({"fp16": {"enabled": true}})"));
  EXPECT_TRUE(has(fp16, "fp16.initial_scale_power is not given: 16 holds")) << fp16.out;
}

TEST_F(SettingsTool, WritesAFileThatItsReaderTakesForMemoryAndForDrives) {
  const std::string file = path_of("new.json");
  const Ran memory = run_headrace("settings init --write " + file);
  EXPECT_EQ(memory.exit_code, 0) << memory.out;
  Settings settings = Settings::from_file(file);
  EXPECT_EQ(settings.offload_optimizer, OffloadDevice::kCpu);
  EXPECT_TRUE(settings.warnings.empty() && settings.defaults_taken.empty());

  const std::string again = "settings init --nvme " + drive() + " --batch 3 --write " + file;
  expect_refused(run_headrace(again), again, "would be lost");
  std::filesystem::remove(file);
  const Ran one = run_headrace(again + " --set headrace.moments=bf16 --set gradient_clipping=0.5");
  ASSERT_EQ(one.exit_code, 0) << one.out;
  settings = Settings::from_file(file);
  EXPECT_EQ(settings.nvme_paths, std::vector{std::filesystem::canonical(drive()).string()});
  EXPECT_EQ(settings.train_micro_batch_size_per_gpu, 3u);
  EXPECT_TRUE(settings.host_budget_auto);
  EXPECT_EQ(settings.moments, MomentCodec::kBf16);
  EXPECT_EQ(settings.gradient_clipping, 0.5);
  EXPECT_TRUE(settings.warnings.empty() && settings.defaults_taken.empty());

  std::filesystem::remove(file);
  const Ran two = run_headrace("settings init --nvme " + drive() + " --nvme '" + drive("$b~") +
                               "' --write " + file);
  ASSERT_EQ(two.exit_code, 0) << two.out;
  EXPECT_TRUE(has(two, "are on one file system")) << two.out;
  EXPECT_EQ(Settings::from_file(file).nvme_paths.size(), 2u);
}

TEST_F(SettingsTool, PlansTheModelAndWritesNothingWhereItDoesNotFit) {
  const Ran fits = run_headrace("settings init --model gpt2 --seq 32 --nvme " + drive());
  EXPECT_EQ(fits.exit_code, 0) << fits.out;
  EXPECT_TRUE(has(fits, "gpt2, micro-batches of 1 x 32 tokens: Fits: ")) << fits.out;
  const Ran batches = run_headrace(
      "settings init --model gpt2 --seq 32 --set headrace={} "
      "--set train_micro_batch_size_per_gpu=4");
  EXPECT_EQ(batches.exit_code, 0) << batches.out;
  EXPECT_TRUE(has(batches, "micro-batches of 4 x 32 tokens")) << batches.out;
  EXPECT_FALSE(has(batches, "null")) << batches.out;
  const std::string file = path_of("new.json");
  const Ran large = run_headrace("settings init --model llama-3.1-405b --write " + file);
  expect_refused(large, "405b", "give --nvme DIR");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(SettingsTool, RefusesDrivesThatNoRunCouldUseAndFilesOfOthers) {
  expect_refused(run_headrace("settings init --nvme " + path_of("none")), "none", "does not exist");
  const std::string mine = written("mine.json", R"({"gradient_clipping": 1})");
  expect_refused(run_headrace("settings init --write " + mine), "mine", "would be lost");
  if (std::filesystem::exists("/dev/shm"))
    expect_refused(run_headrace("settings init --nvme /dev/shm"), "/dev/shm", "no settings were");
}

TEST_F(SettingsTool, RefusesOptionsThatWouldChangeNothing) {
  const std::string file = written("empty.json", "{}");
  expect_refused(run_headrace("settings check " + file + " --nvme /tmp"), "--nvme", "with check");
  expect_refused(run_headrace("settings init --seq 12"), "--seq", "Name a model");
  expect_refused(run_headrace("settings init word"), "word", "init takes no words");
  expect_refused(run_headrace("settings schema " + file), "schema", "takes no words");
  expect_refused(run_headrace("settings explain x --set a=b"), "--set", "would change nothing");
  expect_refused(run_headrace("settings"), "nothing", "an action is missing");
}
}  // namespace
}  // namespace headrace::tools::settings_tool_test
