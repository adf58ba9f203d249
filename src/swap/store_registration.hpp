// SPDX-License-Identifier: Apache-2.0
// store_registration.hpp: what a store keeps of the engine's registration: names, types, shapes and
// places of parameters. It is written once, when the store is made, for programs that have the
// store and not the model. An engine reads it only to say what differs in another model.
// docs/swap_file.md lists the bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headrace/tensor.hpp"
#include "swap/record.hpp"

namespace headrace::swap {
inline constexpr char kRegistrationMagic[8] = {'h', 'r', 'r', 'e', 'g', 'i', 's', 't'};

struct StoredParameter {
  std::string full_name;
  DType dtype = DType::kF32;
  bool frozen = false;
  std::vector<std::int64_t> shape;
  std::uint32_t group = 0, section = 0;  // sections count across the groups
  std::uint64_t first_element = 0;       // in its section
  friend bool operator==(const StoredParameter&, const StoredParameter&) = default;
};

struct StoreRegistration {
  std::uint64_t tile_elements = 0;
  std::vector<std::string> groups;
  std::vector<StoredParameter> parameters;  // those of a group are adjacent, groups in order
  friend bool operator==(const StoreRegistration&, const StoreRegistration&) = default;
};

// Its bytes in a store, in whole pages; as many for every store's id.
std::vector<std::byte> packed(const StoreRegistration& registration, const RunBytes& store);
// `fault`: empty, or what is wrong with the bytes; then the result is empty too.
StoreRegistration unpacked(std::span<const std::byte> bytes, const RunBytes& store,
                           std::string& fault);
}  // namespace headrace::swap
