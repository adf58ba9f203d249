// SPDX-License-Identifier: Apache-2.0
// Settings of DeepSpeed that Headrace lacks: a warning per key, with its value and what is used
// instead.
#include <cmath>

#include "settings/given.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings/values.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

// "16", "\"auto\"", "[0.9,0.95]"; nothing for what would be long.
std::string short_text(const json& value) {
  constexpr std::size_t kMost = 40;
  if (value.is_object() || value.is_null()) return "";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::trunc(number) == number && std::fabs(number) < 1e15) {
      return std::to_string(static_cast<std::int64_t>(number));
    }
  }
  // Overrides may not be UTF-8.
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > kMost ? "" : one_line(text);
}

// `path` as it stands in `effective`, "headrace.queue_depth = 16"; the path alone if it has no
// default.
std::string name_and_value(std::string_view path, const json& effective) {
  const json* value = find_in(effective, path);
  return std::string(path) + (value != nullptr ? " = " + short_text(*value) : "");
}

// DeepSpeed divides modules from two on.
bool divides_no_module(const Key& key, const json& value) {
  if (key.path != "tensor_parallel" || !value.is_object()) return false;
  const auto size = value.find("autotp_size");
  return size == value.end() || (size->is_number() && *size <= 1);
}

// The value says what is done in any case.
bool is_followed(const Key& key, const json& value, const json& effective) {
  if (!key.in_any_case.empty() && value == json::parse(key.in_any_case)) return true;
  if (key.kind == Kind::kOpenSection && value.is_object()) {
    if (value.contains("enabled")) return value["enabled"] == false;
    if (value.empty() || divides_no_module(key, value)) return true;
  }
  if (key.same_as.empty()) return false;
  const json* ours = find_in(effective, key.same_as);
  return ours != nullptr && value == *ours;
}

// A section with keys of its own, and nobody switched it on.
bool lacks_enabled(const Key& key, const json& value) {
  return key.off_by_default && value.is_object() && !value.empty() && !value.contains("enabled");
}

std::string line_of(const Key& key, const GivenValue& given, const json& effective) {
  const std::string value = short_text(*given.value);
  const std::string instead = lacks_enabled(key, *given.value)
                                  ? "it is off without \"enabled\": true, as in DeepSpeed"
                                  : fill_braces(key.help, [&](std::string_view path) {
                                      return name_and_value(path, effective);
                                    });
  return "no effect here: " + given.path.dotted + (value.empty() ? "" : " = " + value) + " (" +
         instead + ")";
}
}  // namespace

void refuse_not_served(const std::vector<NotServed>& keys, Report& report) {
  for (const NotServed& one : keys) {
    const json& value = *one.given.value;
    if (one.key->status != Status::kRefused || is_followed(*one.key, value, {}) ||
        lacks_enabled(*one.key, value))
      continue;
    report.fault(one.given.path, found_text(value) + ", which is refused: " + help_text(*one.key));
  }
}

void warn_of_not_served(const std::vector<NotServed>& keys, const Settings& settings,
                        Report& report) {
  if (keys.empty()) return;
  const json effective = json::parse(settings.to_json());
  for (const NotServed& one : keys) {
    if (is_followed(*one.key, *one.given.value, effective)) continue;
    report.warn_at(report.place_of(one.given.path), line_of(*one.key, one.given, effective));
  }
}
}  // namespace headrace::settings
