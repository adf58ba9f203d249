// SPDX-License-Identifier: Apache-2.0
// The command line, and the parameters a model of its sizes has.
#include "options.hpp"

#include <gtest/gtest.h>

namespace train_gpt {
namespace {
ParsedOptions parse(std::vector<const char*> words) {
  words.insert(words.begin(), "train_gpt");
  return parse_options(static_cast<int>(words.size()), words.data());
}

void expect_refused(std::vector<const char*> words, const std::string& why) {
  const ParsedOptions parsed = parse(std::move(words));
  EXPECT_FALSE(parsed.options);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_NE(parsed.text.find(why), std::string::npos) << parsed.text;
}

TEST(Options, HaveDefaultsThatFollowOneAnother) {
  const auto parsed = parse({"--lr", "0.02", "--steps", "55"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_DOUBLE_EQ(parsed.options->least_learning_rate, 0.002);
  EXPECT_EQ(parsed.options->warmup_steps, 6u);
  EXPECT_TRUE(parsed.options->progress);
  EXPECT_FALSE(parsed.options->checkpointing);
}

TEST(Options, TakeCheckpointingWithAnEngineAndWithout) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"--checkpointing"}, {"--plain", "--checkpointing"}}) {
    const auto parsed = parse(words);
    ASSERT_TRUE(parsed.options) << parsed.text;
    EXPECT_TRUE(parsed.options->checkpointing);
  }
  expect_refused({"--checkpointing=1"}, "--checkpointing takes no value");
  expect_refused({"--checkpoint"}, "Did you mean --checkpointing?");
}

