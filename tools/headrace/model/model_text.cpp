// SPDX-License-Identifier: Apache-2.0
#include "model/model_text.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error_text.hpp"
#include "base/utf8.hpp"
#include "headrace/error.hpp"
#include "settings/json_text.hpp"
#include "settings/locate.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint64_t kMostValues = 1'000'000, kMostDepth = 64;
constexpr std::size_t kLongestMessage = 1000;

// Why the tree of `text` would be too large, "": it is not. Values are counted by what separates
// them outside of texts, whether `text` is JSON or not.
std::string excess_of(std::string_view text) {
  std::uint64_t values = 0, depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      while (++i < text.size() && text[i] != '"') i += text[i] == '\\' ? 1 : 0;
    } else if (c == '{' || c == '[') {
      ++values;
      if (++depth > kMostDepth) return "nested deeper than 64 levels";
    } else if (c == ',') {
      ++values;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return values > kMostValues ? "more than 1,000,000 values" : "";
}

// Where `text` leaves the encoding that JSON has: text.size() where it does not.
std::size_t ill_encoded_at(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t size = base::utf8_size(text.substr(at));
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
    if (size == 0 || control) return at;
    at += size;
  }
  return at;
}

}  // namespace

std::string json_fault(std::string_view text) {
  settings::TextFault fault{ill_encoded_at(text), "not JSON: a byte that is no text"};
  if (text.empty()) return "not JSON: it is empty";
  if (fault.offset == text.size()) {
    fault = settings::find_syntax_fault(text).value_or(settings::TextFault{0, "not JSON"});
  }
  const settings::TextPosition at = settings::position_at(text, fault.offset);
  return "line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " +
         fault.text;
}

void refuse_model(const std::string& path, const std::string& what, const std::string& remedy) {
  throw Error(Code::kInvalidArgument, "'" + path +
                                          "': " + settings::one_line(what, kLongestMessage) +
                                          "; nothing was computed. " + remedy);
}

void refuse_io(const std::string& path, int error) {
  const Code code = error == ENOENT ? Code::kNotFound
                    : error == EIO  ? Code::kIo
                                    : Code::kInvalidArgument;
  throw Error(code,
              "'" + path + "' cannot be read: " + base::errno_text(error) +
                  "; nothing was computed. Give another path, or make it readable.",
              error);
}

std::uint64_t size_of(const std::string& path) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) refuse_io(path, error.value());
  return size;
}

std::string bytes_of(const std::string& path, std::uint64_t offset, std::uint64_t size) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse_io(path, errno);
  std::string text(size, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    refuse_io(path, errno == 0 ? EIO : errno);
  return text;
}

void refuse_excess(const std::string& path, std::string_view text, const std::string& remedy) {
  if (const std::string excess = excess_of(text); !excess.empty())
    refuse_model(path, excess, remedy);
}

std::string json_text_of(const std::string& path, const std::string& remedy) {
  const std::uint64_t size = size_of(path);
  if (size > kLargestModelText) refuse_model(path, "larger than 24 MiB", remedy);
  std::string text = bytes_of(path, 0, size);
  refuse_excess(path, text, remedy);
  return text;
}

nlohmann::json json_of(const std::string& path, const std::string& remedy) {
  const std::string text = json_text_of(path, remedy);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse_model(path, json_fault(text), remedy);
  return json;
}
}  // namespace headrace::tools
