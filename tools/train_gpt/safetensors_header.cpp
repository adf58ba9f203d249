// SPDX-License-Identifier: Apache-2.0
// safetensors_header.cpp: the JSON header, written and checked.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "failures.hpp"
#include "safetensors.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

constexpr std::uint64_t kDataAlignment = 4096;
constexpr std::size_t kMostDimensions = 64;

[[noreturn]] void fail_header(const std::string& path, const std::string& what) {
  fail(Code::kInvalidArgument,
       "'" + path + "' is not a sound safetensors file: " + what +
           "; nothing was read from it. Write it again with --save, or fetch it again.");
}

std::uint64_t read_number(const nlohmann::json& value, const std::string& path,
                          const std::string& what) {
  if (!value.is_number_unsigned()) fail_header(path, what + " is not a whole number of 0 or more");
  return value.get<std::uint64_t>();
}

std::vector<std::int64_t> read_shape(const nlohmann::json& value, const std::string& path,
                                     const std::string& name) {
  if (!value.is_array()) fail_header(path, "the shape of '" + name + "' is no list");
  if (value.size() > kMostDimensions) {
    fail_header(path, "the shape of '" + name + "' has " + std::to_string(value.size()) +
                          " sizes, more than " + std::to_string(kMostDimensions));
  }
  std::vector<std::int64_t> shape;
  for (const nlohmann::json& size : value) {
    const std::uint64_t number = read_number(size, path, "a size of '" + name + "'");
    if (number > std::numeric_limits<std::int64_t>::max())
      fail_header(path, "a size of '" + name + "' is too large");
    shape.push_back(static_cast<std::int64_t>(number));
  }
  return shape;
}

// Bytes of a tensor by its dtype and shape; refuses an overflow.
std::uint64_t wanted_bytes(const TensorEntry& entry, const std::string& path) {
  std::uint64_t bytes = dtype_size_bytes(entry.dtype);
  if (bytes == 0)
    fail_header(path, "the dtype '" + entry.dtype + "' of '" + entry.name + "' is unknown");
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      fail_header(path, "the shape of '" + entry.name + "' overflows");
    }
  }
  return bytes;
}

TensorEntry read_entry(const std::string& name, const nlohmann::json& value,
                       std::uint64_t data_bytes, const std::string& path) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    fail_header(path, "'" + name + "' lacks one of dtype, shape, data_offsets");
  }
  if (!value["dtype"].is_string()) fail_header(path, "the dtype of '" + name + "' is no string");
  const nlohmann::json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    fail_header(path, "data_offsets of '" + name + "' are not two");
  TensorEntry entry{name, value["dtype"].get<std::string>(), read_shape(value["shape"], path, name),
                    read_number(offsets[0], path, "an offset of '" + name + "'"),
                    read_number(offsets[1], path, "an offset of '" + name + "'")};
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail_header(path, "'" + name + "' lies at bytes " + std::to_string(entry.begin) + " to " +
                          std::to_string(entry.end) + " of " + std::to_string(data_bytes));
  }
  if (wanted_bytes(entry, path) != entry.end - entry.begin) {
    fail_header(path, "'" + name + "' has " + std::to_string(entry.end - entry.begin) +
                          " bytes, its shape needs " + std::to_string(wanted_bytes(entry, path)));
  }
  return entry;
}

// Tensors lie one after the other, without gaps or overlaps, to the end of the file.
void check_layout(const std::map<std::string, TensorEntry>& tensors, std::uint64_t data_bytes,
                  const std::string& path) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, entry] : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  std::uint64_t at = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != at) {
      fail_header(path, "'" + entry->name + "' begins at byte " + std::to_string(entry->begin) +
                            ", expected " + std::to_string(at));
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    fail_header(path, "its tensors end at byte " + std::to_string(at) + ", the file at " +
                          std::to_string(data_bytes));
  }
}
}  // namespace

std::uint64_t dtype_size_bytes(std::string_view dtype) noexcept {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "BF16" || dtype == "F16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "I8" || dtype == "U8" || dtype == "F8_E4M3" || dtype == "F8_E5M2")
    return 1;
  return 0;
}

std::string safetensors_header(std::vector<TensorEntry>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors) {
    entry.begin = at;
    entry.end = at += wanted_bytes(entry, entry.name);
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (text.size() + 8) % kDataAlignment) % kDataAlignment, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

std::map<std::string, TensorEntry> parse_safetensors_header(std::string_view header,
                                                            std::uint64_t data_bytes,
                                                            const std::string& path) {
  if (header.empty() || header.front() != '{')
    fail_header(path, "its header does not begin with '{'");
  std::set<std::string> seen;
  std::string twice;
  const auto note_names = [&](int depth, nlohmann::json::parse_event_t event,
                              nlohmann::json& value) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key &&
        !seen.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  const nlohmann::json parsed =
      nlohmann::json::parse(header.begin(), header.end(), note_names, false);
  if (!parsed.is_object()) fail_header(path, "its header is no JSON object");
  if (!twice.empty()) fail_header(path, "'" + twice + "' occurs twice");
  std::map<std::string, TensorEntry> tensors;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") continue;
    tensors.emplace(name, read_entry(name, value, data_bytes, path));
  }
  check_layout(tensors, data_bytes, path);
  return tensors;
}
}  // namespace train_gpt
