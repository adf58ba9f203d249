// SPDX-License-Identifier: Apache-2.0
// Settings::to_json: every field by way of the table, in its order.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "settings/drive_path.hpp"
#include "settings/given.hpp"
#include "settings/key_table.hpp"

namespace headrace {
namespace {
using nlohmann::ordered_json;
using settings::Key;

struct FieldToJson {
  const Key& key;
  Settings& from;

  ordered_json operator()(std::monostate) const { return nullptr; }
  ordered_json operator()(settings::ChoiceIn field) const {
    const auto choices = settings::choices_of(key);
    const std::size_t index = field.get(from);
    // A value that is no enumerator is written so that a reader finds it.
    if (index >= choices.size()) return "enumerator " + std::to_string(index);
    return choices[index];
  }
  ordered_json operator()(settings::In<std::vector<double>> field) const {
    return field(from).empty() ? ordered_json("auto") : ordered_json(field(from));
  }
  ordered_json operator()(settings::In<std::string> field) const {
    return field(from).empty() ? ordered_json() : ordered_json(field(from));
  }
  template <class T>
  ordered_json operator()(settings::In<T> field) const {
    return written(field(from));
  }
  template <class T>
  ordered_json operator()(settings::In<std::optional<T>> field) const {
    return field(from) ? written(*field(from)) : ordered_json();
  }

 private:
  // JSON has neither NaN nor infinity, and would say null, which is "not given".
  template <class T>
  static ordered_json written(const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      if (!std::isfinite(value)) return std::to_string(value);
    }
    return value;
  }
};

// Of a scheduler its own keys alone.
bool is_of(const Key& key, const Settings& from) {
  if (!key.path.starts_with("scheduler")) return true;
  if (from.scheduler.type == SchedulerType::kNone) return false;
  const auto types = settings::words_of(key.of_types);
  return types.empty() ||
         std::ranges::find(types, std::string_view(name_of(from.scheduler.type))) != types.end();
}

// Micro-batches per step that follow from the two batch sizes.
bool follows(const Key& key, const Settings& from) {
  return key.path == "gradient_accumulation_steps" && from.gradient_accumulation_steps == 0 &&
         from.train_batch_size && from.train_micro_batch_size_per_gpu;
}

ordered_json value_of(const Key& key, Settings& from) {
  if (!is_of(key, from) || follows(key, from)) return nullptr;
  if (key.kind == settings::Kind::kSizeOrAuto) {
    return from.host_budget_auto ? ordered_json("auto") : ordered_json(from.host_budget_bytes);
  }
  if (key.kind == settings::Kind::kEvery) {
    const std::uint64_t every = std::get<settings::In<std::uint64_t>>(key.field)(from);
    const auto words = settings::choices_of(key);
    if (every < words.size()) return words[every];
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

void Settings::check() const { settings::check_written(to_json()); }

std::string settings::value_text(const Key& key, const Settings& settings) {
  Settings from = settings;
  const ordered_json value = value_of(key, from);
  return value.is_null() ? "" : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string settings::lines_of(const Settings& settings) {
  std::string lines;
  for (const Key& key : keys()) {
    const std::string value = value_text(key, settings);
    if (!value.empty()) lines += std::string(key.path) + " = " + value + "\n";
  }
  return lines;
}

std::string Settings::to_json() const {
  ordered_json root;
  Settings all = *this;
  for (const Key& key : settings::keys()) {
    ordered_json value = value_of(key, all);
    if (!value.is_null()) put(root, key.path, std::move(value));
  }
  // A path may hold bytes that are not UTF-8, which JSON cannot: they are shown as U+FFFD.
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}
}  // namespace headrace
