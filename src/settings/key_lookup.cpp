// SPDX-License-Identifier: Apache-2.0
// Finding a key in the table, and saying what it accepts.
#include <charconv>
#include <map>

#include "base/units.hpp"
#include "settings/key_table.hpp"

namespace headrace::settings {
namespace {
std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}
std::string limit_text(const Key& key, double value) {
  if (key.kind == Kind::kSize) return base::format_bytes(static_cast<std::uint64_t>(value));
  if (key.kind == Kind::kInteger || key.kind == Kind::kEvery)
    return std::to_string(static_cast<std::int64_t>(value));
  return number_text(value);
}

std::string range_text(const Key& key) {
  std::string text;
  if (key.most == kMostOfF32) return " from 1.4e-45 to " + limit_text(key, key.most) + ", or 0";
  if (key.multiple > 1) text += ", a multiple of " + std::to_string(key.multiple);
  const bool low = key.least > -std::numeric_limits<double>::infinity();
  const bool high = key.most < std::numeric_limits<double>::infinity();
  if (low && high)
    text += " from " + limit_text(key, key.least) + " to " + limit_text(key, key.most);
  if (low && !high) text += ", at least " + limit_text(key, key.least);
  return text;
}

std::string choices_text(const Key& key) {
  std::string text;
  const auto choices = choices_of(key);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += "\"" + std::string(choices[i]) + "\"";
  }
  return text;
}
std::string kind_text(const Key& key) {
  switch (key.kind) {
    case Kind::kSection:
    case Kind::kOpenSection:
      return "an object {...}";
    case Kind::kBoolean:
      return "true or false";
    case Kind::kInteger:
      return "a whole number";
    case Kind::kNumber:
      return "a number";
    case Kind::kSize:
      return "bytes as a number or text like \"1MiB\"";
    case Kind::kSizeOrAuto:
      return "bytes as a number or text like \"1GiB\", or \"auto\"";
    case Kind::kText:
      return "text";
    case Kind::kPath:
      return "a path";
    case Kind::kPathList:
      return "a list of paths";
    case Kind::kTextList:
      return "a text or a list of texts";
    case Kind::kPair:
      return "a list of two numbers";
    case Kind::kSharesOrAuto:
      return "a list of numbers over 0, one per path, or \"auto\"";
    case Kind::kEvery:
      return choices_text(key) + ", or a whole number";
    case Kind::kChoice:
    case Kind::kSwitch:
      return choices_text(key);
  }
  return {};
}

}  // namespace

std::string_view Key::section() const {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
std::string_view Key::name() const { return path.substr(path.rfind('.') + 1); }

const Key* find_key(std::string_view section, std::string_view name) {
  using Name = std::pair<std::string_view, std::string_view>;
  static const std::map<Name, const Key*> by_name = [] {
    std::map<Name, const Key*> all;
    for (const Key& key : keys()) {
      all.emplace(Name{key.section(), key.name()}, &key);
      if (!key.also.empty()) all.emplace(Name{key.section(), key.also}, &key);
    }
    return all;
  }();
  const auto found = by_name.find({section, name});
  return found == by_name.end() ? nullptr : found->second;
}

std::vector<std::string_view> words_of(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t bar = list.find('|');
    words.push_back(list.substr(0, bar));
    list = bar == std::string_view::npos ? std::string_view() : list.substr(bar + 1);
  }
  return words;
}
std::vector<std::string_view> choices_of(const Key& key) { return words_of(key.choices); }

std::string fill_braces(std::string_view text,
                        const std::function<std::string(std::string_view)>& name) {
  std::string filled;
  for (;;) {
    const std::size_t open = text.find('{');
    const std::size_t close = text.find('}', open);
    filled += text.substr(0, open);
    if (close == std::string_view::npos) return filled;
    filled += name(text.substr(open + 1, close - open - 1));
    text.remove_prefix(close + 1);
  }
}

std::string help_text(const Key& key) {
  return fill_braces(key.help, [](std::string_view path) { return std::string(path); });
}

std::string allowed_text(const Key& key) {
  std::string text = kind_text(key) + range_text(key);
  if (key.nullable) text += ", or null";
  return text;
}
}  // namespace headrace::settings
