// SPDX-License-Identifier: Apache-2.0
// schema_fault.hpp: JSON Schema, as much of it as ours uses.
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace headrace {
namespace schema {
using nlohmann::json;

inline bool has_type(const json& value, const std::string& type) {
  if (type == "integer")
    return value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  return value.type_name() == type;
}
}  // namespace schema

// "" if `value` is what `schema` describes; else where and what is wrong.
inline std::string schema_fault(const nlohmann::json& schema, const nlohmann::json& value,
                                const std::string& at = "") {
  for (const auto& [word, rule] : schema.items()) {
    const auto fault = [&, &word = word, &rule = rule] {
      return at + ": " + word + " " + rule.dump();
    };
    if (word == "anyOf") {
      bool any = false;
      for (const auto& one : rule) any = any || schema_fault(one, value, at).empty();
      if (!any) return fault();
    } else if (word == "const" && value != rule) {
      return fault();
    } else if (word == "enum") {
      if (std::find(rule.begin(), rule.end(), value) == rule.end()) return fault();
    } else if (word == "type" && !schema::has_type(value, rule)) {
      return fault();
    } else if (word == "pattern" && value.is_string()) {
      if (!std::regex_search(value.get<std::string>(), std::regex(rule.get<std::string>())))
        return fault();
    } else if (word == "minimum" && value.is_number() && value < rule) {
      return fault();
    } else if (word == "maximum" && value.is_number() && value > rule) {
      return fault();
    } else if (word == "multipleOf" && value.is_number()) {
      if (std::fmod(value.get<double>(), rule.get<double>()) != 0) return fault();
    } else if ((word == "minItems" && value.is_array() && value.size() < rule) ||
               (word == "maxItems" && value.is_array() && value.size() > rule)) {
      return fault();
    } else if (word == "items" && value.is_array()) {
      for (const auto& one : value) {
        const std::string inside = schema_fault(rule, one, at + "[]");
        if (!inside.empty()) return inside;
      }
    } else if (word == "properties" && value.is_object()) {
      for (const auto& [name, one] : value.items()) {
        if (name.starts_with('_')) continue;  // the one pattern
        if (!rule.contains(name)) return at + "." + name + ": additionalProperties false";
        const std::string inside = schema_fault(rule[name], one, at + "." + name);
        if (!inside.empty()) return inside;
      }
    }
  }
  return "";
}
}  // namespace headrace
