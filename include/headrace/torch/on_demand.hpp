// SPDX-License-Identifier: Apache-2.0
// headrace/torch/on_demand.hpp: detects that an operator is about to read a parked parameter, and
// has the parameter's group bound while the operator runs.
//
// torch reports every operator with its arguments to a callback (at::RecordFunction), in every
// thread, in forward and backward. An argument that uses a parameter's storage (the parameter, a
// view of it, a tensor that autograd saved from it) identifies the group. Operators that only make
// views need no values, and torch refuses an operator that would write to a parked parameter.
//
// Example: there are two slots, a backward pass has touched first group a and then group c, and now
// add(a.w, b.w) runs:
//
//   before   the table finds the groups of a.w and b.w by their storages. hold_if_bound(a) comes
//            first, and adds a binding to group a. Then hold_on_demand(b) runs out of memory, so
//            the group that has been bound for longest must go. That would be group a, but the
//            operator uses it, so group c goes.
//   add      reads a.w and b.w.
//   after    ~GroupsInUse() releases groups a and b. The pass's own bindings keep both bound until
//            the pass ends.
//
// An operator that would write to b.w leaves group b parked: torch throws b's parked text.
//
// bound_groups.hpp decides when a group is bound and released.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headrace/torch/bound_groups.hpp"

namespace headrace::torch::detail {
// The arguments of the operator that a callback sees. RecordFunction::inputs() fails if this
// translation unit is compiled with assertions and torch was not, because it asserts a flag that
// such a torch never sets. (The flag lies in padding, so all other members are where torch has
// them. require_recorded_arguments() checks this.)
struct RecordedInputs {
  using type = c10::ArrayRef<const c10::IValue> at::RecordFunction::*;
  friend constexpr type reveal(RecordedInputs);
};
template struct Reveal<RecordedInputs, &at::RecordFunction::inputs_>;
inline c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& op) {
  return op.*reveal(RecordedInputs{});
}

// Calls see(tensor) for every tensor in an argument of an operator.
template <class See>
void for_each_tensor_in(const c10::IValue& argument, See&& see) {
  if (argument.isTensor()) {
    if (const at::Tensor& tensor = argument.toTensor(); tensor.defined()) see(tensor);
  } else if (argument.isList()) {
    for (const c10::IValue& item : argument.toListRef()) {
      if (!item.isTensor() && !item.isNone()) return;  // numbers
      for_each_tensor_in(item, see);
    }
  } else if (argument.isTuple()) {
    for (const c10::IValue& item : argument.toTupleRef().elements()) for_each_tensor_in(item, see);
  }
}

// Throws kUnsupported if the callback would not see the arguments of operators.
inline void require_recorded_arguments() {
  static thread_local const void* wanted = nullptr;
  static thread_local bool seen = false;
  const at::Tensor probe = at::empty({1});
  wanted = probe.unsafeGetTensorImpl();
  seen = false;
  const auto callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
            const auto arguments = arguments_of(op);
            if (arguments.size() != op.num_inputs() || arguments.empty()) return nullptr;
            for_each_tensor_in(arguments[0], [](const at::Tensor& tensor) {
              seen = seen || tensor.unsafeGetTensorImpl() == wanted;
            });
            return nullptr;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(probe.neg());
  at::removeCallback(callback);
  if (seen) return;
  throw Error(Code::kUnsupported,
              "serve_on_demand(): this torch does not tell its callbacks what operators are given "
              "(RecordFunction is switched off in this thread, or laid out otherwise than its "
              "header says), so a touched parameter would not be seen. Leave it out, and use "
              "parameters through run() and gathered().");
}

// How an operator uses an argument.
enum class ArgumentUse { kRead, kWrite, kNone };
inline ArgumentUse use_of(const c10::FunctionSchema& schema, std::size_t argument) {
  if (argument >= schema.arguments().size()) return ArgumentUse::kNone;
  const c10::AliasInfo* alias = schema.arguments()[argument].alias_info();
  if (alias != nullptr && alias->isWrite()) return ArgumentUse::kWrite;
  // The operator makes a view. If it has to copy, it calls another operator for that.
  if (alias != nullptr) return ArgumentUse::kNone;
  const std::string& name = schema.name();
  const bool shape_only = name.ends_with("_like") || name.starts_with("aten::new_");
  return shape_only ? ArgumentUse::kNone : ArgumentUse::kRead;
}

