// SPDX-License-Identifier: Apache-2.0
// headrace/torch/offloaded_group.hpp: the parameters of one group as torch sees them, backed by the
// engine's bytes.
//
// A group is parked (no memory behind its parameters), bound (to bytes that the engine gathered),
// or being changed (on a copy of its own; see gathered_scopes.hpp). This header binds and parks all
// parameters of a group together; bound_groups.hpp decides when.
#pragma once
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/torch/fingerprint.hpp"
#include "headrace/torch/module_parameters.hpp"
#include "headrace/torch/parameter_storage.hpp"
#include "headrace/torch/taken_gradient.hpp"

namespace headrace::torch {
// Writes those elements of one of a group's parameters that lie in this rank's shard, from
// `first_element` on, in the parameter's dtype. Headrace calls it for at most one range per
// parameter.
using ShardValues = std::function<void(const std::string& parameter, std::uint64_t first_element,
                                       std::span<std::byte> values)>;
}  // namespace headrace::torch

namespace headrace::torch::detail {
// Runs after torch has written a gradient. Calls any hook that was there before, and then
// Headrace's.
class TakeGradient final : public ::torch::autograd::PostAccumulateGradHook {
 public:
  using Take = std::function<void(const at::Tensor& parameter)>;
  TakeGradient(Take take, std::unique_ptr<PostAccumulateGradHook> before)
      : take_(std::move(take)), before_(std::move(before)) {}

  void operator()(const ::torch::autograd::Variable& parameter) override {
    if (!before_) return take_(parameter);
    const Take take = take_;  // the other hook may close the Offload, which destroys this one
    (*before_)(parameter);
    take(parameter);
  }
  std::unique_ptr<PostAccumulateGradHook> give_back() noexcept { return std::move(before_); }

 private:
  Take take_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

// One of a module's tensors, with the storage that the tensor keeps for as long as the model lives,
// and the hook that takes the tensor's gradient. Storage, hook and name outlive every binding.
class OffloadedParameter {
 public:
  // Moves `tensor` onto a parked storage of its own. The tensor's values are lost, so copy them
  // first.
  OffloadedParameter(const Place& place, const ParameterSpec& spec, ParameterId id,
                     const std::string& full_name, const std::string& group_name,
                     const std::string& parked_text, const at::Tensor& tensor)
      : id_(id),
        full_name_(full_name),
        named_("parameter '" + full_name + "' of " + quoted_group(group_name)),
        parked_text_(named_ + parked_text),
        tensor_(tensor),
        shape_(spec.shape),
        storage_(place, tensor.scalar_type(), spec.elements() * size_bytes(spec.dtype),
                 parked_text_),
        gradient_(place, tensor,
                  "the gradient of " + named_ +
                      " was looked for in .grad(): it was handed to the engine when backward had "
                      "it, and there is no memory behind .grad() now. Pass max_norm to "
                      "offload.step() to clip it, and let offload.step() take the optimizer's "
                      "place.") {
    // A tensor that never required gradients has no place for a hook yet.
    ::torch::autograd::impl::materialize_autograd_meta(tensor_);
    come_home();
  }

  ParameterId id() const noexcept { return id_; }
  const std::string& full_name() const noexcept { return full_name_; }
  const at::Tensor& tensor() const noexcept { return tensor_; }
  const ParameterStorage& storage() const noexcept { return storage_; }
  TakenGradient& gradient() noexcept { return gradient_; }
  const TakenGradient& gradient() const noexcept { return gradient_; }

  // The hook stays until leave(). require_own_hook() detects whether other code has replaced it.
  void set_hook(TakeGradient::Take take) {
    auto hook = std::make_unique<TakeGradient>(
        std::move(take), std::move(::torch::autograd::impl::post_acc_grad_hooks(tensor_)));
    hook_ = hook.get();
    ::torch::autograd::impl::set_post_acc_grad_hooks(tensor_, std::move(hook));
  }
  void require_own_hook() const {
    if (::torch::autograd::impl::post_acc_grad_hooks(tensor_).get() == hook_) return;
    throw Error(Code::kWrongState, "the gradient hook of " + named_ +
                                       " was replaced after freeze(), so its gradient would be "
                                       "lost. Set hooks of your own before freeze(): they are kept "
                                       "and run first.");
  }
  void require_own_storage() const {
    if (storage_.holds(tensor_)) return;
    throw Error(Code::kWrongState,
                named_ +
                    " left its storage (Module::to, torch::load or set_data gave it other "
                    "memory): what it holds now would be neither trained nor saved. "
                    "`offload.gathered(group, Access::kModify).release()` takes it into the "
                    "engine, and .discard() in place of .release() gives the parameter the "
                    "engine's values again.");
  }

