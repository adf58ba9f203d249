// SPDX-License-Identifier: Apache-2.0
#include "partition/registry.hpp"

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/hyperparameter_checks.hpp"

namespace headrace::partition {
namespace {
[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kInvalidArgument, text); }

void check_spec(const std::string& full_name, const ParameterSpec& spec, std::size_t sets) {
  if (spec.name.empty()) refuse("a parameter of group '" + full_name + "' has no name");
  std::uint64_t elements = 1;
  for (const std::int64_t size : spec.shape) {
    if (size <= 0)
      refuse("parameter '" + full_name + "': a size of " + std::to_string(size) +
             " in its shape; sizes start at 1");
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > (std::uint64_t{1} << 48)) {
      refuse("parameter '" + full_name + "': more elements than 2^48");
    }
  }
  if (spec.hyperparameters.index >= sets) {
    refuse("parameter '" + full_name + "': hyperparameter set " +
           std::to_string(spec.hyperparameters.index) + " was never added to this engine");
  }
}
}  // namespace

HyperparameterSetId Registry::add_hyperparameters(const Hyperparameters& values) {
  optimizer_cpu::check_hyperparameters(rule_, moments_, values);
  sets_.push_back(values);
  return {static_cast<std::uint32_t>(sets_.size() - 1)};
}

void Registry::set_default_hyperparameters(const Hyperparameters& values) {
  optimizer_cpu::check_hyperparameters(rule_, moments_, values);
  sets_[0] = values;
}

void Registry::set_hyperparameters(HyperparameterSetId id, const Hyperparameters& values) {
  if (id.index >= sets_.size()) {
    throw Error(Code::kNotFound, "hyperparameter set " + std::to_string(id.index) +
                                     " was never added to this engine");
  }
  optimizer_cpu::check_hyperparameters(rule_, moments_, values);
  sets_[id.index] = values;
}

GroupId Registry::add_group(std::string name, std::vector<ParameterSpec> parameters) {
  if (parameters.empty()) refuse("group '" + name + "' has no parameters");
  for (const RegisteredGroup& group : groups_) {
    if (group.name == name)
      refuse("a group named '" + name + "' was added already; names are unique in an engine");
  }
  const GroupId id{static_cast<std::uint32_t>(groups_.size())};
  // Checked whole before anything is kept, so that a refused group leaves no trace.
  std::map<std::string, std::uint32_t, std::less<>> names;
  std::vector<RegisteredParameter> added;
  for (ParameterSpec& spec : parameters) {
    std::string full = name.empty() ? spec.name : name + "." + spec.name;
    check_spec(full, spec, sets_.size());
    const auto index = static_cast<std::uint32_t>(parameters_.size() + added.size());
    if (by_name_.contains(full) || !names.emplace(full, index).second) {
      refuse("two parameters are named '" + full + "'; full names are unique in an engine");
    }
    added.push_back({std::move(spec), std::move(full), id});
  }
  RegisteredGroup& group = groups_.emplace_back();
  group.name = std::move(name);
  for (RegisteredParameter& parameter : added) {
    group.parameters.push_back({static_cast<std::uint32_t>(parameters_.size())});
    parameters_.push_back(std::move(parameter));
  }
  by_name_.merge(names);
  return id;
}

void Registry::check_frozen() const {
  for (const RegisteredParameter& parameter : parameters_) {
    if (parameter.spec.dtype != DType::kU8 || parameter.spec.frozen) continue;
    refuse("freeze: parameter '" + parameter.full_name +
           "' is U8, which no update can change, and it is not frozen; nothing was allocated. Set "
           "ParameterSpec::frozen, or call set_frozen() before.");
  }
}

void Registry::set_frozen(ParameterId id, bool frozen) {
  parameter(id);
  parameters_[id.index].spec.frozen = frozen;
}
void Registry::set_frozen(GroupId id, bool frozen) {
  for (const ParameterId parameter : group(id).parameters) set_frozen(parameter, frozen);
}

RegisteredGroup& Registry::group(GroupId id) {
  if (id.index >= groups_.size()) {
    throw Error(Code::kNotFound,
                "group " + std::to_string(id.index) + " was never added to this engine");
  }
  return groups_[id.index];
}
const RegisteredGroup& Registry::group(GroupId id) const {
  return const_cast<Registry*>(this)->group(id);
}

const RegisteredParameter& Registry::parameter(ParameterId id) const {
  if (id.index >= parameters_.size()) {
    throw Error(Code::kNotFound,
                "parameter " + std::to_string(id.index) + " was never added to this engine");
  }
  return parameters_[id.index];
}

ParameterId Registry::find(std::string_view full_name) const {
  if (const auto found = by_name_.find(full_name); found != by_name_.end()) return {found->second};
  std::vector<std::string_view> known;
  for (const auto& [name, index] : by_name_) known.push_back(name);
  const std::string_view nearest = base::nearest_word(full_name, known);
  throw Error(Code::kNotFound,
              "no parameter is named '" + std::string(full_name) + "'" +
                  (nearest.empty() ? "" : "; the nearest is '" + std::string(nearest) + "'"));
}

std::vector<partition::GroupShape> Registry::shapes() const {
  std::vector<partition::GroupShape> shapes;
  for (const RegisteredGroup& group : groups_) {
    auto& shape = shapes.emplace_back();
    for (const ParameterId id : group.parameters)
      shape.parameters.push_back(parameters_[id.index].spec);
  }
  return shapes;
}

std::vector<ParameterId> Registry::by_name() const {
  std::vector<ParameterId> ids;
  for (const auto& [name, index] : by_name_) ids.push_back({index});
  return ids;
}

std::uint64_t Registry::bookkeeping_bytes() const {
  std::uint64_t bytes = groups_.size() * sizeof(RegisteredGroup);
  for (const RegisteredParameter& p : parameters_) {
    // A node of by_name_ without the name's characters: links, string, index, allocator's header.
    constexpr std::uint64_t kMapNode = 80;
    bytes += sizeof p + sizeof(ParameterId) + kMapNode + 2 * p.full_name.capacity() +
             p.spec.name.capacity() + p.spec.shape.capacity() * sizeof(std::int64_t);
  }
  return bytes;
}
}  // namespace headrace::partition
