// SPDX-License-Identifier: Apache-2.0
// header.hpp: the header of a safetensors file: its shapes are read, and a new one is written.
//
// The format: 8 bytes little-endian header length, a JSON object {"name": {"dtype", "shape",
// "data_offsets"}}, then the bytes of all tensors without gaps. A file to read is untrusted: what
// it says is checked here before anything is made of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::tools {
struct TensorEntry {
  std::string name;
  std::string dtype;  // "BF16", "F32", ...
  std::vector<std::int64_t> shape;
};
using TensorsByName = std::map<std::string, TensorEntry>;

// What is wrong with a header. Of which file, what follows and what helps, the program says.
struct SafetensorsFault : std::runtime_error {  // "'w' occurs twice"
  explicit SafetensorsFault(const std::string& cause, bool no_json = false)
      : std::runtime_error(cause), is_no_json(no_json) {}
  bool is_no_json;  // the whole text
};

inline constexpr std::size_t kLengthBytes = 8;
std::uint64_t header_length(std::span<const std::byte, kLengthBytes> begin) noexcept;

// The tensors that `text` (a header without its length) names; where their bytes lie is left out.
// Costs time and memory in proportion to its bytes, whatever they are. Throws SafetensorsFault.
TensorsByName parse_header(std::string_view text);

// Header length and header for these tensors, whose bytes lie in this order and start at a multiple
// of 4096; `data_bytes` becomes the sum of theirs. Their dtypes are BF16, F16 or F32.
std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes);
}  // namespace headrace::tools
