// SPDX-License-Identifier: Apache-2.0
// Settings::to_json: every field by way of the table, in its order.
#include <nlohmann/json.hpp>

#include "settings/drive_path.hpp"
#include "settings/key_table.hpp"

namespace headrace {
namespace {
using nlohmann::ordered_json;
using settings::Key;

struct FieldToJson {
  const Key& key;
  const Settings& from;

  ordered_json operator()(std::monostate) const { return nullptr; }
  ordered_json operator()(bool Settings::*field) const { return from.*field; }
  ordered_json operator()(double Settings::*field) const { return from.*field; }
  ordered_json operator()(std::uint32_t Settings::*field) const { return from.*field; }
  ordered_json operator()(std::uint64_t Settings::*field) const { return from.*field; }
  ordered_json operator()(std::vector<double> Settings::*field) const {
    return (from.*field).empty() ? ordered_json("auto") : ordered_json(from.*field);
  }
  // Of what was not tuned nothing is said.
  ordered_json operator()(std::string Tuned::*field) const {
    const std::string& text = from.tuned.*field;
    return text.empty() ? ordered_json() : ordered_json(text);
  }
  ordered_json operator()(double Tuned::*field) const {
    const double rate = from.tuned.*field;
    return rate == 0 ? ordered_json() : ordered_json(rate);
  }
  template <class Choice>
  ordered_json operator()(Choice Settings::*field) const {
    return settings::choices_of(key)[static_cast<std::size_t>(from.*field)];
  }
};

ordered_json value_of(const Key& key, const Settings& from) {
  if (key.kind == settings::Kind::kSizeOrAuto) {
    return from.host_budget_auto ? ordered_json("auto") : ordered_json(from.host_budget_bytes);
  }
  if (key.kind == settings::Kind::kPathList) {
    ordered_json paths = ordered_json::array();
    for (const std::string& path : from.nvme_paths) paths.push_back(settings::escape_path(path));
    return paths;
  }
  return std::visit(FieldToJson{key, from}, key.field);
}

void put(ordered_json& root, std::string_view path, ordered_json value) {
  ordered_json* node = &root;
  for (;;) {
    const std::size_t dot = path.find('.');
    node = &(*node)[std::string(path.substr(0, dot))];
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  *node = std::move(value);
}
}  // namespace

std::string Settings::to_json() const {
  ordered_json root;
  for (const Key& key : settings::keys()) {
    ordered_json value = value_of(key, *this);
    if (!value.is_null()) put(root, key.path, std::move(value));
  }
  // A path may hold bytes that are not UTF-8, which JSON cannot: they are shown as U+FFFD.
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}
}  // namespace headrace
