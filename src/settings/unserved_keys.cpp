// SPDX-License-Identifier: Apache-2.0
// unserved_keys.txt, as rows of the table. A line of it that means nothing is a bug of ours.
#include <algorithm>
#include <charconv>
#include <deque>
#include <map>

#include "base/check.hpp"
#include "settings/key_table.hpp"

namespace headrace::settings {
namespace {
constexpr std::string_view kText =
#include "unserved_keys.inc"
    ;

struct Type {
  std::string_view name;
  Kind kind;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::string_view unit = {};
};
constexpr Type kTypes[] = {
    {"section", Kind::kSection},
    {"object", Kind::kOpenSection},
    {"boolean", Kind::kBoolean},
    {"integer", Kind::kInteger},
    {"number", Kind::kNumber},
    {"text", Kind::kText},
    {"texts", Kind::kTextList},
    {"count", Kind::kInteger, 0},
    {"share", Kind::kNumber, 0, 1, "ratio"},
};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// What stands before `mark`, which is taken off `text` with it; all of it where there is none.
std::string_view take(std::string_view& text, std::string_view mark) {
  const std::size_t end = text.find(mark);
  const std::string_view before = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + mark.size());
  return trimmed(before);
}

class Lines {
 public:
  explicit Lines(std::string_view text) {
    while (!text.empty()) read(take(text, "\n"));
  }

  std::vector<Key> keys;

 private:
  void read(std::string_view line) {
    if (line.empty() || line.starts_with('#')) return;
    if (line.starts_with('[')) {
      section_ = take(line, "]").substr(1);
      take(line, "|");
      if (!line.empty()) add(section_, line);
    } else if (line.find('|') == line.npos) {
      const std::string_view name = take(line, "=");
      texts_[name] = trimmed(line);
    } else {
      std::string_view names = take(line, "|");
      const std::string_view name = take(names, ",");
      add(section_.empty() ? name : kept(std::string(section_) + "." + std::string(name)), line);
      keys.back().also = trimmed(names);
    }
  }

  void add(std::string_view path, std::string_view cells) {
    Key key{.path = path};
    read_values(take(cells, "|"), key);
    read_unsaid(take(cells, "|"), key);
    const std::string_view why = take(cells, "|");
    key.status = key.kind == Kind::kSection       ? Status::kEngine
                 : why.starts_with(kRefusedBegin) ? Status::kRefused
                                                  : Status::kNoEffect;
    key.help = text_of(key.status == Status::kRefused ? why.substr(kRefusedBegin.size()) : why);
    key.deepspeed_default = text_of(trimmed(cells));
    keys.push_back(key);
  }

  static void read_values(std::string_view text, Key& key) {
    key.nullable = text.ends_with(" or null");
    if (key.nullable) text.remove_suffix(std::string_view(" or null").size());
    const std::string_view limits = take(text, "(");
    key.unit = take(text, ")");
    std::string_view least = limits;
    const std::string_view name = take(least, " from ");
    const auto* type = std::ranges::find(kTypes, name, &Type::name);
    HEADRACE_CHECK(type != std::end(kTypes), std::string(limits).c_str());
    key.kind = type->kind;
    key.least = type->least, key.most = type->most;
    if (key.unit.empty()) key.unit = type->unit;
    if (least.empty()) return;
    const char* const end = least.data() + least.size();
    HEADRACE_CHECK(std::from_chars(least.data(), end, key.least).ptr == end,
                   std::string(limits).c_str());
  }

  static void read_unsaid(std::string_view text, Key& key) {
    key.off_by_default = text == "unless enabled";
    if (key.off_by_default) return;
    (text.starts_with("headrace.") ? key.same_as : key.in_any_case) = text;
  }

  std::string_view text_of(std::string_view cell) const {
    cell = trimmed(cell);
    if (!cell.starts_with('$')) return cell;
    const auto text = texts_.find(cell.substr(1));
    HEADRACE_CHECK(text != texts_.end(), std::string(cell).c_str());
    return text->second;
  }

  // Paths live as long as the program, as the rest of the text does.
  static std::string_view kept(std::string path) {
    static std::deque<std::string> paths;
    return paths.emplace_back(std::move(path));
  }

  static constexpr std::string_view kRefusedBegin = "refused:";
  std::string_view section_;
  std::map<std::string_view, std::string_view> texts_;
};
}  // namespace

std::vector<Key> unserved_keys() { return Lines(kText).keys; }
}  // namespace headrace::settings
