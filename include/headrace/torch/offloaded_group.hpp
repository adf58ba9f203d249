// SPDX-License-Identifier: Apache-2.0
// headrace/torch/offloaded_group.hpp: the parameters of one group as torch sees them, on the
// engine's bytes.
//
// Holds the tensors of a group and their storages, and binds or parks them together. When
// that happens is decided in offload_core.hpp.
#pragma once
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/torch/fingerprint.hpp"
#include "headrace/torch/parameter_storage.hpp"
#include "headrace/torch/taken_gradient.hpp"

namespace headrace::torch::detail {
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline std::string quoted_group(const std::string& name) {
  return name.empty() ? "the unnamed group" : "group '" + name + "'";
}
inline std::string full_name(const std::string& group, const std::string& parameter) {
  return group.empty() ? parameter : group + "." + parameter;
}

inline std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  if (type == at::kFloat) return DType::kF32;
  if (type == at::kBFloat16) return DType::kBf16;
  if (type == at::kHalf) return DType::kF16;
  return std::nullopt;
}
inline DType dtype_of(const at::Tensor& tensor, const std::string& name) {
  if (const auto dtype = dtype_of(tensor.scalar_type())) return *dtype;
  throw Error(Code::kUnsupported,
              "parameter '" + name + "' is " + c10::toString(tensor.scalar_type()) +
                  ": only Float, BFloat16 and Half parameters can be offloaded. Convert it before "
                  "add_group(), e.g. module->to(torch::kBFloat16).");
}
inline at::ScalarType scalar_type_of(DType dtype) noexcept {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kF16 ? at::kHalf : at::kBFloat16;
}

