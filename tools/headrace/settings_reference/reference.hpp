// SPDX-License-Identifier: Apache-2.0
// reference.hpp: the table of keys, and what a file makes of it, for people and editors.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::settings {
// The text of docs/settings.md.
std::string settings_document();
// The text of docs/settings.schema.json.
std::string settings_schema();

// The key of that path, or of one that ends in it, in words. Throws kNotFound naming near ones.
std::string explain(std::string_view key);

// One key that is honoured, and where its value is from.
struct Effective {
  std::string key;
  std::string value;   // JSON
  std::string origin;  // "ds.json:3:5", "--set a.b", "default", "follows from others"
};
struct EffectiveSettings {
  Settings settings;
  std::vector<Effective> values;  // in the table's order; what is neither given nor has a default
                                  // is left out
};
// Throws as Settings::from_json() does.
EffectiveSettings read_effective(std::string_view text, const std::string& origin,
                                 const ReadOptions& options);
EffectiveSettings read_effective_file(const std::string& path, const ReadOptions& options);
}  // namespace headrace::settings