// The groups that one operator uses. They are held until the operator has run. A parked group to
// which the operator would write stays parked until then, even for operators that this one calls.
class GroupsInUse final : public at::ObserverContext {
 public:
  struct Use {
    std::shared_ptr<BoundGroups> server;
    OffloadedGroup* group;
  };
  ~GroupsInUse() override {
    for (const Use& use : held_) use.server->release(*use.group);
    refused().resize(refused().size() - refused_);
  }
  void add(Use use) { held_.push_back(std::move(use)); }
  bool holds(const OffloadedGroup* group) const {
    return std::any_of(held_.begin(), held_.end(),
                       [group](const Use& use) { return use.group == group; });
  }
  void refuse(const OffloadedGroup* group) {
    refused().push_back(group);
    ++refused_;
  }
  static bool refuses(const OffloadedGroup* group) {
    return std::find(refused().begin(), refused().end(), group) != refused().end();
  }

 private:
  static std::vector<const OffloadedGroup*>& refused() {  // by operators under way
    static thread_local std::vector<const OffloadedGroup*> groups;
    return groups;
  }
  std::vector<Use> held_;
  std::size_t refused_ = 0;
};

// The storages of the parameters of all Offloads in this process that serve on demand. The torch
// callback exists while there is at least one such Offload.
class OnDemandTable {
 public:
  static OnDemandTable& instance() {
    static auto* const table = new OnDemandTable;  // other threads may outlive static objects
    return *table;
  }

  void add(const std::weak_ptr<BoundGroups>& server, OffloadedGroup& group) {
    const std::unique_lock lock(mutex_);
    for (const OffloadedParameter& parameter : group.parameters())
      entries_.insert_or_assign(parameter.storage().key(), Entry{server, &group});
    if (!entries_.empty() && !callback_) {
      callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&OnDemandTable::before_operator)
                                            .needsInputs(true)
                                            .scopes({at::RecordScope::FUNCTION}));
    }
  }
  void remove(const OffloadedGroup& group) {
    const std::unique_lock lock(mutex_);
    std::erase_if(entries_, [&](const auto& entry) { return entry.second.group == &group; });
    if (entries_.empty() && callback_) at::removeCallback(*std::exchange(callback_, {}));
  }

 private:
  struct Entry {
    std::weak_ptr<BoundGroups> server;
    OffloadedGroup* group;
  };
  struct Touched {
    GroupsInUse::Use use;
    std::size_t argument;
  };

  // torch would swallow an exception from this function. So after a failure, the group stays
  // parked, and the operator throws the group's parked text: no failure is silent.
  static std::unique_ptr<at::ObserverContext> before_operator(
      const at::RecordFunction& op) noexcept {
    try {
      const std::vector<Touched> touched = instance().find(arguments_of(op));
      return touched.empty() ? nullptr : hold(op, touched);
    } catch (...) {
      return nullptr;
    }
  }

  std::vector<Touched> find(c10::ArrayRef<const c10::IValue> arguments) const {
    std::vector<Touched> touched;
    const std::shared_lock lock(mutex_);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor_in(arguments[i], [&](const at::Tensor& tensor) {
        const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
        if (!impl->has_storage()) return;
        const auto entry = entries_.find(impl->unsafe_storage().unsafeGetStorageImpl());
        if (entry == entries_.end()) return;
        if (auto server = entry->second.server.lock())
          touched.push_back({{std::move(server), entry->second.group}, i});
      });
    }
    return touched;
  }

  // Holds the groups that are bound, and only then binds the others, so that this does not evict
  // the first ones.
  static std::unique_ptr<at::ObserverContext> hold(const at::RecordFunction& op,
                                                   const std::vector<Touched>& touched) {
    auto in_use = std::make_unique<GroupsInUse>();
    const auto is_held = [&](const Touched& touch) { return in_use->holds(touch.use.group); };
    for (const Touched& touch : touched) {
      if (!is_held(touch) && touch.use.server->hold_if_bound(*touch.use.group))
        in_use->add(touch.use);
    }
    if (std::all_of(touched.begin(), touched.end(), is_held)) return in_use;
    const std::optional<c10::FunctionSchema> schema = op.operator_schema();
    if (!schema) return in_use;  // not an operator itself, but it calls operators
    for (const Touched& touch : touched) {
      if (!is_held(touch) && use_of(*schema, touch.argument) == ArgumentUse::kWrite)
        in_use->refuse(touch.use.group);
    }
    for (const Touched& touch : touched) {
      if (is_held(touch) || use_of(*schema, touch.argument) != ArgumentUse::kRead) continue;
      if (GroupsInUse::refuses(touch.use.group)) continue;
      if (touch.use.server->hold_on_demand(*touch.use.group)) in_use->add(touch.use);
    }
    return in_use;
  }

  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  std::optional<at::CallbackHandle> callback_;
};
}  // namespace headrace::torch::detail
