// SPDX-License-Identifier: Apache-2.0
// proc_files.hpp: reads the kernel's small text files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::platform {
// The whole file; no value if it cannot be opened or read.
std::optional<std::string> read_text(const std::string& path);

// The first line without surrounding blanks; no value if the file is empty or cannot be read.
std::optional<std::string> read_line(const std::string& path);
// The first line as a number, by parse_number().
std::optional<std::uint64_t> read_number(const std::string& path);

// The names in a folder, sorted; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder);
// The word in brackets of a line such as "always [madvise] never"; without any, the line itself.
std::string bracketed(const std::string& line);

std::string_view trimmed(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);

// A whole number, which blanks may surround; no value for "max", "-1" and everything else.
std::optional<std::uint64_t> parse_number(std::string_view text);

// The number after the first word of a line, in the line whose first word is `name`: "inactive_file
// 4096", "MemAvailable:  12 kB".
std::optional<std::uint64_t> named_number(std::string_view text, std::string_view name);
}  // namespace headrace::platform
