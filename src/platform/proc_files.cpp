// SPDX-License-Identifier: Apache-2.0
#include "platform/proc_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/unique_fd.hpp"

namespace headrace::platform {
std::optional<std::string> read_text(const std::string& path) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece, sizeof piece);
    if (got == 0) return text;
    if (got > 0) {
      text.append(piece, static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

std::optional<std::string> read_line(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  const std::string_view line = trimmed(std::string_view(*text).substr(0, text->find('\n')));
  return line.empty() ? std::nullopt : std::optional(std::string(line));
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto line = read_line(path);
  return line ? parse_number(*line) : std::nullopt;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string bracketed(const std::string& line) {
  const std::size_t from = line.find('['), to = line.find(']');
  if (from == std::string::npos || to == std::string::npos || to < from) return line;
  return line.substr(from + 1, to - from - 1);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return pieces;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text = trimmed(text);
  std::uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> named_number(std::string_view text, std::string_view name) {
  for (std::string_view line : split(text, '\n')) {
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.empty() || (line[0] != ' ' && line[0] != '\t' && line[0] != ':')) continue;
    const std::size_t first = line.find_first_of("0123456789");
    if (first == std::string_view::npos) return std::nullopt;
    line.remove_prefix(first);
    return parse_number(line.substr(0, line.find_first_not_of("0123456789")));
  }
  return std::nullopt;
}
}  // namespace headrace::platform