  // A view of the parameter's own storage, to which come_home() returns the parameter.
  at::Tensor home() const { return storage_.view(shape_); }
  void come_home() const {
    if (!storage_.holds(tensor_)) at::Tensor(tensor_).set_data(home());
  }

  // The caller owns `data`, which must live until the parameter is parked.
  void bind(void* data) {
    storage_.bind(data);
    bound_version_ = version();
  }
  // Whether an operator has written to the parameter since bind(). (If the parameter left its
  // storage, require_own_storage() detects that.)
  bool was_written() const { return storage_.holds(tensor_) && version() != bound_version_; }
  // A fingerprint of the parameter's bytes, which lie at `bytes` while the parameter is bound. A
  // fingerprint reveals writes through data_ptr(), which torch does not count.
  std::uint64_t fingerprint_of(DeviceSpan bytes) const {
    const at::Tensor whole = storage_.whole();
    if (whole.device().is_cpu()) return fingerprint(bytes.data, bytes.size_bytes);
    // Hides this operator from serving on demand, which would take the lock that the caller holds.
    const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
    return fingerprint(whole.cpu().const_data_ptr(), bytes.size_bytes);
  }
  // From then on, at any use, torch throws the parked text followed by `more`.
  void park(const std::string& more = {}) { storage_.park(parked_text_ + more); }
  // Removes Headrace's hook, and parks the parameter for as long as the model lives. In the error,
  // `what` follows the parameter's name.
  void leave(const std::string& what) {
    remove_hook();
    parked_text_ = named_ + what;
    park();
  }
  // Marks the parameter's values as changed, so that torch refuses a backward pass over values
  // saved before.
  void mark_changed() const { tensor_.unsafeGetTensorImpl()->bump_version(); }

 private:
  void remove_hook() noexcept {
    gradient_.leave(tensor_);
    auto& slot = ::torch::autograd::impl::post_acc_grad_hooks(tensor_);
    if (hook_ == nullptr || slot.get() != hook_) return;
    auto before = static_cast<TakeGradient*>(slot.get())->give_back();
    slot = std::move(before);
    hook_ = nullptr;
  }
  std::uint32_t version() const {
    return tensor_.unsafeGetTensorImpl()->version_counter().current_version();
  }

  ParameterId id_;
  std::string full_name_, named_;
  std::string parked_text_;
  at::Tensor tensor_;  // the module's own
  std::vector<std::int64_t> shape_;
  ParameterStorage storage_;
  TakenGradient gradient_;
  const TakeGradient* hook_ = nullptr;
  std::uint32_t bound_version_ = 0;
};

// Threads: the trainer's, or any under the lock of BoundGroups.
class OffloadedGroup {
 public:
  // ---- kept by Registration ----
  std::string name;
  GroupId id;
  const void* owner = nullptr;  // the Registration that added it
  // Null for loose parameters, and until the factory has run.
  std::shared_ptr<::torch::nn::Module> module;
  std::function<std::shared_ptr<::torch::nn::Module>()> factory;  // empty for an existing module
  NamedTensors loose;         // parameters given without a factory, until attach()
  bool always_bound = false;  // bound from freeze to close
  // Set by expect_gradients() and expect_no_gradients() for all parameters. No value: each
  // parameter is frozen if it requires no gradient at freeze().
  std::optional<bool> frozen;

  // ---- kept by BoundGroups, under its lock ----
  std::uint32_t bindings = 0;      // of all users together; parked at 0
  bool changing = false;           // bound to a copy that the user changes; nobody else can bind it
  std::uint64_t touches = 0;       // how often the group was bound on demand
  std::uint64_t seen_changes = 0;  // Engine::weight_changes() when last bound

  // Moves the parameters' values into the engine, unless it `has_values` from elsewhere, and the
  // parameters from memory of their own onto (parked) storages. `parked_text` follows a parameter's
  // name in the error that torch throws if the parameter is used while parked.
  void attach(const Place& place, Engine& engine, bool has_values, const NamedTensors& tensors,
              const std::string& parked_text) {
    const std::span<const ParameterId> ids = engine.parameters(id);
    const auto load = [&](ParameterId parameter, std::uint64_t first, std::span<std::byte> values) {
      if (values_) return values_(engine.spec(parameter).name, first, values);
      const auto found = std::find(ids.begin(), ids.end(), parameter);
      copy_values(tensors[static_cast<std::size_t>(found - ids.begin())].second, first, values);
    };
    if (!has_values) engine.load(id, load);
    values_ = nullptr;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      parameters_.emplace_back(place, engine.spec(ids[i]), ids[i], engine.full_name(ids[i]), name,
                               parked_text, tensors[i].second);
    }
  }
  // Sets the function from which attach() takes values instead of from the tensors.
  void take_values_from(ShardValues values) { values_ = std::move(values); }
  const std::vector<OffloadedParameter>& parameters() const noexcept { return parameters_; }
  std::vector<OffloadedParameter>& parameters() noexcept { return parameters_; }
  std::size_t trainable_count() const {
    std::size_t count = 0;
    for (const OffloadedParameter& parameter : parameters_)
      count += parameter.tensor().requires_grad() ? 1 : 0;
    return count;
  }

