// SPDX-License-Identifier: Apache-2.0
// headrace/tensor.hpp: a parameter: its name, dtype and shape, and how it is updated.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {
// kU8: bytes of any meaning, such as a quantised weight. Only frozen parameters may have it, since
// no update reads it.
enum class DType : std::uint8_t { kF32, kBf16, kF16, kU8 };
constexpr std::uint64_t size_bytes(DType dtype) noexcept {
  return dtype == DType::kF32 ? 4 : dtype == DType::kU8 ? 1 : 2;
}
// "F32", "BF16", "F16", "U8": the names that safetensors uses.
constexpr const char* name_of(DType dtype) noexcept {
  constexpr const char* kNames[] = {"F32", "BF16", "F16", "U8"};
  return kNames[static_cast<unsigned>(dtype)];
}

// Handles, valid only for the engine that returned them.
struct GroupId {
  std::uint32_t index = 0;
  friend bool operator==(GroupId, GroupId) = default;
};
struct ParameterId {
  std::uint32_t index = 0;
  friend bool operator==(ParameterId, ParameterId) = default;
};
struct HyperparameterSetId {
  std::uint32_t index = 0;  // 0 is the default set
  friend bool operator==(HyperparameterSetId, HyperparameterSetId) = default;
};

struct ParameterSpec {
  // The name within the group; the full name is "<group>.<name>", or <name> in a group named "".
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<std::int64_t> shape;  // row-major; empty: one element; no size is 0
  HyperparameterSetId hyperparameters = {};
  // True: the parameter is read but never updated, and has no memory for gradients, no master and
  // no moments.
  bool frozen = false;

  std::uint64_t elements() const noexcept {
    std::uint64_t n = 1;
    for (const std::int64_t size : shape) n *= static_cast<std::uint64_t>(size);
    return n;
  }
};
}  // namespace headrace
