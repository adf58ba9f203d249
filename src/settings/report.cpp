// SPDX-License-Identifier: Apache-2.0
#include "settings/report.hpp"

#include <algorithm>

namespace headrace::settings {
void Report::mark_override(const std::string& pointer, const std::string& key) {
  overrides_.push_back({pointer, key});
}

Place Report::place_at(std::size_t offset) const {
  const TextPosition at = position_at(text_, offset);
  return {offset,
          std::string(origin_) + ":" + std::to_string(at.line) + ":" + std::to_string(at.column),
          ""};
}

const std::string* Report::override_of(const Path& path) const {
  for (auto it = overrides_.rbegin(); it != overrides_.rend(); ++it) {
    if (path.pointer == it->pointer || path.pointer.starts_with(it->pointer + "/")) return &it->key;
  }
  return nullptr;
}

std::size_t Report::offset_of(const Path& path) const {
  for (std::string pointer = path.pointer; offsets_ != nullptr && !pointer.empty();
       pointer.erase(pointer.rfind('/'))) {
    if (const auto found = offsets_->find(pointer); found != offsets_->end()) return found->second;
  }
  return 0;
}

std::size_t Report::order_of(const Path& path) const {
  return override_of(path) != nullptr ? kAfterTheText : offset_of(path);
}

Place Report::place_of(const Path& path) const {
  const std::string* key = override_of(path);
  return key != nullptr ? Place{kAfterTheText, "--set " + *key, *key} : place_at(offset_of(path));
}

// The key's name, unless the place says it.
std::string Report::line(const Place& place, const Path& path, const std::string& text) const {
  if (!places_) return path.dotted + ": " + text;
  const bool said = path.dotted.empty() || path.dotted == place.override_key;
  return place.text + ": " + (said ? "" : path.dotted + ": ") + text;
}

void Report::fault(const Path& path, const std::string& text) {
  const Place place = place_of(path);
  faults_.push_back({place.order, line(place, path, text)});
}

void Report::fault_at(std::size_t offset, const std::string& text) {
  const Place place = place_at(offset);
  faults_.push_back({place.order, place.text + ": " + text});
}

void Report::fault_in_override(const std::string& key, const std::string& text) {
  faults_.push_back({kAfterTheText, "--set " + key + ": " + text});
}

void Report::warn(const Path& path, const std::string& text) {
  const Place place = place_of(path);
  warnings_.push_back({place.order, line(place, path, text)});
}

void Report::warn_at(const Place& place, const std::string& text) {
  warnings_.push_back({place.order, place.text + ": " + text});
}

std::vector<Report::Line> Report::sorted(std::vector<Line> lines) {
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.order < b.order; });
  return lines;
}

std::string Report::faults_text() const {
  std::string text;
  std::vector<Line> lines = sorted(faults_);
  if (full()) lines.resize(kMostFaults);
  for (const Line& line : lines) text += (text.empty() ? "" : "\n") + line.text;
  if (full()) text += "\nand perhaps more: these are the first " + std::to_string(kMostFaults);
  return text;
}

std::vector<std::string> Report::warnings() const {
  std::vector<std::string> texts;
  for (Line& line : sorted(warnings_)) texts.push_back(std::move(line.text));
  return texts;
}
}  // namespace headrace::settings
