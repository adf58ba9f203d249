// SPDX-License-Identifier: Apache-2.0
// epoch_terms.hpp: the terms that a run and the store it resumes from must have in common. With
// other terms the bytes of the store would mean something else, or the same training would give
// other bits.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/settings.hpp"
#include "partition/partition.hpp"
#include "partition/registry.hpp"
#include "swap/store_format.hpp"
#include "swap/store_registration.hpp"

namespace headrace::engine {
// What a store keeps of the registration, so that other programs can tell its tensors apart.
swap::StoreRegistration registration_of(const partition::Registry& registry,
                                        const partition::Partition& partition);

class EpochTerms {
 public:
  EpochTerms(const Settings& settings, const partition::Registry& registry,
             const partition::Partition& partition);

  const swap::CommitCounts& counts() const noexcept { return counts_; }
  // The same for a plan, which has no registry.
  static swap::CommitCounts counts_of(const Settings& settings,
                                      const partition::Partition& partition,
                                      std::uint32_t hyperparameter_sets);
  // Writes the terms into a new record.
  void describe(const swap::CommitRecord& record) const;
  // Reads the store's; none: no copy of it is whole.
  using ReadRegistration = std::function<std::optional<swap::StoreRegistration>()>;
  // "the store has headrace.master \"split\", this run \"f32\"": the first difference; empty if
  // there is none. `read`: called where a parameter differs, to say in what.
  std::string difference_from(const swap::CommitRecord& record, const ReadRegistration& read) const;

 private:
  std::uint64_t print_of(ParameterId id) const;
  std::string difference_in_parameters(const swap::CommitRecord& record,
                                       const ReadRegistration& read) const;
  std::string difference_in(ParameterId id, const swap::StoreRegistration& stored) const;
  std::string difference_in_hyperparameters(const swap::CommitRecord& record) const;

  const partition::Registry& registry_;
  std::string text_;  // "key value" lines
  swap::CommitCounts counts_;
};
}  // namespace headrace::engine