  // Throws if torch has replaced a parameter's storage (unless `strays` is kTakenBack), or if other
  // code has replaced a parameter's gradient hook.
  enum class Strays { kRefused, kTakenBack };
  void require_attached(Strays strays = Strays::kRefused) const {
    for (const OffloadedParameter& parameter : parameters_) {
      if (strays == Strays::kRefused) parameter.require_own_storage();
      parameter.require_own_hook();
    }
  }
  // Throws if the module now has another parameter in place of one of the group's.
  void require_registered(const NamedTensors& of_module) const {
    for (const auto& item : of_module) {
      const bool ours =
          std::any_of(parameters_.begin(), parameters_.end(),
                      [&item](const auto& known) { return known.tensor().is_same(item.second); });
      if (!ours) refuse_unregistered(item.first);
    }
  }

  bool leased_on(Stream stream) const noexcept {
    return std::any_of(leases_.begin(), leases_.end(), [stream](const Lease& lease) {
      return lease.stream.handle == stream.handle;
    });
  }
  // The first lease binds the parameters to its bytes. A later lease has the same bytes, for
  // another stream that reads them.
  void bind(Stream stream, Gathered gathered) {
    leases_.push_back({stream, std::move(gathered)});
    if (leases_.size() > 1) return;
    for (OffloadedParameter& parameter : parameters_)
      parameter.bind(leases_.front().gathered.bytes(parameter.id()).data);
  }
  // Parks the parameters and gives the leases back. Returns a parameter that an operator wrote to
  // while it was bound, or null.
  const OffloadedParameter* unbind() {
    const auto written = std::find_if(parameters_.begin(), parameters_.end(),
                                      [](const auto& one) { return one.was_written(); });
    park();
    give_back();
    return written == parameters_.end() ? nullptr : &*written;
  }
  void give_back() noexcept { leases_.clear(); }
  void park(const std::string& more = {}) {
    for (OffloadedParameter& parameter : parameters_) parameter.park(more);
  }
  void leave(const std::string& what) {
    for (OffloadedParameter& parameter : parameters_) parameter.leave(what);
  }

  // A fingerprint of each parameter's bytes, while the group is bound.
  std::vector<std::uint64_t> fingerprints() const {
    std::vector<std::uint64_t> prints;
    for (const OffloadedParameter& parameter : parameters_) prints.push_back(print_of(parameter));
    return prints;
  }
  // The first parameter whose bytes have changed since `prints` were taken, or null.
  const OffloadedParameter* changed_since(const std::vector<std::uint64_t>& prints) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (print_of(parameters_[i]) != prints[i]) return &parameters_[i];
    }
    return nullptr;
  }
  void mark_changed() const {
    for (const OffloadedParameter& parameter : parameters_) parameter.mark_changed();
  }

 private:
  struct Lease {
    Stream stream;
    Gathered gathered;
  };
  std::uint64_t print_of(const OffloadedParameter& parameter) const {
    return parameter.fingerprint_of(leases_.front().gathered.bytes(parameter.id()));
  }
  static void copy_values(const at::Tensor& from, std::uint64_t first,
                          std::span<std::byte> values) {
    const auto begin = static_cast<std::int64_t>(first);
    const auto count = static_cast<std::int64_t>(values.size() / from.element_size());
    if (begin + count > from.numel()) {
      throw Error(Code::kInvalidArgument,
                  "parameter values changed their size between add_group() and freeze()");
    }
    const at::Tensor part =
        from.detach().contiguous().flatten().narrow(0, begin, count).cpu().contiguous();
    std::memcpy(values.data(), part.const_data_ptr(), values.size());
  }
  [[noreturn]] void refuse_unregistered(const std::string& parameter) const {
    throw Error(Code::kWrongState,
                "'" + full_name(name, parameter) + "' of " + quoted_group(name) +
                    " is another tensor than the one that add_group() saw (a parameter or a "
                    "submodule was replaced): it would be neither trained nor saved. Replace it "
                    "before add_group(), or put values in with copy_() within gathered(group, "
                    "Access::kModify).");
  }

  ShardValues values_;
  std::vector<OffloadedParameter> parameters_;
  std::vector<Lease> leases_;  // on the values, one for each stream that uses them
};
using Groups = std::vector<std::shared_ptr<OffloadedGroup>>;
}  // namespace headrace::torch::detail
