// SPDX-License-Identifier: Apache-2.0
// drive_path.hpp: expands ~ and ${NAME} in the paths of a settings file.
#pragma once
#include <string>
#include <string_view>

namespace headrace::settings {
struct ExpandedPath {
  std::string path;
  std::string fault;  // empty: `path` is good
};

// A leading ~/ is the home directory, ${NAME} an environment variable, $$ a dollar sign.
ExpandedPath expand_path(std::string_view text);

// The text that expand_path() turns into `path`.
std::string escape_path(std::string_view path);

// Equal for spellings that differ only in doubled or trailing slashes and in ".".
std::string comparable_path(const std::string& path);
}  // namespace headrace::settings
