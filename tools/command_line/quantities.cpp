// SPDX-License-Identifier: Apache-2.0
#include "command_line/quantities.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.hpp"

namespace headrace::command_line {
namespace {
struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array kSizes{Unit{"", 1},
                            Unit{"B", 1},
                            Unit{"k", 1024},
                            Unit{"K", 1024},
                            Unit{"KiB", 1024},
                            Unit{"M", 1024.0 * 1024},
                            Unit{"MiB", 1024.0 * 1024},
                            Unit{"G", 1024.0 * 1024 * 1024},
                            Unit{"GiB", 1024.0 * 1024 * 1024},
                            Unit{"T", 1024.0 * 1024 * 1024 * 1024},
                            Unit{"TiB", 1024.0 * 1024 * 1024 * 1024},
                            Unit{"kB", 1e3},
                            Unit{"KB", 1e3},
                            Unit{"MB", 1e6},
                            Unit{"GB", 1e9},
                            Unit{"TB", 1e12}};
constexpr std::array kTimes{Unit{"", 1},   Unit{"s", 1},    Unit{"sec", 1}, Unit{"ms", 1e-3},
                            Unit{"m", 60}, Unit{"min", 60}, Unit{"h", 3600}};

// The number in base units; throws where the unit is none of `units`.
template <std::size_t N>
double scaled(const std::string& name, const std::string& word, const std::array<Unit, N>& units,
              const std::string& examples) {
  const std::size_t end = std::min(word.find_first_not_of("0123456789.+-"), word.size());
  const auto unit = std::ranges::find(units, std::string_view(word).substr(end), &Unit::name);
  if (unit == units.end() || end == 0)
    throw Fault{name + " '" + word + "' is not understood", "Give something like " + examples};
  return to_real(name, word.substr(0, end), {0, 1e18}) * unit->factor;
}
}  // namespace

std::uint64_t to_bytes(const std::string& name, const std::string& word,
                       const Range<std::uint64_t>& allowed) {
  const double bytes = scaled(name, word, kSizes, "4M or 2GiB");
  const bool in_range = bytes >= static_cast<double>(allowed.least) &&
                        bytes <= static_cast<double>(allowed.most) && bytes == std::floor(bytes);
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
  const double seconds = scaled(name, word, kTimes, "60s or 10m");
  if (seconds >= allowed.least && seconds <= allowed.most) return seconds;
  return to_real(name, std::to_string(seconds), allowed);  // throws, with the range
}

double to_share(const std::string& name, const std::string& word, const Range<double>& allowed) {
  constexpr std::array kShares{Unit{"", 1}, Unit{"%", 0.01}};
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
