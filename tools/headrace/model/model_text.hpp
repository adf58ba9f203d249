// SPDX-License-Identifier: Apache-2.0
// model_text.hpp: JSON of a model's files, read within bounds: a few megabytes of text can make a
// tree of gigabytes.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace headrace::tools {
inline constexpr std::uint64_t kLargestModelText = 24u << 20;

// Throws Error kInvalidArgument: `path`, what is wrong with it on one line, and the remedy.
[[noreturn]] void refuse_model(const std::string& path, const std::string& what,
                               const std::string& remedy);
// Throws Error kNotFound, kIo where the drive fails, else kInvalidArgument.
[[noreturn]] void refuse_io(const std::string& path, int error);

std::uint64_t size_of(const std::string& path);
std::string bytes_of(const std::string& path, std::uint64_t offset, std::uint64_t size);

// Why a text is not JSON, and what to change: "line 1, column 2: not JSON: ...".
std::string json_fault(std::string_view text);

// Refuses trees that are too deep or too large.
void refuse_excess(const std::string& path, std::string_view text, const std::string& remedy);
// The text of a file. Refuses those, and files larger than kLargestModelText.
std::string json_text_of(const std::string& path, const std::string& remedy);
// Refuses those too, and what is no JSON by line and column.
nlohmann::json json_of(const std::string& path, const std::string& remedy);
}  // namespace headrace::tools
