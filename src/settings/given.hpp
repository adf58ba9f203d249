// SPDX-License-Identifier: Apache-2.0
// given.hpp: which keys a reading found, and the steps that a reading is made of.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
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

// Keys that stand in the text, by their path in the table.
class Given {
 public:
  // False if it was there already, in its other spelling.
  bool add(std::string_view path, GivenValue value) {
    return values_.emplace(std::string(path), std::move(value)).second;
  }
  const GivenValue* find(std::string_view path) const {
    const auto found = values_.find(std::string(path));
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, GivenValue> values_;
};

// A key of DeepSpeed's that a reading found and nothing here follows.
struct NotServed {
  const Key* key;
  GivenValue given;
};

// Lays "a.b=value" over `root`, which is an object.
void apply_overrides(nlohmann::json& root, const std::vector<std::string>& overrides,
                     Report& report);

// Checks what one key at a time cannot say: contradictions, paths, values that are refused.
void check_together(const Given& given, Report& report, Settings& settings);
void check_drive_paths(const Given& given, Report& report, Settings& settings);
// To be called last: it names what is used instead, which overrides and checks may have changed.
void warn_of_not_served(const std::vector<NotServed>& keys, const Given& given,
                        const Settings& settings, Report& report);
void check_optimizer(const Given& given, Report& report);
}  // namespace headrace::settings
