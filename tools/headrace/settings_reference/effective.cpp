// SPDX-License-Identifier: Apache-2.0
// The effective values of a settings file, and one key in words.
#include <algorithm>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "settings/given.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings_reference/reference.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

std::vector<const Key*> keys_named(std::string_view name) {
  std::vector<const Key*> found;
  for (const Key& key : keys()) {
    const std::string other = key.also.empty()
                                  ? ""
                                  : std::string(key.section()) +
                                        (key.section().empty() ? "" : ".") + std::string(key.also);
    for (const std::string_view path : {key.path, std::string_view(other)}) {
      if (path == name) return {&key};
      if (path.ends_with("." + std::string(name))) found.push_back(&key);
    }
  }
  return found;
}

std::string words_of(const Key& key, const json& defaults) {
  std::string text(key.path);
  if (!key.also.empty()) text += ", also " + std::string(key.also);
  text += "\n  values    " + allowed_text(key);
  if (!key.unit.empty()) text += " (" + std::string(key.unit) + ")";
  const json* value = find_in(defaults, key.path);
  if (key.honoured_value())
    text += "\n  default   " + (value != nullptr ? value->dump() : "not given");
  if (!key.deepspeed_default.empty())
    text += "\n  DeepSpeed's default: " + std::string(key.deepspeed_default);
  constexpr const char* kBy[] = {"the engine", "the trainer", "nothing: it has no effect here",
                                 "nothing: it is refused"};
  if (key.kind != Kind::kSection)
    text += std::string("\n  followed by ") + kBy[static_cast<std::size_t>(key.status)];
  if (!key.of_types.empty()) text += "\n  with      " + std::string(key.of_types);
  if (!key.in_any_case.empty()) text += "\n  no word at " + std::string(key.in_any_case);
  return text + "\n  " + help_text(key) + "\n";
}
}  // namespace

std::string explain(std::string_view name) {
  const std::vector<const Key*> found = keys_named(name);
  if (found.empty()) {
    std::vector<std::string_view> names;
    for (const Key& key : keys()) {
      names.push_back(key.path);
      names.push_back(key.name());
    }
    const std::string_view near = base::nearest_word(name, names);
    throw Error(Code::kNotFound,
                "no key is called '" + one_line(name) + "'" +
                    (near.empty() ? "; docs/settings.md lists all"
                                  : "; did you mean '" + std::string(near) + "'?"));
  }
  const json defaults = json::parse(Settings{}.to_json());
  std::string text;
  for (const Key* key : found) text += (text.empty() ? "" : "\n") + words_of(*key, defaults);
  return text;
}

EffectiveSettings read_effective(std::string_view text, const std::string& origin,
                                 const ReadOptions& options) {
  Reading reading = read_settings(text, origin, options);
  const json values = json::parse(reading.settings.to_json());
  Settings usual_settings;
  usual_settings.scheduler.type = reading.settings.scheduler.type;  // its keys are of a type
  const json defaults = json::parse(usual_settings.to_json());
  EffectiveSettings effective;
  for (const Key& key : keys()) {
    const json* value = key.honoured_value() ? find_in(values, key.path) : nullptr;
    const auto place = reading.places.find(std::string(key.path));
    if (key.honoured_value() && reading.open.contains(std::string(key.path))) {
      effective.values.push_back({std::string(key.path), "\"auto\"", place->second + " (open)"});
      continue;
    }
    if (value == nullptr) continue;
    const json* usual = find_in(defaults, key.path);
    const bool by_type =
        key.path == "headrace.optimizer" && reading.places.contains("optimizer.type");
    const bool is_default = usual != nullptr && *usual == *value && !by_type;
    effective.values.push_back(
        {std::string(key.path), value->dump(),
         place != reading.places.end() ? place->second
         : !is_default                 ? "follows from others"
         : key.deepspeed_default.empty()
             ? "default"
             : "default (DeepSpeed: " + std::string(key.deepspeed_default) + ")"});
  }
  effective.settings = std::move(reading.settings);
  return effective;
}

EffectiveSettings read_effective_file(const std::string& path, const ReadOptions& options) {
  return read_effective(read_settings_file(path), path, options);
}
}  // namespace headrace::settings
