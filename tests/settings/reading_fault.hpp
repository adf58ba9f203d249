// SPDX-License-Identifier: Apache-2.0
// reading_fault.hpp: what must hold of any text that is read as settings.
#pragma once
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "schema_fault.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings_reference/reference.hpp"

namespace headrace::settings {
// The first key in `object` that the table does not hold, or "".
inline std::string unknown_key_in(const nlohmann::json& object, const std::string& section) {
  for (const auto& [name, value] : object.items()) {
    if (name.starts_with('_') || name == "$schema") continue;
    const Key* key = find_key(section, name);
    if (key == nullptr) return section + "." + name;
    if (key->kind != Kind::kSection || !value.is_object()) continue;
    std::string inside = unknown_key_in(value, std::string(key->path));
    if (!inside.empty()) return inside;
  }
  return "";
}

struct ReadingFault {
  bool accepted = false;
  std::string fault;  // "": what had to hold did
};

// Accepted: an unknown key is named in a warning, the settings write themselves as a text that
// gives the same, each value that holds is printed, and the schema takes the text too. Refused: an
// error of ours that says what is wrong and where.
inline ReadingFault fault_of_reading(const std::string& text) {
  static const nlohmann::json schema = nlohmann::json::parse(settings_schema());
  try {
    const ReadOptions options{.leave_auto_open = true};
    const Settings settings = Settings::from_json(text, "settings", options);
    const Document document = parse_document(text, Syntax::kRelaxed);
    if (!document.faults.empty()) return {true, "accepted, though it has faults"};
    const std::string unknown = unknown_key_in(document.value, "");
    const auto names_one = [](const std::string& warning) {
      return warning.find("unknown key: ") != std::string::npos;
    };
    if (!unknown.empty() && std::ranges::none_of(settings.warnings, names_one))
      return {true, "accepted in silence with the unknown key " + unknown};
    Settings asked = settings;
    if (!asked.parameter_dtype()) asked.bf16 = false;  // what a text without a dtype asks for
    const std::string written = asked.to_json();
    const Settings again = Settings::from_json(written);
    if (again.to_json() != written) return {true, "not the same when it is read again: " + written};
    if (read_effective(text, "settings", options).values.empty()) return {true, "nothing is shown"};
    // Editors are told of all unknown keys, as the strict reader is.
    const std::string fault = unknown.empty() ? schema_fault(schema, document.value) : "";
    return {true, fault.empty() ? "" : "the schema rejects it: " + fault};
  } catch (const Error& error) {
    const std::string refusal = error.what();
    if (error.code() != Code::kSettings) return {false, "refused with another code: " + refusal};
    if (!refusal.starts_with("settings:")) return {false, "refused without a place: " + refusal};
    if (refusal.ends_with(": not JSON")) return {false, "nothing says what is wrong"};
    return {};
  }
}
}  // namespace headrace::settings
