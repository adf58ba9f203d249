// SPDX-License-Identifier: Apache-2.0
// registry.hpp: the groups, parameters and hyperparameter sets registered before freeze, by name
// and by number.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/optimizer.hpp"
#include "headrace/tensor.hpp"
#include "partition/partition.hpp"

namespace headrace::partition {
struct RegisteredParameter {
  ParameterSpec spec;
  std::string full_name;
  GroupId group;
};
struct RegisteredGroup {
  std::string name;
  std::vector<ParameterId> parameters;
  bool repeated_gradients = false;
  bool keep_bound = false;
  bool lends_gradients = false, lends_weights = false;
};

// Throws headrace::Error kInvalidArgument / kNotFound naming group and parameter.
class Registry {
 public:
  // Checks hyperparameters for this rule and codec.
  explicit Registry(OptimizerRule rule = OptimizerRule::kAdamW,
                    MomentCodec moments = MomentCodec::kF32)
      : rule_(rule), moments_(moments) {}

  HyperparameterSetId add_hyperparameters(const Hyperparameters& values);
  void set_default_hyperparameters(const Hyperparameters& values);
  void set_hyperparameters(HyperparameterSetId id, const Hyperparameters& values);
  GroupId add_group(std::string name, std::vector<ParameterSpec> parameters);

  // At freeze: throws for what no update can change and is not frozen.
  void check_frozen() const;
  void set_frozen(ParameterId id, bool frozen);
  void set_frozen(GroupId id, bool frozen);

  RegisteredGroup& group(GroupId id);
  const RegisteredGroup& group(GroupId id) const;
  const RegisteredParameter& parameter(ParameterId id) const;
  const Hyperparameters& hyperparameters(HyperparameterSetId id) const { return sets_[id.index]; }
  std::uint32_t hyperparameter_sets() const noexcept {
    return static_cast<std::uint32_t>(sets_.size());
  }
  ParameterId find(std::string_view full_name) const;
  const std::vector<RegisteredGroup>& groups() const noexcept { return groups_; }
  const std::vector<RegisteredParameter>& parameters() const noexcept { return parameters_; }
  std::vector<partition::GroupShape> shapes() const;
  // Parameters in ascending byte order of full names: the order of hashes and of saved files.
  std::vector<ParameterId> by_name() const;
  std::uint64_t bookkeeping_bytes() const;

 private:
  OptimizerRule rule_;
  MomentCodec moments_;
  std::vector<Hyperparameters> sets_{Hyperparameters{}};
  std::vector<RegisteredGroup> groups_;
  std::vector<RegisteredParameter> parameters_;
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
};
}  // namespace headrace::partition
