// SPDX-License-Identifier: Apache-2.0
#include "model/store_bytes.hpp"

#include "engine/epoch_terms.hpp"
#include "swap/store_format.hpp"
#include "swap/store_registration.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint32_t kHyperparameterSets = 2;
}  // namespace

std::uint64_t commit_bytes(const Settings& settings, const partition::Partition& partition) {
  if (settings.durable_every == 0) return 0;
  return swap::CommitRecord::place_bytes(
      engine::EpochTerms::counts_of(settings, partition, kHyperparameterSets));
}

std::uint64_t registration_bytes(const Settings& settings,
                                 const std::vector<const ModelGroup*>& groups) {
  if (settings.durable_every == 0) return 0;
  swap::StoreRegistration registration;
  for (const ModelGroup* const group : groups) {
    registration.groups.push_back(group->name);
    for (const ModelParameter& parameter : group->parameters)
      registration.parameters.push_back({.full_name = parameter.name, .shape = parameter.shape});
  }
  return swap::packed(registration, {}).size();
}
}  // namespace headrace::tools
