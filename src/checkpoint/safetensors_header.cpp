// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.hpp"

#include <nlohmann/json.hpp>

namespace headrace::checkpoint {
namespace {
constexpr std::size_t kLengthBytes = 8, kAlignment = 4096;
}  // namespace

std::string name_fault(const std::string& name) {
  if (name == kMetadata) return "which safetensors keeps for itself";
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return "which is no UTF-8, as safetensors needs";
  }
  return {};
}

std::string shown_name(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string safetensors_header(std::span<const TensorHeader> tensors) {
  using Json = nlohmann::ordered_json;
  Json header = {{kMetadata, {{"format", "pt"}}}};
  auto& members = header.get_ref<Json::object_t&>();  // its operator[] would compare all names
  std::uint64_t at = 0;
  for (const TensorHeader& tensor : tensors) {
    const std::uint64_t begin = at;
    at += tensor.size_bytes;
    members.emplace_back(
        tensor.name,
        Json{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, at}}});
  }
  std::string text = header.dump();
  text.append((kAlignment - (text.size() + kLengthBytes) % kAlignment) % kAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}
}  // namespace headrace::checkpoint
