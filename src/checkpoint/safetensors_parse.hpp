// SPDX-License-Identifier: Apache-2.0
// safetensors_parse.hpp: the header of a safetensors file, parsed and checked.
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

namespace headrace::checkpoint {
struct TensorEntry {
  std::string name;
  std::string dtype;  // "BF16", "F32", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // of its bytes, counted from the first byte after the header
  std::uint64_t end = 0;
};
using TensorsByName = std::map<std::string, TensorEntry>;

// A fault of a header. The program adds the file, the consequence and the remedy.
struct SafetensorsFault : std::runtime_error {  // "'w' occurs twice"
  explicit SafetensorsFault(const std::string& cause, bool no_json = false)
      : std::runtime_error(cause), is_no_json(no_json) {}
  bool is_no_json;  // the whole text
};

// The format's own limit: a longer header is not one.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
inline constexpr std::size_t kLengthBytes = 8;
std::uint64_t header_length(std::span<const std::byte, kLengthBytes> begin) noexcept;

// kLeftOut: of a program that reads shapes alone, and takes headers without them too.
enum class DataOffsets { kWanted, kLeftOut };
// The tensors that `text` (a header without its length) names. Costs time and memory in proportion
// to its bytes, whatever they are. Throws SafetensorsFault.
TensorsByName parse_header(std::string_view text, DataOffsets offsets);

// That each tensor has the bytes of its dtype and shape, and that they lie one after the other,
// without gaps or overlaps, and fill the `data_bytes` behind the header. Throws SafetensorsFault.
void check_data(const TensorsByName& tensors, std::uint64_t data_bytes);

// The bytes of a tensor by its dtype and shape. Throws SafetensorsFault for an unknown dtype or an
// overflow.
std::uint64_t bytes_of(const TensorEntry& entry);
// Bytes per element, 0 for a name that is not one.
std::uint64_t dtype_size_bytes(std::string_view dtype) noexcept;
}  // namespace headrace::checkpoint
