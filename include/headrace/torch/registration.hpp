// SPDX-License-Identifier: Apache-2.0
// headrace/torch/registration.hpp: the modules that an Offload was given: groups of their
// parameters, the owner of each parameter, and the tensors that stay with torch.
//
// freeze() moves the values. It has three parts, so that it can refuse before any value has moved:
//
//   settle()         compares each module with what add_group() saw, and tells the engine which
//                    parameters are frozen. If settle() throws, nothing is lost.
//   Engine::freeze() plans and allocates.
//   attach()         goes through the groups in the order in which they were added. For each group,
//                    it runs the factory, if there is one, moves the values into the engine, and
//                    moves the parameters onto parked storages. So at most one factory's module is
//                    whole in memory at a time. After an error, some groups have values and some do
//                    not, so the Offload can only be closed.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/torch/buffer_list.hpp"
#include "headrace/torch/on_demand.hpp"

namespace headrace::torch::detail {
// Tells the engine which of the group's parameters are frozen. Assumes that a factory's parameters
// are frozen just as they were when add_group() ran the factory.
inline void settle_frozen(Engine& engine, const OffloadedGroup& group) {
  const std::span<const ParameterId> ids = engine.parameters(group.id);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (group.frozen) {
      engine.set_frozen(ids[i], *group.frozen);
    } else if (!group.factory) {
      engine.set_frozen(ids[i], !group.loose[i].second.requires_grad());
    }
  }
}

// Throws if `tensors` do not match what the engine planned for the group.
inline void require_same_shapes(const Engine& engine, const Place& place,
                                const OffloadedGroup& group, const NamedTensors& tensors) {
  const std::span<const ParameterId> ids = engine.parameters(group.id);
  bool same = ids.size() == tensors.size();
  for (std::size_t i = 0; same && i < ids.size(); ++i) {
    const ParameterSpec& before = engine.spec(ids[i]);
    const ParameterSpec now = spec_of(place, group.name, tensors[i].first, tensors[i].second);
    same = before.name == now.name && before.dtype == now.dtype && before.shape == now.shape &&
           (group.frozen || before.frozen == now.frozen);
  }
  if (same) return;
  throw Error(Code::kInvalidArgument, "the parameters of " + quoted_group(group.name) +
                                          " are not those that add_group() saw, and memory was "
                                          "planned for those. A factory must give the "
                                          "same names, types, shapes and requires_grad every "
                                          "time; a module must be converted before add_group().");
}

// The text that follows a parameter's name in the error that torch throws if the parameter is used
// while parked.
inline std::string parked_text(bool serves_on_demand) {
  return std::string(
             " was used while it is offloaded: there is no memory behind it now. Call its module "
             "through offload(group, ...) or offload.run(group, ...), or hold `auto whole = "
             "offload.gathered(group);` for as long as you read it, and `offload.gathered(group, "
             "Access::kModify)` to write. Another Offload may have it. ") +
         (serves_on_demand
              ? "serve_on_demand() is for operators that read: writes, torch::save and "
                "data_ptr() are none."
              : "What can do neither (a weight that another block captured, a loss kept in the "
                "module, second derivatives) is served after offload.serve_on_demand().");
}

// Threads: the trainer's.
class Registration {
 public:
  Registration(Engine& engine, const Place& place) : engine_(engine), place_(place) {}

  const Groups& groups() const noexcept { return groups_; }
  const BufferList& buffers() const noexcept { return buffers_; }
  bool serves_on_demand() const noexcept { return serves_on_demand_; }

  using Choose =
      std::function<HyperparameterSetId(const std::string& full_name, const at::Tensor& parameter)>;
  void choose_hyperparameters(Choose choose) {
    if (!groups_.empty()) {
      throw Error(Code::kWrongState,
                  "hyperparameters were chosen after " + quoted_group(groups_.front()->name) +
                      " was added, which would not follow them. Choose them before the first "
                      "add_group().");
    }
    choose_ = std::move(choose);
  }
  void serve_on_demand() {
    if (attached_) {
      throw Error(Code::kWrongState,
                  "serve_on_demand() after freeze(): groups are parked without it by then. Call it "
                  "before freeze().");
    }
    require_recorded_arguments();
    serves_on_demand_ = true;
  }

  // ---- groups ----

