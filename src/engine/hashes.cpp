// SPDX-License-Identifier: Apache-2.0
// hashes.cpp: content hashes over everything that store() hands out (docs/swap_file.md, "Hashes").
#include <span>

#include "engine/values.hpp"

namespace headrace::engine {
namespace {
// The head of an entry.
void hash_head(kernels::Hash128& hash, const std::string& name, const std::string& dtype,
               std::span<const std::int64_t> shape) {
  const auto number = [&](std::uint64_t value) {
    hash.update(std::as_bytes(std::span(&value, 1)));
  };
  number(name.size());
  hash.update(std::as_bytes(std::span(name)));
  const auto length = static_cast<std::uint8_t>(dtype.size());
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(std::as_bytes(std::span(dtype)));
  number(shape.size());
  for (const std::int64_t size : shape) number(static_cast<std::uint64_t>(size));
}
}  // namespace

void Values::hash_content(kernels::Hash128& hash, ParameterId id, const std::string& name,
                          Content content, const char* call) {
  const ParameterSpec& spec = p_.registry.parameter(id).spec;
  hash_head(hash, name, content == Content::kWeight ? name_of(spec.dtype) : "F32", spec.shape);
  store(
      id, content, [&](std::uint64_t, std::span<const std::byte> values) { hash.update(values); },
      call);
}

std::string Values::hash_parameters() {
  kernels::Hash128 hash;
  for (const ParameterId id : p_.registry.by_name()) {
    hash_content(hash, id, p_.registry.parameter(id).full_name, Content::kWeight,
                 "hash_parameters");
  }
  return hash.hex();
}

std::string Values::hash_optimizer_state() {
  constexpr const char* kCall = "hash_optimizer_state";
  kernels::Hash128 hash;
  for (const ParameterId id : p_.registry.by_name()) {
    const std::string& name = p_.registry.parameter(id).full_name;
    if (p_.registry.parameter(id).spec.frozen) continue;
    hash_content(hash, id, name + ".master", Content::kMaster, kCall);
    const optimizer_cpu::Arithmetic arithmetic =
        optimizer_cpu::arithmetic_of(p_.settings.optimizer);
    for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
      hash_content(hash, id, name + "." + optimizer_cpu::moment_name(arithmetic, k),
                   k == 0 ? Content::kExpAvg : Content::kExpAvgSq, kCall);
    }
    hash_head(hash, name + ".step", "U64", {});
    hash.update(std::as_bytes(std::span(&p_.counts.steps[id.index], 1)));
  }
  return hash.hex();
}
}  // namespace headrace::engine
