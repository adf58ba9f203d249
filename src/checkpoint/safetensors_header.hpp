// SPDX-License-Identifier: Apache-2.0
// safetensors_header.hpp: writes the header of a safetensors file.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::checkpoint {
inline constexpr const char* kMetadata = "__metadata__";  // the format's own name

struct TensorHeader {
  std::string name, dtype;  // "BF16", "F32", ...
  std::vector<std::int64_t> shape;
  std::uint64_t size_bytes = 0;
};

// "": a tensor may have this name. JSON holds UTF-8 alone, and safetensors has one name of its own.
std::string name_fault(const std::string& name);
// For messages: in quotes, without what is not ASCII.
std::string shown_name(const std::string& name);

// The header's length and the header. The tensors' bytes follow in this order, without gaps; they
// begin at a multiple of 4096.
std::string safetensors_header(std::span<const TensorHeader> tensors);
}  // namespace headrace::checkpoint
