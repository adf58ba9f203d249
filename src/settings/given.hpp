// SPDX-License-Identifier: Apache-2.0
// given.hpp: records which keys a settings text gives, and declares the steps of reading one.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/settings.hpp"
#include "settings/key_table.hpp"
#include "settings/locate.hpp"
#include "settings/report.hpp"

namespace headrace::settings {
struct GivenValue {
  Path path;  // as the text spells it
  const nlohmann::json* value;
};

// The keys in the text, by their path in the table.
class Given {
 public:
  // False if the key was there already, in its other spelling.
  bool add(std::string_view path, GivenValue value) {
    return values_.emplace(std::string(path), std::move(value)).second;
  }
  const std::map<std::string, GivenValue>& all() const { return values_; }
  const GivenValue* find(std::string_view path) const {
    const auto found = values_.find(std::string(path));
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, GivenValue> values_;
};

// A DeepSpeed key in the text that Headrace does not follow.
struct NotServed {
  const Key* key;
  GivenValue given;
};

// A text, read and checked, with the place of each key that it gives, and the keys that it leaves
// "auto", by their paths in the table.
struct Reading {
  Settings settings;
  std::map<std::string, std::string> places;
  std::set<std::string> open;
};
Reading read_settings(std::string_view text, const std::string& origin, const ReadOptions& options);
// Throws kSettings with the faults in the output of to_json(), by key alone.
void check_written(std::string_view text);
// The bytes of a settings file.
std::string read_settings_file(const std::string& path);

// Sets the "a.b=value" overrides in `root`, which is an object.
void apply_overrides(nlohmann::json& root, const std::vector<std::string>& overrides,
                     Report& report);

// Sets the trainer's values, "a.b=value", for keys that the text leaves "auto".
void fill_auto(nlohmann::json& root, const std::vector<std::string>& values, Report& report);

// The rule that DeepSpeed's `optimizer.type` names; no value if Headrace has no such rule.
std::optional<OptimizerRule> rule_of(const Given& given, std::string name);
// Checks that involve several keys: contradictions, paths, values that are rejected.
void check_together(const Given& given, Report& report, Settings& settings);
// Of the keys that divide the ranks into nodes.
void check_nodes(const Given& given, Report& report, Settings& settings);
void check_drive_paths(const Given& given, Report& report, Settings& settings);
// Of headrace.durable and the keys that depend on it.
void check_store(const Given& given, Report& report, const Settings& settings);
// Reports a fault for each of these keys that is in use and would change the training.
void refuse_not_served(const std::vector<NotServed>& keys, Report& report);
// Call it last: its warnings name replacements, which overrides and checks may have changed.
void warn_of_not_served(const std::vector<NotServed>& keys, const Settings& settings,
                        Report& report);
}  // namespace headrace::settings
