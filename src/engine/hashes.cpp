// SPDX-License-Identifier: Apache-2.0
// hashes.cpp: content hashes over everything that store() hands out (docs/swap_file.md, "Hashes").
#include <span>

#include "engine/values.hpp"
#include "ranks/joint_hash.hpp"

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

// A parameter's elements lie in the shards of one rank or several, in their order.
void Values::hash_content(ranks::JointHash& hash, ParameterId id, const std::string& name,
                          Content content, const char* call) {
  const ParameterSpec& spec = p_.registry.parameter(id).spec;
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const partition::Section& section = p_.partition.sections[parameter.section];
  const auto [first, last] = p_.partition.owners_of(parameter);
  hash.add(first, [&](kernels::Hash128& own) {
    hash_head(own, name, content == Content::kWeight ? name_of(spec.dtype) : "F32", spec.shape);
  });
  for (std::uint32_t owner = first; owner <= last; ++owner) {
    if (p_.partition.shard_of(section, owner).elements == 0) continue;
    hash.add(owner, [&](kernels::Hash128& own) {
      store(
          id, content,
          [&](std::uint64_t, std::span<const std::byte> values) { own.update(values); }, call);
    });
  }
}

std::string Values::hash_parameters() {
  constexpr const char* kCall = "hash_parameters";
  const auto together = p_.gradients.begin_together(ranks::RankCall::Kind::kHash);
  ranks::JointHash hash(p_.ranks, kCall);
  for (const ParameterId id : p_.registry.by_name())
    hash_content(hash, id, p_.registry.parameter(id).full_name, Content::kWeight, kCall);
  return hash.hex();
}

std::string Values::hash_optimizer_state() {
  constexpr const char* kCall = "hash_optimizer_state";
  const auto together = p_.gradients.begin_together(ranks::RankCall::Kind::kHash);
  ranks::JointHash hash(p_.ranks, kCall);
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
    hash.add(p_.partition.owners_of(p_.partition.parameters[id.index]).last,
             [&](kernels::Hash128& own) {
               hash_head(own, name + ".step", "U64", {});
               own.update(std::as_bytes(std::span(&p_.counts.steps[id.index], 1)));
             });
  }
  return hash.hex();
}
}  // namespace headrace::engine
