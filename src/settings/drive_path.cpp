// SPDX-License-Identifier: Apache-2.0
#include "settings/drive_path.hpp"

#include <cstdlib>
#include <filesystem>

#include "settings/locate.hpp"

namespace headrace::settings {
namespace {
// Appends the variable; false when it does not exist or is empty.
bool append_variable(const std::string& name, ExpandedPath& out) {
  const char* value = std::getenv(name.c_str());
  if (value != nullptr && *value != '\0') {
    out.path += value;
    return true;
  }
  const char* why = value == nullptr ? " is not set" : " is empty";
  out.fault = "the environment variable " + one_line(name) + why + "; set it or write the path out";
  return false;
}

ExpandedPath failed(std::string fault) { return {"", std::move(fault)}; }
}  // namespace

ExpandedPath expand_path(std::string_view text) {
  if (text.empty()) return failed("the path is empty; name a directory");
  if (text.find('\0') != std::string_view::npos) return failed("the path holds a NUL character");
  ExpandedPath out;
  if (text[0] == '~') {
    if (text.size() > 1 && text[1] != '/') {
      return failed(
          "only ~/ is expanded, not ~name; write the path out, or ./~name for such a file");
    }
    if (!append_variable("HOME", out)) return out;
    text.remove_prefix(1);
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$') {
      out.path += text[i];
    } else if (text.substr(i, 2) == "$$") {
      out.path += text[i++];
    } else {
      const std::size_t end = text.find('}', i);
      if (text.substr(i, 2) != "${" || end == std::string_view::npos || end == i + 2) {
        return failed(
            "a lone $; write ${NAME} for an environment variable, or $$ for a dollar sign");
      }
      if (!append_variable(std::string(text.substr(i + 2, end - i - 2)), out)) return out;
      i = end;
    }
  }
  return out;
}

std::string escape_path(std::string_view path) {
  std::string text = path.starts_with('~') ? "./" : "";
  for (const char c : path) text.append(c == '$' ? 2 : 1, c);
  return text;
}

std::string comparable_path(const std::string& path) {
  std::string plain = std::filesystem::path(path).lexically_normal().string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return plain;
}
}  // namespace headrace::settings
