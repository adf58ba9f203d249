// SPDX-License-Identifier: Apache-2.0
// The JSON Schema of settings files, as the strict reader takes them. It may let pass what the
// parser refuses, but not the other way round: what no single key says (contradictions, refused
// features) is the parser's alone.
#include <nlohmann/json.hpp>

#include "settings/key_table.hpp"
#include "settings_reference/reference.hpp"

namespace headrace::settings {
namespace {
using nlohmann::ordered_json;

void add_range(ordered_json& schema, const Key& key) {
  if (key.least > -std::numeric_limits<double>::infinity()) schema["minimum"] = key.least;
  if (key.most < std::numeric_limits<double>::infinity()) schema["maximum"] = key.most;
  if (key.multiple > 1) schema["multipleOf"] = key.multiple;
}

ordered_json list_of(const char* type) { return {{"type", "array"}, {"items", {{"type", type}}}}; }

ordered_json words_schema(const Key& key) {
  ordered_json choices = ordered_json::array();
  for (const std::string_view word : choices_of(key)) choices.push_back(word);
  if (key.kind == Kind::kSwitch) {
    choices.push_back(true);
    choices.push_back(false);
  }
  return {{"enum", choices}};
}

ordered_json size_schema(const Key& key) {
  ordered_json number = {{"type", "integer"}, {"minimum", 0}};
  add_range(number, key);
  return {{"anyOf", {number, {{"type", "string"}, {"pattern", "^[0-9.]+ ?([KMGT]i?)?B$"}}}}};
}

ordered_json number_schema(const char* type, const Key& key) {
  ordered_json schema = {{"type", type}};
  add_range(schema, key);
  return schema;
}

ordered_json pair_schema(const Key& key) {
  ordered_json schema = list_of("number");
  add_range(schema["items"], key);
  schema["minItems"] = schema["maxItems"] = 2;
  return schema;
}

// Of a value that is neither null nor "auto".
ordered_json value_schema(const Key& key) {
  switch (key.kind) {
    case Kind::kSection:
    case Kind::kOpenSection:
      return {{"type", "object"}};
    case Kind::kBoolean:
      return {{"type", "boolean"}};
    case Kind::kInteger:
      return number_schema("integer", key);
    case Kind::kNumber:
      return number_schema("number", key);
    case Kind::kSize:
    case Kind::kSizeOrAuto:
      return size_schema(key);
    case Kind::kChoice:
    case Kind::kSwitch:
      return words_schema(key);
    case Kind::kText:
    case Kind::kPath:
      return {{"type", "string"}};
    case Kind::kPathList:
      return list_of("string");
    case Kind::kTextList:
      return {{"anyOf", {{{"type", "string"}}, list_of("string")}}};
    case Kind::kSharesOrAuto:
      return list_of("number");
    case Kind::kEvery:
      return {{"anyOf", {number_schema("integer", key), words_schema(key)}}};
    case Kind::kPair:
      return pair_schema(key);
  }
  return ordered_json::object();
}

// An object with the keys of `section`, and notes.
ordered_json object_schema(std::string_view section);

ordered_json key_schema(const Key& key) {
  ordered_json schema = key.kind == Kind::kSection ? object_schema(key.path) : value_schema(key);
  ordered_json any = ordered_json::array({std::move(schema)});
  if (key.nullable || key.off_by_default) any.push_back({{"type", "null"}});
  if (key.off_by_default) any.push_back({{"const", false}});
  if (key.path == "zero_optimization") any.push_back({{"type", "boolean"}});
  if (key.kind != Kind::kSection) any.push_back({{"const", "auto"}});
  ordered_json full = any.size() == 1 ? any[0] : ordered_json{{"anyOf", any}};
  full["description"] = help_text(key);
  return full;
}

ordered_json object_schema(std::string_view section) {
  ordered_json properties = ordered_json::object();
  for (const Key& key : keys()) {
    if (key.section() != section) continue;
    const ordered_json schema = key_schema(key);
    properties[std::string(key.name())] = schema;
    if (!key.also.empty()) properties[std::string(key.also)] = schema;
  }
  properties["$schema"] = ordered_json::object();
  return {{"type", "object"},
          {"properties", properties},
          {"patternProperties", {{"^_", ordered_json::object()}}},
          {"additionalProperties", false}};
}
}  // namespace

std::string settings_schema() {
  ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                         {"title", "Settings of Headrace, in DeepSpeed's shape"}};
  schema.update(object_schema(""));
  return schema.dump(1) + "\n";
}
}  // namespace headrace::settings
