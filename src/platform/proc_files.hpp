// SPDX-License-Identifier: Apache-2.0
// proc_files.hpp: reading the kernel's small text files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::platform {
// The whole file; nothing when it cannot be opened or read.
std::optional<std::string> read_text(const std::string& path);

// Its first line without blanks around it; nothing when it cannot be read or is empty.
std::optional<std::string> read_line(const std::string& path);
// That line as parse_number() takes it.
std::optional<std::uint64_t> read_number(const std::string& path);

// The names in a folder, sorted; none when it cannot be read.
std::vector<std::string> names_in(const std::string& folder);
// Of "always [madvise] never" the word in brackets; without any the line itself.
std::string bracketed(const std::string& line);

std::string_view trimmed(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);

// A whole number with nothing but blanks around it; nothing for "max", "-1" and everything else.
std::optional<std::uint64_t> parse_number(std::string_view text);

// The number after a line's first word, where that word is `name`: "inactive_file 4096",
// "MemAvailable:  12 kB".
std::optional<std::uint64_t> named_number(std::string_view text, std::string_view name);
}  // namespace headrace::platform
