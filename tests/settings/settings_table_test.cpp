// SPDX-License-Identifier: Apache-2.0
// The table of keys against itself, the struct and the document made from it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/sizes.hpp"
#include "headrace/settings.hpp"
#include "settings/key_table.hpp"
#include "settings_reference/reference.hpp"

namespace headrace::settings {
namespace {
TEST(KeyTable, NamesEachKeyOnceInsideASectionThatItHolds) {
  std::set<std::string> paths;
  std::set<std::string> sections{""};
  for (const Key& key : keys()) {
    if (key.kind == Kind::kSection) sections.insert(std::string(key.path));
  }
  for (const Key& key : keys()) {
    const std::string section(key.section());
    EXPECT_TRUE(paths.insert(std::string(key.path)).second) << key.path;
    if (!key.also.empty()) {
      EXPECT_TRUE(paths
                      .insert(section.empty() ? std::string(key.also)
                                              : section + "." + std::string(key.also))
                      .second)
          << key.path;
    }
    EXPECT_TRUE(sections.contains(section)) << key.path;
    EXPECT_EQ(find_key(section, key.name()), &key);
    EXPECT_FALSE(key.help.empty()) << key.path;
  }
}

// A key without documentation, unit or reason stops here.
TEST(KeyTable, SaysOfEachKeyWhatItDoesInWhichUnitAndWhy) {
  for (const Key& key : keys()) {
    SCOPED_TRACE(std::string(key.path));
    EXPECT_GE(key.help.size(), key.kind == Kind::kSection ? 6u : 12u)
        << "what it does, or why it does nothing";
    const bool counts = key.kind == Kind::kInteger || key.kind == Kind::kNumber ||
                        key.kind == Kind::kSize || key.kind == Kind::kSizeOrAuto ||
                        key.kind == Kind::kEvery;
    EXPECT_EQ(counts, !key.unit.empty()) << "numbers have a unit, and nothing else has";
    const bool chooses =
        key.kind == Kind::kChoice || key.kind == Kind::kSwitch || key.kind == Kind::kEvery;
    EXPECT_EQ(chooses, !key.choices.empty());
  }
}

template <class Enum>
void expect_names(std::string_view name) {
  const std::vector<std::string_view> words = choices_of(*find_key("headrace", name));
  for (std::size_t i = 0; i < words.size(); ++i)
    EXPECT_EQ(name_of(static_cast<Enum>(i)), words[i]) << name;
}
TEST(KeyTable, HasTheWordsOfTheEnumerators) {
  expect_names<OptimizerRule>("optimizer");
  expect_names<MomentCodec>("moments");
  expect_names<IoQueueKind>("io_queue");
}

TEST(KeyTable, HoldsWhatStandsInDeepSpeedFiles) {
  for (const auto& [section, name] : std::vector<std::pair<const char*, const char*>>{
           {"", "train_batch_size"},
           {"", "zero_force_ds_cpu_optimizer"},
           {"zero_optimization", "stage3_gather_fp16_weights_on_model_save"},
           {"zero_optimization", "max_reuse_distance"},
           {"zero_optimization.offload_optimizer", "fast_init"},
           {"zero_optimization.offload_param", "max_in_cpu"},
           {"zero_optimization.zenflow", "topk_ratio"},
           {"aio", "thread_count"},
           {"aio", "intra_op_parallelism"},
           {"fp16", "hysteresis"},
           {"bf16", "immediate_grad_update"},
           {"activation_checkpointing", "cpu_checkpointing"},
           {"checkpoint", "load_universal"},
           {"compile", "deepcompile"}}) {
    EXPECT_NE(find_key(section, name), nullptr) << section << " " << name;
  }
  EXPECT_EQ(find_key("zero_optimization.offload_optimizer", "buffer_size"), nullptr);
}

// Without a field, a value would be read and then forgotten.
TEST(KeyTable, GivesEveryHonouredValueAField) {
  const std::set<std::string_view> exceptions = {
      // Code of their own reads or checks these.
      "zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path",
      "zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params",
      "zero_optimization.mics_shard_size", "data_types.param_dtype", "data_types.grad_accum_dtype",
      "headrace.host_budget_bytes", "headrace.nvme_paths",
      // Notes of `headrace tune` for readers of the file.
      "headrace.tuned.file_system", "headrace.tuned.date", "headrace.tuned.queue",
      "headrace.tuned.pattern", "headrace.tuned.gb_per_second", "headrace.tuned.gb_per_second_low",
      "headrace.tuned.gb_per_second_high", "headrace.tuned.headrace_version"};
  for (const Key& key : keys()) {
    if (!key.honoured_value()) continue;
    EXPECT_EQ(std::holds_alternative<std::monostate>(key.field), exceptions.contains(key.path))
        << key.path << ": either a row of kFields (key_table.cpp) or an exception";
  }
}

// What is accepted at its default must be what the struct has, or the two have drifted apart.
TEST(KeyTable, GivesEveryHonouredKeyARangeThatHoldsItsDefault) {
  const Settings defaults = Settings::from_json(Settings{}.to_json());
  EXPECT_TRUE(defaults.warnings.empty());
}

TEST(KeyTable, AcceptsAWellTypedValueForEveryKeyThatIsNotServedAndWarnsOnceOrFollowsIt) {
  for (const Key& key : keys()) {
    if (key.status != Status::kNoEffect) continue;
    nlohmann::json value;
    switch (key.kind) {
      case Kind::kBoolean:
        value = key.in_any_case == "false";
        break;
      case Kind::kInteger:
      case Kind::kNumber:
        value = key.in_any_case == "1" ? 2 : 1;
        break;
      case Kind::kText:
        value = "x";
        break;
      case Kind::kTextList:
        value = nlohmann::json::array({"x"});
        break;
      default:
        value = {{"enabled", true}};
        break;
    }
    for (const nlohmann::json& given : {value, nlohmann::json("auto")}) {
      SCOPED_TRACE(std::string(key.path) + " = " + given.dump());
      const Settings settings =
          Settings::from_json("{}", "f", {std::string(key.path) + "=" + given.dump()});
      ASSERT_EQ(settings.warnings.size(), 1u);
      EXPECT_NE(settings.warnings[0].find("no effect here: " + std::string(key.path)),
                std::string::npos)
          << settings.warnings[0];
      EXPECT_EQ(settings.warnings[0].find('{'), std::string::npos) << settings.warnings[0];
    }
    if (key.in_any_case.empty()) continue;
    EXPECT_TRUE(
        Settings::from_json("{}", "f", {std::string(key.path) + "=" + std::string(key.in_any_case)})
            .warnings.empty())
        << key.path;
  }
}

// The engine's units, which a text cannot name.
TEST(KeyTable, HasTheUnitsThatTheEngineWorksIn) {
  const Key* const tile = find_key("headrace", "tile_elements");
  EXPECT_EQ(tile->multiple, base::kBlockElements);
  EXPECT_EQ(tile->least, static_cast<double>(base::kBlockElements));
}

// Of DeepSpeed's own history.
TEST(KeyTable, SaysWhichOfDeepSpeedsVersionsHaveWhat) {
  EXPECT_TRUE(
      find_key("bf16", "immediate_grad_update")->deepspeed_default.ends_with("false since 0.17.1"));
  for (const auto& [section, name] :
       {std::pair("fp16", "opt_level"), std::pair("bf16", "auto_cast")})
    EXPECT_NE(find_key(section, name)->help.find("0.19.8 refuses"), std::string_view::npos) << name;
}

TEST(SettingsDocument, IsWhatTheTableSays) {
  std::ifstream in(HEADRACE_SETTINGS_DOCUMENT);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), settings_document())
      << "docs/settings.md is out of date: run write_settings_doc > docs/settings.md";
}

TEST(SettingsDocument, NamesEveryKey) {
  const std::string text = settings_document();
  for (const Key& key : keys()) {
    if (key.kind == Kind::kSection) continue;
    EXPECT_NE(text.find("`" + std::string(key.path) + "`"), std::string::npos) << key.path;
  }
}

// The file that the document shows must be one that is accepted.
TEST(SettingsDocument, ShowsAFileThatIsAccepted) {
  const std::string text = settings_document();
  const std::size_t start = text.find("```json\n") + 8;
  const Settings settings =
      Settings::from_json(text.substr(start, text.find("```", start) - start));
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_EQ(settings.host_budget_bytes, 8ull << 30);
}
}  // namespace
}  // namespace headrace::settings
