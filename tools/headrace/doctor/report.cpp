// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "platform/proc_files.hpp"

namespace headrace::tools {
namespace {
constexpr std::size_t kWidth = 100;  // columns

struct MarkText {
  const char *word, *sign, *colour;
};
const MarkText& text_of(Mark mark) {
  static constexpr std::array<MarkText, 4> kTexts{{{"ok  ", "\u2713", "\033[32m"},
                                                   {"note", "\u2022", "\033[33m"},
                                                   {"GAP ", "\u2717", "\033[31m"},
                                                   {"?   ", "?", "\033[2m"}}};
  return kTexts[static_cast<std::size_t>(mark)];
}

std::string mark_text(Mark mark, const Style& style) {
  const MarkText& text = text_of(mark);
  const std::string plain = style.utf8 ? text.sign : text.word;
  return style.colour ? text.colour + plain + "\033[0m" : plain;
}

// Models and mount points come from elsewhere: no control characters.
std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As the C library decides which locale holds.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = environment(name);
    if (value.empty()) continue;
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

// `text` behind `indent` blanks, the first line behind `lead` at their end, no line longer than
// kWidth where a blank allows.
std::string wrapped(const std::string& lead, const std::string& text, std::size_t indent) {
  std::string lines, line(indent, ' ');
  line += lead;
  const std::size_t begin = line.size();
  for (const std::string_view word : platform::split(text, ' ')) {
    if (line.size() > begin && line.size() + 1 + word.size() > kWidth) {
      lines += line + "\n";
      line = std::string(begin, ' ');
    }
    line += (line.size() > begin ? " " : "") + std::string(word);
  }
  return lines + line + "\n";
}

std::string row_text(const Row& row, const Style& style) {
  const std::size_t indent = style.utf8 ? 24 : 27;
  const std::string value = !row.value.empty()           ? row.value
                            : row.mark == Mark::kUnknown ? "unknown"
                                                         : "";
  // The head is as wide as the indent but for the bytes of colour and sign.
  const std::string head = fmt::format("  {} {:<19} ", mark_text(row.mark, style), row.name);
  std::string text = head + wrapped("", printable(value), indent).substr(indent);
  if (!row.detail.empty()) text += wrapped("", printable(row.detail), indent);
  if (!row.consequence.empty()) text += wrapped("so:  ", printable(row.consequence), indent);
  if (!row.fix.empty()) text += wrapped("fix: ", printable(row.fix), indent);
  return text;
}

std::array<std::size_t, 4> count_marks(const std::vector<Section>& sections) {
  std::array<std::size_t, 4> counts{};
  for (const Section& section : sections)
    for (const Row& row : section.rows) ++counts[static_cast<std::size_t>(row.mark)];
  return counts;
}

Json row_json(const Row& row) {
  return {{"name", row.name},     {"mark", name_of(row.mark)},      {"value", row.value},
          {"detail", row.detail}, {"consequence", row.consequence}, {"fix", row.fix},
          {"values", row.values}};
}
}  // namespace

Style style_of_stdout() {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && environment("TERM") != "dumb";
  return {.colour = terminal && environment("NO_COLOR").empty(),
          .utf8 = terminal && locale_is_utf8()};
}

std::string sections_text(const std::vector<Section>& sections, const Style& style) {
  std::string text;
  for (const Section& section : sections) {
    text += printable(section.title) + "\n";
    for (const Row& row : section.rows) text += row_text(row, style);
    text += "\n";
  }
  const auto [ok, notes, gaps, unknown] = count_marks(sections);
  return text + fmt::format("{} ok, {} note{}, {} gap{}, {} unknown\n", ok, notes,
                            notes == 1 ? "" : "s", gaps, gaps == 1 ? "" : "s", unknown);
}

Json sections_json(const std::vector<Section>& sections) {
  const auto [ok, notes, gaps, unknown] = count_marks(sections);
  Json json;
  json["counts"] = {{"ok", ok}, {"note", notes}, {"gap", gaps}, {"unknown", unknown}};
  json["sections"] = Json::array();
  for (const Section& section : sections) {
    Json rows = Json::array();
    for (const Row& row : section.rows) rows.push_back(row_json(row));
    json["sections"].push_back({{"title", section.title}, {"path", section.path}, {"rows", rows}});
  }
  return json;
}

Json missed_json(const std::vector<Missed>& missed) {
  Json json = Json::array();
  for (const Missed& one : missed) {
    json.push_back({{"required", one.required}, {"found", one.found}, {"fix", one.fix}});
  }
  return json;
}
}  // namespace headrace::tools