TEST(Options, KeepEverySettingInOrder) {
  const auto parsed =
      parse({"--set", "a.b=1", "--accumulation", "4", "--set", "c={\"d\": [1, 2]}"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_EQ(
      parsed.options->overrides,
      (std::vector<std::string>{"a.b=1", "gradient_accumulation_steps=4", "c={\"d\": [1, 2]}"}));
  EXPECT_EQ(parsed.text, "");
}

TEST(Options, SayWhichOfTwoNumbersOfMicroBatchesHolds) {
  const char* const setting = "gradient_accumulation_steps=2";
  const auto later = parse({"--accumulation", "4", "--set", setting});
  ASSERT_TRUE(later.options) << later.text;
  EXPECT_EQ(later.options->overrides.back(), setting);
  EXPECT_EQ(later.text,
            "of '--accumulation 4' and '--set gradient_accumulation_steps=2' the later one holds");
  const auto earlier = parse({"--set", setting, "--accumulation", "4"});
  EXPECT_EQ(earlier.options->overrides.back(), "gradient_accumulation_steps=4");
  EXPECT_NE(earlier.text, "");
  EXPECT_EQ(parse({"--set", setting, "--accumulation", "2"}).text, "");
}

TEST(Options, TakeTheLastOfOnesGivenTwice) {
  const auto parsed = parse({"--steps", "10", "--json", "a", "--steps=20", "--json=b"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_EQ(parsed.options->steps, 20u);
  EXPECT_EQ(parsed.options->json, "b");
  EXPECT_EQ(parsed.json, "b");
}

TEST(Options, RefuseWhatCannotWork) {
  expect_refused({"--layers", "0"}, "--layers 0 is out of range");
  expect_refused({"--hidden", "100", "--heads", "8"}, "--hidden 100 is not divisible by --heads 8");
  expect_refused({"--hidden", "100", "--heads", "8"}, "Give --heads 5 or --hidden 104");
  expect_refused({"--seq", "0"}, "--seq 0");
  expect_refused({"--batch", "0"}, "--batch 0");
  expect_refused({"--batch", "400000000", "--seq", "1000000"}, "2^30");
  expect_refused({"--lr", "0.1", "--min-lr", "0.2"}, "--min-lr");
  expect_refused({"--steps", "3", "--warmup", "4"}, "--warmup 4");
  expect_refused({"--plain", "--save", "x"}, "exclude");
  expect_refused({"--overwrite"}, "--save");
  expect_refused({"--save", "x", "--save-in-background"}, "without --save-every");
  expect_refused({"stray"}, "stray");
}

TEST(Options, RefuseEveryNumberThatIsNoneOrDoesNotFit) {
  for (const char* option :
       {"--layers", "--hidden", "--heads", "--seq", "--batch", "--steps", "--accumulation",
        "--warmup", "--seed", "--eval-batches", "--threads"}) {
    const std::string name = option;
    for (const char* word : {"-1", "99999999999999999999"})
      expect_refused({option, word}, name + " " + word + " is out of range; the run was not");
    for (const char* word : {"nan", "1e3", "0x10", "5x", "1.5", "+1", " 1", "-"})
      expect_refused({option, word}, name + " '" + word + "' is not a whole number; the run was");
    expect_refused({option, ""}, name + " has no value");
    expect_refused({option}, name + " has no value");
    expect_refused({(name + "=").c_str()}, name + " has no value");
  }
  for (const char* option : {"--lr", "--min-lr", "--weight-decay"}) {
    const std::string name = option;
    for (const char* word : {"-1", "inf", "-inf", "1e999", "1e39"})
      expect_refused({option, word}, name + " " + word + " is out of range; the run was not");
    for (const char* word : {"nan", "-nan", "much", "0x1", "1,5", "1e"})
      expect_refused({option, word}, name + " '" + word + "' is not a number; the run was not");
    expect_refused({option, ""}, name + " has no value");
  }
}

TEST(Options, RefuseAnEmptyPathAndAValueOfAFlag) {
  for (const char* option : {"--text", "--init", "--save", "--json", "--config", "--set"}) {
    expect_refused({option, ""}, std::string(option) + " has no value");
    expect_refused({option, "--plain"}, std::string(option) + " has no value");
  }
  expect_refused({"--plain=3"}, "--plain takes no value");
}

TEST(Options, NameTheOneThatWasMeant) {
  expect_refused({"--hiden", "64"},
                 "'--hiden' is not an option; the run was not started. Did you "
                 "mean --hidden?");
  expect_refused({"-hidden", "64"}, "Did you mean --hidden?");
  expect_refused({"--eval_batches=3"}, "Did you mean --eval-batches?");
  expect_refused({"--no-such-option"}, "train_gpt --help lists the options.");
}

TEST(Options, FindTheReportsTargetOnALineThatDoesNotParse) {
  EXPECT_EQ(parse({"--nonsense", "--json", "-"}).json, "-");
  EXPECT_EQ(parse({"--json=x.json", "--nonsense"}).json, "x.json");
  EXPECT_EQ(parse({"--nonsense"}).json, "");
}

TEST(Options, DescribeThemselves) {
  const auto help = parse({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_FALSE(help.options);
  EXPECT_NE(help.text.find("eps 1e-08"), std::string::npos) << help.text;
  for (const char* word : {"Model:", "Training:", "Placement:", "Files:", "--set", "Exit codes"}) {
    EXPECT_NE(help.text.find(word), std::string::npos) << word;
  }
  const auto version = parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_NE(version.text.find("train_gpt"), std::string::npos);
}

TEST(GptShape, ListsEveryParameterOnce) {
  const GptShape shape{.layers = 2, .hidden = 8, .heads = 2, .sequence = 4};
  const auto parameters = gpt_parameters(shape);
  EXPECT_EQ(parameters.size(), 2u + 2 * 12 + 3);
  const std::uint64_t block = 12 * 8 * 8 + (3 + 1 + 4 + 1) * 8 + 4 * 8;
  EXPECT_EQ(count_elements(parameters), 256u * 8 + 4 * 8 + 2 * block + 2 * 8 + 256 * 8);
}
}  // namespace
}  // namespace train_gpt