// A module's own parameters, each once: what is registered under two names is one parameter, by its
// first name.
inline NamedTensors parameters_of(const ::torch::nn::Module& module) {
  NamedTensors found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

// The engine's description of a parameter, less its hyperparameters.
inline ParameterSpec spec_of(const Place& place, const std::string& group, const std::string& name,
                             const at::Tensor& tensor) {
  const std::string full = full_name(group, name);
  if (tensor.layout() != at::kStrided || !(tensor.device().is_cpu() || place.has(tensor))) {
    throw Error(Code::kUnsupported,
                "parameter '" + full + "' is a " + tensor.toString() + " tensor on " +
                    tensor.device().str() + ": only dense parameters in CPU memory" +
                    (place.is_cpu() ? "" : ", or on " + place.device().str() + ",") +
                    " can be offloaded. Move it with module->to(torch::kCPU) before add_group().");
  }
  const DType dtype = dtype_of(tensor, full);
  if (!tensor.is_contiguous()) {
    throw Error(Code::kUnsupported,
                "parameter '" + full +
                    "' is not row-major (channels_last, transposed or a slice): "
                    "offloaded, it would lose its strides. Give it memory of its own, before "
                    "add_group(), with weight.set_data(weight.contiguous()).");
  }
  return {name, dtype, tensor.sizes().vec(), {}, !tensor.requires_grad()};
}

// Runs after torch has written a gradient: first whatever hook was there, then ours.
class TakeGradient final : public ::torch::autograd::PostAccumulateGradHook {
 public:
  using Take = std::function<void(const at::Tensor& parameter)>;
  TakeGradient(Take take, std::unique_ptr<PostAccumulateGradHook> before)
      : take_(std::move(take)), before_(std::move(before)) {}

  void operator()(const ::torch::autograd::Variable& parameter) override {
    if (!before_) return take_(parameter);
    const Take take = take_;  // the other hook may close the Offload, and this one is gone then
    (*before_)(parameter);
    take(parameter);
  }
  std::unique_ptr<PostAccumulateGradHook> give_back() noexcept { return std::move(before_); }

 private:
  Take take_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

struct OffloadedParameter {
  ParameterId id;
  std::string full_name;
  at::Tensor tensor;  // the module's own
  ParameterStorage storage;
  std::string parked_text;
  TakenGradient gradient;
  const TakeGradient* hook = nullptr;
  std::uint32_t bound_version = 0;
};

// One backward pass that has this group bound.
struct OpenBackward {
  int graph_task = 0;
  std::uint64_t opened = 0;  // counts up: which of two is older
  std::size_t arrived = 0;
  std::size_t expected = 0;
};

// A binding because an operator of a backward pass touched the group outside of its calls.
struct TouchedBinding {
  int graph_task = 0;
  std::uint64_t opened = 0;
};

class OffloadedGroup {
 public:
  std::string name;
  GroupId id;
  std::shared_ptr<::torch::nn::Module>
      module;  // null for loose parameters, and until a factory ran
  std::function<std::shared_ptr<::torch::nn::Module>()> factory;  // empty for an existing module
  NamedTensors loose;         // parameters given without a module, until attach()
  bool always_bound = false;  // bound from freeze to close
  // What expect_gradients() and expect_no_gradients() said of all its parameters; else each is
  // frozen or not as it requires a gradient at freeze().
  std::optional<bool> frozen;

  bool changing = false;  // bound to a copy that the user changes

  // Why its values are no longer the engine's, and Engine::weight_changes() then: until new ones
  // are loaded. Empty: they are the engine's.
  std::string spoiled;
  std::uint64_t spoiled_changes = 0;

  const void* owner = nullptr;     // the core that added it
  std::uint64_t seen_changes = 0;  // Engine::weight_changes() when it was bound last
  std::uint32_t bindings = 0;
  // Where the values are, one for each stream that uses them.
  struct Lease {
    Stream stream;
    Gathered gathered;
  };
  std::vector<Lease> leases;
  std::vector<OpenBackward> backwards;
  bool serves_on_demand = false;  // set before attach()
  std::optional<TouchedBinding> touched;
  std::uint64_t touches = 0;  // how often there was one

  // Moves the parameters from memory of their own onto their (parked) storages, their values
  // into the engine.
  void attach(const Place& place, Engine& engine, const NamedTensors& tensors) {
    engine.load(id, [&](ParameterId parameter, std::span<std::byte> values) {
      copy_values(tensors[index_in(engine, parameter)].second, values);
    });
    const std::span<const ParameterId> ids = engine.parameters(id);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const ParameterSpec& spec = engine.spec(ids[i]);
      at::Tensor parameter = tensors[i].second;
      // A tensor that never asked for gradients has no place for a hook yet.
      ::torch::autograd::impl::materialize_autograd_meta(parameter);
      const std::string& name = engine.full_name(ids[i]);
      const std::string text = parked_text(name);
      const ParameterStorage storage(place, scalar_type_of(spec.dtype),
                                     spec.elements() * size_bytes(spec.dtype), text);
      parameter.set_data(storage.view(spec.shape));
      parameters_.push_back({ids[i], name, parameter, storage, text,
                             TakenGradient(place, parameter, taken_text(name))});
    }
  }

  void set_gradient_hooks(const std::function<TakeGradient::Take(std::size_t index)>& take) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& tensor = parameters_[i].tensor;
      auto hook = std::make_unique<TakeGradient>(
          take(i), std::move(::torch::autograd::impl::post_acc_grad_hooks(tensor)));
      parameters_[i].hook = hook.get();
      ::torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::move(hook));
    }
  }
  void forget_gradients() {
    for (OffloadedParameter& parameter : parameters_) parameter.gradient.forget(parameter.tensor);
  }
  void remove_gradient_hooks() noexcept {
    for (OffloadedParameter& parameter : parameters_) {
      parameter.gradient.leave(parameter.tensor);
      auto& slot = ::torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
      if (parameter.hook == nullptr || slot.get() != parameter.hook) continue;
      auto before = static_cast<TakeGradient*>(slot.get())->give_back();
      slot = std::move(before);
      parameter.hook = nullptr;
    }
  }

  // Throws for a parameter that is no longer ours: torch replaced its storage, or somebody its
  // gradient hook.
  void check_attached() const {
    check_storage();
    check_hooks();
  }
  void check_storage() const {
    for (const OffloadedParameter& parameter : parameters_) {
      if (parameter.storage.holds(parameter.tensor)) continue;
      throw Error(Code::kWrongState,
                  "parameter '" + parameter.full_name + "' of " + quoted_group(name) +
                      " left its storage (Module::to, torch::load or set_data gave it "
                      "other memory): what it holds now would be neither trained nor saved. "
                      "`offload.gathered(group, Access::kModify).release()` takes it into the "
                      "engine, and .discard() in place of .release() gives the parameter the "
                      "engine's values again.");
    }
  }
  void check_hooks() const {
    for (const OffloadedParameter& parameter : parameters_) {
      if (::torch::autograd::impl::post_acc_grad_hooks(parameter.tensor).get() != parameter.hook) {
        throw Error(Code::kWrongState, "the gradient hook of parameter '" + parameter.full_name +
                                           "' of " + quoted_group(name) +
                                           " was replaced after freeze(), so its gradient would be "
                                           "lost. Set hooks of your own before "
                                           "freeze(): they are kept and run first.");
      }
    }
  }

  bool leased_on(Stream stream) const noexcept {
    return std::any_of(leases.begin(), leases.end(), [stream](const Lease& lease) {
      return lease.stream.handle == stream.handle;
    });
  }
  void bind(Stream stream, Gathered gathered) {
    leases.push_back({stream, std::move(gathered)});
    for (OffloadedParameter& parameter : parameters_) {
      parameter.storage.bind(leases.front().gathered.bytes(parameter.id).data);
      parameter.bound_version = version_of(parameter);
    }
  }
  // Parks, gives the lease back, and returns the parameter that was written in the meantime, if one
  // was. (One that left the storage is check_attached()'s to tell.)
  const OffloadedParameter* unbind() {
    const OffloadedParameter* written = nullptr;
    for (const OffloadedParameter& parameter : parameters_) {
      const bool here = parameter.storage.holds(parameter.tensor);
      if (here && version_of(parameter) != parameter.bound_version) written = &parameter;
    }
    park();
    leases.clear();
    return written;
  }
  // Of each parameter's bytes while the group is bound.
  std::vector<std::uint64_t> fingerprints() const {
    std::vector<std::uint64_t> prints;
    for (const OffloadedParameter& parameter : parameters_) prints.push_back(print_of(parameter));
    return prints;
  }
  // The first parameter whose bytes have changed, if any.
  const OffloadedParameter* changed_since(const std::vector<std::uint64_t>& prints) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (print_of(parameters_[i]) != prints[i]) return &parameters_[i];
    }
    return nullptr;
  }
  // Throws where somebody gave the module another parameter in the place of one of these.
  void check_registered(const NamedTensors& of_module) const {
    for (const auto& [parameter, tensor] : of_module) {
      const at::Tensor& registered = tensor;
      const bool ours = std::any_of(
          parameters_.begin(), parameters_.end(),
          [&registered](const auto& known) { return known.tensor.is_same(registered); });
      if (!ours) refuse_unregistered(parameter);
    }
  }
  [[noreturn]] void refuse_unregistered(const std::string& parameter) const {
    throw Error(Code::kWrongState,
                "'" + full_name(name, parameter) + "' of " + quoted_group(name) +
                    " is another tensor than the one that add_group() saw (a parameter or a "
                    "submodule was replaced): it would be neither trained nor saved. Replace it "
                    "before add_group(), or put values in with copy_() within gathered(group, "
                    "Access::kModify).");
  }
  // Parked as it is, and saying why it could not be bound when it was touched.
  void stay_parked(const std::string& cause) {
    for (OffloadedParameter& parameter : parameters_)
      parameter.storage.park(parameter.parked_text +
                             " It could not be brought when it was touched: " + cause);
  }
  // A bound group goes on with a copy of its values, and gives its lease back.
  void move_to_copy() {
    const at::RecordFunctionGuard unseen = not_served();
    std::vector<at::Tensor> copies;
    for (const OffloadedParameter& parameter : parameters_)
      copies.push_back(parameter.storage.whole().clone());
    for (std::size_t i = 0; i < copies.size(); ++i)
      parameters_[i].storage.bind(copies[i].mutable_data_ptr());
    copies_ = std::move(copies);
    leases.clear();
  }
  // torch::load() and Module::to() give a parameter other memory: its values go to the copy.
  void take_strays_back(Engine& engine) {
    for (const OffloadedParameter& parameter : parameters_) {
      const ParameterStorage& storage = parameter.storage;
      if (storage.holds(parameter.tensor)) continue;
      const at::Tensor values = parameter.tensor.detach();
      const ParameterSpec& spec = engine.spec(parameter.id);
      if (values.scalar_type() != storage.type() || values.sizes() != spec.shape) {
        throw Error(Code::kWrongState,
                    "parameter '" + parameter.full_name + "' of " + quoted_group(name) +
                        " became " + text_of(values.scalar_type(), values.sizes()) +
                        " while it was being changed, and was " +
                        text_of(storage.type(), spec.shape) +
                        ": only values can change, not type or shape. Bring those back before the "
                        "scope ends, or discard() the changes.");
      }
      const at::Tensor place = storage.view(spec.shape);
      place.copy_(values);
      at::Tensor(parameter.tensor).set_data(place);
    }
  }
  // The copy's values become the engine's.
  void load_copy(Engine& engine) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor copy = copies_[i].cpu();  // where the CPU can read it
      const auto* values = static_cast<const std::byte*>(copy.const_data_ptr());
      const std::size_t size = copy.element_size();
      engine.load(parameters_[i].id, Content::kWeight,
                  [values, size](std::uint64_t first, std::span<std::byte> stretch) {
                    std::memcpy(stretch.data(), values + first * size, stretch.size());
                  });
    }
  }
  // Those that torch::load() or Module::to() moved away come back, without the values they have.
  void drop_strays(const Engine& engine) {
    for (const OffloadedParameter& parameter : parameters_) {
      if (parameter.storage.holds(parameter.tensor)) continue;
      at::Tensor(parameter.tensor)
          .set_data(parameter.storage.view(engine.spec(parameter.id).shape));
    }
  }
  void drop_copy() {
    park();
    copies_.clear();
  }
  void park() {
    for (OffloadedParameter& parameter : parameters_) parameter.storage.park(parameter.parked_text);
  }
  // Parks for the rest of the run: `what` follows each parameter's name.
  void park_for_good(const std::string& what) {
    for (OffloadedParameter& parameter : parameters_) {
      parameter.parked_text = named(parameter.full_name) + what;
      parameter.storage.park(parameter.parked_text);
    }
  }

  // The weights have changed: torch then refuses a backward pass over values saved before.
  void mark_changed() const {
    for (const OffloadedParameter& parameter : parameters_)
      parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  std::size_t trainable_count() const {
    std::size_t count = 0;
    for (const OffloadedParameter& parameter : parameters_)
      count += parameter.tensor.requires_grad() ? 1 : 0;
    return count;
  }
  const std::vector<OffloadedParameter>& parameters() const noexcept { return parameters_; }
  std::vector<OffloadedParameter>& parameters() noexcept { return parameters_; }

 private:
  // For operators on what is bound: who serves it on demand may be locked by the caller.
  static at::RecordFunctionGuard not_served() {
    return at::RecordFunctionGuard(/*is_enabled=*/false);
  }
  std::uint64_t print_of(const OffloadedParameter& parameter) const {
    const DeviceSpan bytes = leases.front().gathered.bytes(parameter.id);
    const at::Tensor whole = parameter.storage.whole();
    if (whole.device().is_cpu()) return fingerprint(bytes.data, bytes.size_bytes);
    const at::RecordFunctionGuard unseen = not_served();
    return fingerprint(whole.cpu().const_data_ptr(), bytes.size_bytes);
  }
  static std::string text_of(at::ScalarType type, at::IntArrayRef shape) {
    std::ostringstream text;
    text << type << ' ' << shape;
    return text.str();
  }
  static std::uint32_t version_of(const OffloadedParameter& parameter) {
    return parameter.tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }
  static void copy_values(const at::Tensor& from, std::span<std::byte> values) {
    const at::Tensor dense = from.detach().cpu().contiguous();
    if (dense.nbytes() != values.size()) {
      throw Error(Code::kInvalidArgument,
                  "parameter values changed their size between add_group() and freeze()");
    }
    std::memcpy(values.data(), dense.const_data_ptr(), values.size());
  }
  std::size_t index_in(Engine& engine, ParameterId parameter) const {
    const std::span<const ParameterId> ids = engine.parameters(id);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == parameter) return i;
    }
    throw Error(Code::kNotFound,
                "the engine asked for a parameter that is not in " + quoted_group(name));
  }
  std::string taken_text(const std::string& parameter) const {
    return "the gradient of parameter '" + parameter + "' of " + quoted_group(name) +
           " was looked for in .grad(): it was handed to the engine when backward had it, and "
           "there "
           "is no memory behind .grad() now. Pass max_norm to offload.step() to clip it, and "
           "let offload.step() take the optimizer's place.";
  }
  std::string named(const std::string& parameter) const {
    return "parameter '" + parameter + "' of " + quoted_group(name);
  }
  std::string parked_text(const std::string& parameter) const {
    return named(parameter) +
           " was used while it is offloaded: there is no memory behind it now. Call its module "
           "through offload(group, ...) or offload.run(group, ...), or hold `auto whole = "
           "offload.gathered(group);` for as long as you read it, and `offload.gathered(group, "
           "Access::kModify)` to write. Another Offload may have it. " +
           (serves_on_demand
                ? "serve_on_demand() is for operators that read: writes, torch::save and "
                  "data_ptr() are none."
                : "What can do neither (a weight that another block captured, a loss kept in the "
                  "module, second derivatives) is served after offload.serve_on_demand().");
  }

  std::vector<OffloadedParameter> parameters_;
  std::vector<at::Tensor> copies_;  // of each, while the user changes them
};
}  // namespace headrace::torch::detail