  // The parameters of `module` without the shared ones. Throws if the module has only shared ones.
  NamedTensors own_parameters(const std::string& group, const ::torch::nn::Module& module) const {
    NamedTensors all = parameters_of(module);
    NamedTensors own = owners_.without_shared(all);
    if (!own.empty() || all.empty()) return own;
    throw Error(Code::kInvalidArgument,
                quoted_group(group) + " would be empty: add_shared() has '" + all[0].first +
                    "' and all its other parameters, and keeps them bound. Leave the group out and "
                    "call its module itself.");
  }
  std::shared_ptr<OffloadedGroup> add_module(std::string name,
                                             std::shared_ptr<::torch::nn::Module> module) {
    NamedTensors tensors = own_parameters(name, *module);
    auto group = add_loose(std::move(name), std::move(tensors));
    buffers_.add(group->name, *module);
    group->module = std::move(module);
    return group;
  }
  // `tensors`: those of the factory's first module, for names and shapes.
  std::shared_ptr<OffloadedGroup> add_factory(
      std::string name, const NamedTensors& tensors,
      std::function<std::shared_ptr<::torch::nn::Module>()> factory) {
    owners_.refuse_owned(name, tensors);
    auto group = add(std::move(name), tensors);
    group->factory = std::move(factory);
    return group;
  }
  std::shared_ptr<OffloadedGroup> add_always_bound(std::string name, NamedTensors tensors) {
    auto group = add_loose(std::move(name), std::move(tensors));
    group->always_bound = true;
    engine_.keep_bound(group->id);
    return group;
  }
  // The trained parameters of `model` that no group has. Frozen ones stay with torch.
  NamedTensors take_rest(const std::string& name, const ::torch::nn::Module& model) {
    NamedTensors rest;
    for (auto& [parameter, tensor] : parameters_of(model)) {
      if (owners_.owned(tensor)) continue;
      if (tensor.requires_grad()) {
        rest.emplace_back(parameter, tensor);
      } else {
        buffers_.add_frozen(full_name(name, parameter), tensor);
      }
    }
    buffers_.add(name, model);
    return rest;
  }
  void share(const NamedTensors& tensors) { owners_.share(tensors); }
  void expect_frozen(OffloadedGroup& group, bool frozen) {
    require_before_freeze(group, frozen ? "expect_no_gradients()" : "expect_gradients()",
                          "memory is laid out by then");
    group.frozen = frozen;
  }
  void take_values_from(OffloadedGroup& group, ShardValues values) {
    require_before_freeze(group, "take_values_from()", "the group has its values by then");
    group.take_values_from(std::move(values));
  }

  // ---- freeze ----

  void settle() const {
    for (const auto& group : groups_) settle_frozen(engine_, *group);
    for (const auto& group : groups_) {
      if (!group->factory) require_same_shapes(engine_, place_, *group, group->loose);
    }
  }
  void attach(bool has_values) {
    for (const auto& group : groups_) attach(*group, has_values);
    buffers_.move_to(place_);
    attached_ = true;
  }
  bool attached() const noexcept { return attached_; }

  // ---- use ----

  // Throws for a handle to another Offload's group, because the handle's number means a different
  // group here.
  void require_own(const OffloadedGroup& group) const {
    if (group.owner == this) return;
    throw Error(Code::kInvalidArgument,
                quoted_group(group.name) +
                    " belongs to another Offload: this one would give it another group's values. "
                    "Call the Offload that it was added to.");
  }
  // Throws if the group's module now has a parameter that the group does not have.
  void require_registered(const OffloadedGroup& group) const {
    if (group.module)
      group.require_registered(owners_.without_shared(parameters_of(*group.module)));
  }

 private:
  std::shared_ptr<OffloadedGroup> add_loose(std::string name, NamedTensors tensors) {
    owners_.refuse_owned(name, tensors);
    auto group = add(std::move(name), tensors);
    owners_.own(group->name, tensors);
    group->loose = std::move(tensors);
    return group;
  }
  std::shared_ptr<OffloadedGroup> add(std::string name, const NamedTensors& tensors) {
    if (attached_) {
      throw Error(Code::kWrongState, quoted_group(name) +
                                         " was added after freeze(): sizes are fixed by then. Add "
                                         "every group before freeze().");
    }
    std::vector<ParameterSpec> specs;
    for (const auto& [parameter, tensor] : tensors) {
      specs.push_back(spec_of(place_, name, parameter, tensor));
      if (choose_) specs.back().hyperparameters = choose_(full_name(name, parameter), tensor);
    }
    auto group = std::make_shared<OffloadedGroup>();
    group->id = engine_.add_group(name, std::move(specs));
    group->name = std::move(name);
    group->owner = this;
    groups_.push_back(group);
    return group;
  }
  void require_before_freeze(const OffloadedGroup& group, const char* call, const char* why) const {
    require_own(group);
    if (!attached_) return;
    throw Error(Code::kWrongState, std::string(call) + " for " + quoted_group(group.name) +
                                       " after freeze(): " + why + ". Call it before freeze().");
  }
  void attach(OffloadedGroup& group, bool has_values) {
    NamedTensors tensors = std::exchange(group.loose, {});
    if (group.factory) {
      group.module = std::exchange(group.factory, nullptr)();
      tensors = owners_.without_shared(parameters_of(*group.module));
      owners_.refuse_owned(group.name, tensors);
      owners_.own(group.name, tensors);
      buffers_.add(group.name, *group.module);
    }
    require_same_shapes(engine_, place_, group, tensors);
    group.attach(place_, engine_, has_values, tensors, parked_text(serves_on_demand_));
    require_registered(group);
  }

  Engine& engine_;
  const Place& place_;
  Choose choose_;
  ParameterOwners owners_;
  BufferList buffers_;
  Groups groups_;
  bool serves_on_demand_ = false;
  bool attached_ = false;  // all groups are attached, and no more can be added
};
}  // namespace headrace::torch::detail
