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
  const char *word, *colour;
};
std::string mark_text(Mark mark, Colour colour) {
  static constexpr std::array<MarkText, 4> kTexts{
      {{"ok  ", "\033[32m"}, {"note", "\033[33m"}, {"GAP ", "\033[31m"}, {"?   ", "\033[2m"}}};
  const MarkText& text = kTexts[static_cast<std::size_t>(mark)];
  if (colour == Colour::kNever) return text.word;
  return std::string(text.colour) + text.word + "\033[0m";
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

std::string row_text(const Row& row, Colour colour) {
  constexpr std::size_t kIndent = 27;
  const std::string value = !row.value.empty()           ? row.value
                            : row.mark == Mark::kUnknown ? "unknown"
                                                         : "";
  // The head is as wide as the indent but for the bytes of colour.
  const std::string head = fmt::format("  {} {:<19} ", mark_text(row.mark, colour), row.name);
  std::string text = head + wrapped("", printable(value), kIndent).substr(kIndent);
  if (!row.detail.empty()) text += wrapped("", printable(row.detail), kIndent);
  if (!row.consequence.empty()) text += wrapped("so:  ", printable(row.consequence), kIndent);
  if (!row.fix.empty()) text += wrapped("fix: ", printable(row.fix), kIndent);
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

Colour colour_of_stdout() {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && environment("TERM") != "dumb";
  return terminal && environment("NO_COLOR").empty() ? Colour::kWanted : Colour::kNever;
}

std::string sections_text(const std::vector<Section>& sections, Colour colour) {
  std::string text;
  for (const Section& section : sections) {
    text += printable(section.title) + "\n";
    for (const Row& row : section.rows) text += row_text(row, colour);
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
