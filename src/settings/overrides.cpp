// SPDX-License-Identifier: Apache-2.0
#include "settings/given.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

std::vector<std::string> split_names(std::string_view dotted) {
  std::vector<std::string> names;
  for (;;) {
    const std::size_t dot = dotted.find('.');
    names.emplace_back(dotted.substr(0, dot));
    if (dot == std::string_view::npos) return names;
    dotted.remove_prefix(dot + 1);
  }
}

// The spelling of `name` that `object` holds already, so that an override replaces it.
std::string spelling_in(const json& object, const Key* key, const std::string& name) {
  if (key == nullptr || key->also.empty() || object.contains(name)) return name;
  for (const std::string_view other : {key->name(), key->also}) {
    if (object.contains(other)) return std::string(other);
  }
  return name;
}

// JSON if it is JSON, else the text itself; but what opens a list, an object or a text was meant as
// one.
bool parse_value(const std::string& text, const std::string& key, Report& report, json& out) {
  Document document = parse_document(text, Syntax::kStrict);
  if (document.faults.empty()) {
    out = std::move(document.value);
    return true;
  }
  if (!text.empty() && std::string_view("{[\"").find(text[0]) != std::string_view::npos) {
    const TextFault& fault = document.faults[0];
    const std::size_t column = position_at(text, fault.offset).column;
    report.fault_in_override(key,
                             "column " + std::to_string(column) + " of the value: " + fault.text);
    return false;
  }
  out = text;
  return true;
}

const Key* key_of(const std::vector<std::string>& names) {
  const Key* key = nullptr;
  std::string section;
  for (const std::string& name : names) {
    key = find_key(section, name);
    section = key != nullptr ? std::string(key->path) : section + "." + name;
  }
  return key;
}

// A name or a path stands as it is: a store may be called 123, or true.
bool is_plain_text(const Key* key, const std::string& text) {
  if (key == nullptr || text.empty() || (key->nullable && text == "null")) return false;
  const bool takes_text =
      key->kind == Kind::kText || key->kind == Kind::kPath || key->kind == Kind::kTextList;
  return takes_text && std::string_view("{[\"").find(text[0]) == std::string_view::npos;
}

void apply_override(json& root, const std::string& assignment, Report& report) {
  const std::size_t equals = assignment.find('=');
  const std::string dotted = assignment.substr(0, equals);
  const std::string key_text = one_line(dotted);
  const std::vector<std::string> names = split_names(dotted);
  bool well_formed = equals != std::string::npos;
  for (const std::string& name : names) well_formed = well_formed && !name.empty();
  if (!well_formed) {
    report.fault_in_override(one_line(assignment),
                             "not of the form KEY=VALUE, e.g. "
                             "headrace.update_slots=4");
    return;
  }
  const std::string text = assignment.substr(equals + 1);
  json value;
  if (is_plain_text(key_of(names), text)) {
    value = text;
  } else if (!parse_value(text, key_text, report, value)) {
    return;
  }
  json* node = &root;
  Path path;
  std::string section;
  std::string created;  // the topmost object that was not there before
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (node->is_null()) *node = json::object();
    if (!node->is_object()) {
      report.fault_in_override(key_text, path.dotted + " is not a section: it holds a value");
      return;
    }
    const Key* key = find_key(section, names[i]);
    const std::string name = spelling_in(*node, key, names[i]);
    path = path.member(name);
    if (created.empty() && !node->contains(name)) created = path.pointer;
    node = &(*node)[name];
    section = key != nullptr ? std::string(key->path) : path.dotted;
  }
  *node = std::move(value);
  report.mark_override(created.empty() ? path.pointer : created, key_text);
}
}  // namespace

void fill_auto(json& root, const std::vector<std::string>& values, Report& report) {
  for (const std::string& assignment : values) {
    const std::size_t equals = assignment.find('=');
    json* node = &root;
    std::string section;
    for (const std::string& part : split_names(assignment.substr(0, equals))) {
      const Key* key = find_key(section, part);
      const std::string name = node->is_object() ? spelling_in(*node, key, part) : "";
      if (name.empty() || !node->contains(name)) {
        node = nullptr;
        break;
      }
      node = &(*node)[name];
      section = key != nullptr ? std::string(key->path) : std::string();
    }
    if (node == nullptr || *node != "auto" || equals == std::string::npos) continue;
    json value;
    if (!parse_value(assignment.substr(equals + 1), assignment.substr(0, equals), report, value))
      continue;
    // Parameters have one dtype: the file's, not the trainer's beside it.
    const json* fp16 = find_in(root, "fp16.enabled");
    const bool second = section == "bf16.enabled" && fp16 != nullptr && *fp16 == true;
    *node = second ? json(false) : std::move(value);
  }
}

void apply_overrides(json& root, const std::vector<std::string>& overrides, Report& report) {
  for (const std::string& assignment : overrides) apply_override(root, assignment, report);
}
}  // namespace headrace::settings
