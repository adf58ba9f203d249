// SPDX-License-Identifier: Apache-2.0
#include "command_line/quantities.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>

#include "base/units.hpp"

namespace headrace::command_line {
namespace {
struct Unit {
  std::string_view name;
  double factor, divisor = 1;  // 1e-3 is no double, and x / 1e3 rounds once
};
// In any case of letters.
constexpr std::array kSizes{Unit{"", 1},         Unit{"b", 1},        Unit{"k", 0x1p10},
                            Unit{"kib", 0x1p10}, Unit{"m", 0x1p20},   Unit{"mib", 0x1p20},
                            Unit{"g", 0x1p30},   Unit{"gib", 0x1p30}, Unit{"t", 0x1p40},
                            Unit{"tib", 0x1p40}, Unit{"p", 0x1p50},   Unit{"pib", 0x1p50},
                            Unit{"kb", 1e3},     Unit{"mb", 1e6},     Unit{"gb", 1e9},
                            Unit{"tb", 1e12},    Unit{"pb", 1e15}};
constexpr std::array kTimes{Unit{"", 1},        Unit{"s", 1},       Unit{"sec", 1},
                            Unit{"us", 1, 1e6}, Unit{"ms", 1, 1e3}, Unit{"m", 60},
                            Unit{"min", 60},    Unit{"h", 3600},    Unit{"d", 86400}};
constexpr std::array kShares{Unit{"", 1}, Unit{"%", 1, 100}};

std::string lower(std::string_view word) {
  std::string text(word);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

// A number and its unit at the front of `rest`, in base units; `rest` is what follows.
double take_scaled(const std::string& name, std::string_view word, std::string_view& rest,
                   std::span<const Unit> units, const std::string& examples) {
  const auto refuse = [&](const std::string& cause) {
    throw Fault{name + " '" + std::string(word) + "': " + cause, "Give something like " + examples};
  };
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789.+-"), rest.size());
  if (digits == 0) refuse("a number is missing");
  const std::string number(rest.substr(0, digits));
  rest.remove_prefix(std::min(rest.find_first_not_of(' ', digits), rest.size()));
  const std::size_t letters = std::min(rest.find_first_of("0123456789.+-"), rest.size());
  std::string text(rest.substr(0, letters));
  text.erase(text.find_last_not_of(' ') + 1);
  rest.remove_prefix(letters);
  const auto unit = std::ranges::find(units, lower(text), &Unit::name);
  if (unit == units.end()) refuse("'" + text + "' is no unit");
  return to_real(name, number, {0, 1e18}) * unit->factor / unit->divisor;
}

double scaled(const std::string& name, std::string_view word, std::span<const Unit> units,
              const std::string& examples) {
  std::string_view rest = word;
  const double value = take_scaled(name, word, rest, units, examples);
  if (rest.empty()) return value;
  throw Fault{name + " '" + std::string(word) + "' is not understood",
              "Give something like " + examples};
}

// "90 s", "0.5 s".
std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g s", seconds);
  return text;
}
}  // namespace

std::uint64_t to_bytes(const std::string& name, const std::string& word,
                       const Range<std::uint64_t>& allowed) {
  const double bytes = std::floor(scaled(name, word, kSizes, "4M or 2GiB"));
  const bool in_range =
      bytes >= static_cast<double>(allowed.least) && bytes <= static_cast<double>(allowed.most);
  if (in_range && static_cast<std::uint64_t>(bytes) % allowed.multiple_of == 0)
    return static_cast<std::uint64_t>(bytes);
  const std::string multiple =
      allowed.multiple_of > 1 ? "a multiple of " + base::format_bytes(allowed.multiple_of) + " "
                              : "";
  throw Fault{name + " " + word + " is out of range",
              "Give " + multiple + "from " + base::format_bytes(allowed.least) + " to " +
                  base::format_bytes(allowed.most)};
}

double to_seconds(const std::string& name, const std::string& word, const Range<double>& allowed) {
  const std::string examples = "60s, 10m or 2m30s";
  std::string_view rest = word;
  double seconds = take_scaled(name, word, rest, kTimes, examples);
  while (!rest.empty()) seconds += take_scaled(name, word, rest, kTimes, examples);
  if (seconds >= allowed.least && seconds <= allowed.most) return seconds;
  throw Fault{name + " " + word + " is out of range",
              "Give from " + seconds_text(allowed.least) + " to " + seconds_text(allowed.most)};
}

double to_share(const std::string& name, const std::string& word, const Range<double>& allowed) {
  const double share = scaled(name, word, kShares, "5% or 0.05");
  if (share >= allowed.least && share <= allowed.most) return share;
  return to_real(name, std::to_string(share), allowed);
}

std::vector<std::string> to_list(const std::string& name, const std::string& word) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= word.size();) {
    const std::size_t end = std::min(word.find(',', begin), word.size());
    items.push_back(word.substr(begin, end - begin));
    if (items.back().empty())
      throw Fault{name + " '" + word + "' has an empty item", "Give items with one comma between"};
    begin = end + 1;
  }
  return items;
}
}  // namespace headrace::command_line
