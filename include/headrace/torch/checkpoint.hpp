// SPDX-License-Identifier: Apache-2.0
// headrace/torch/checkpoint.hpp: activation checkpointing. Forward keeps only a block's inputs;
// backward runs the block again, exactly as before, and differentiates that run.
//
// The checkpoint is reentrant: the second run and its own backward pass happen inside the node of
// the first run. So the group stays bound from the start of the second run to the end of that pass.
// State that does not pass through autograd is restored for the second run: torch's generators
// (dropout) and autocast settings, for the CPU and for the device of the parameters. Backward
// checks that the weights are unchanged. Example:
//
//   forward    y = checkpoint(g, f, x): f runs without gradients, with g bound. Autograd keeps x
//              and this call, which holds f, the states of the generators, and how often weights
//              had changed.
//   pass 7     reaches y's node. g is bound for that node (Binding), and f runs again on a detached
//              x.
//   pass 8       begins within the node, over the graph that f recorded. Gradients of g's
//                parameters arrive and count for pass 8. Pass 8 needs no hold: the Binding keeps g
//                bound to the end.
//   end of 8     torch calls end_pass(8), which has nothing to release.
//   pass 7     the node ends: g is parked, and x's gradient is passed on.
//
// So a parameter that is used both in a checkpoint and outside of it gets two gradients from one
// loss, one in pass 7 and one in pass 8, and needs expect_repeated_gradients().
#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "headrace/torch/offload_core.hpp"
#include "headrace/torch/random_state.hpp"
#include "headrace/torch/tensors.hpp"

namespace headrace::torch::detail {
struct Autocast {
  explicit Autocast(const Place& place) : cache(at::autocast::is_autocast_cache_enabled()) {
    for (const at::DeviceType device : place.device_types()) {
      devices.push_back({device, at::autocast::is_autocast_enabled(device),
                         at::autocast::get_autocast_dtype(device)});
    }
  }
  void set() const {
    for (const OfDevice& of : devices) {
      at::autocast::set_autocast_enabled(of.device, of.enabled);
      at::autocast::set_autocast_dtype(of.device, of.type);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
  bool enabled() const {
    return std::any_of(devices.begin(), devices.end(),
                       [](const OfDevice& of) { return of.enabled; });
  }
  struct OfDevice {
    at::DeviceType device;
    bool enabled;
    at::ScalarType type;
  };
  std::vector<OfDevice> devices;
  bool cache;
};
// torch caches the weights that autocast has cast. That cache belongs to one graph, so this class
// empties it before and after a scope.
class OwnAutocastCache {
 public:
  explicit OwnAutocastCache(const Autocast& settings) : used_(settings.enabled()) { clear(); }
  ~OwnAutocastCache() { clear(); }
  OwnAutocastCache& operator=(OwnAutocastCache&&) = delete;

 private:
  void clear() const {
    if (used_) at::autocast::clear_cache();
  }
  bool used_;
};

// One call of a checkpointed block. Lives as long as the node that autograd has for it.
class CheckpointedCall : public ::torch::CustomClassHolder {
 public:
  using Tensors = std::vector<at::Tensor>;

  CheckpointedCall(const std::shared_ptr<OffloadCore>& core, std::shared_ptr<OffloadedGroup> group)
      : core_(core),
        group_(std::move(group)),
        changes_(core->weight_changes(*group_)),
        trained_(trained()),
        place_(core->place()),
        random_state_(place_),
        autocast_(place_) {}

  // Runs in forward, without gradients, while the group is bound.
  Tensors run_first(at::TensorList inputs) {
    Autocast settings = autocast_;
    settings.cache = false;  // no later use may find a weight that was cast without gradients
    const Restored<Autocast> autocast(place_, settings);
    const std::vector<std::uint32_t> versions = versions_of(inputs);
    Tensors outputs = run(inputs);
    if (versions_of(inputs) != versions) {
      throw Error(Code::kUnsupported,
                  "the checkpointed block of " + named() +
                      " changed its input in place: backward would run it again on the changed "
                      "values. Clone the input in the block first, or call the block with "
                      "offload(group, ...).");
    }
    for (at::Tensor& output : outputs) {
      const bool input = std::any_of(inputs.begin(), inputs.end(),
                                     [&](const at::Tensor& in) { return in.is_same(output); });
      if (!input && output.requires_grad()) output = output.detach();  // a returned parameter
    }
    return outputs;
  }
  // Runs in backward. `inputs` are leaves, and have their gradients afterwards.
  void run_again(const Tensors& inputs, const Tensors& gradients) {
    const auto core = core_.lock();
    if (!core) {
      throw Error(Code::kWrongState, "backward reached the checkpoint of " + named() +
                                         " after its Offload was closed: its values are gone.");
    }
    refuse_what_it_cannot(*core);
    const Binding binding(core, group_);
    Tensors roots, into_them;
    {
      const at::AutoGradMode with_gradients(true);
      const Restored<RandomState> random_state(place_, random_state_);
      const OwnAutocastCache cache(autocast_);
      const Restored<Autocast> autocast(place_, autocast_);
      const Tensors outputs = run(inputs);
      refuse_another_result(outputs.size(), gradients.size());
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        into_them.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) ::torch::autograd::backward(roots, into_them);
  }

 protected:
  // Runs the block on these inputs, and returns the defined tensors of its result, in order.
  virtual Tensors run(at::TensorList inputs) = 0;

 private:
  std::string named() const { return quoted_group(group_->name); }
  static std::vector<std::uint32_t> versions_of(at::TensorList tensors) {
    std::vector<std::uint32_t> versions;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_inference()) versions.push_back(static_cast<std::uint32_t>(tensor._version()));
    }
    return versions;
  }
  std::vector<bool> trained() const {
    std::vector<bool> trained;
    for (const OffloadedParameter& parameter : std::as_const(*group_).parameters())
      trained.push_back(parameter.tensor().requires_grad());
    return trained;
  }
  void refuse_what_it_cannot(const OffloadCore& core) const {
    if (!::torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw Error(
          Code::kUnsupported,
          "a backward pass for chosen inputs only (autograd::grad, or backward with inputs) "
          "reached the checkpoint of " +
              named() +
              ", which runs a whole backward pass of its own. Call the block with "
              "offload(group, ...) where you need this.");
    }
    if (at::GradMode::is_enabled()) {
      throw Error(Code::kUnsupported,
                  "a backward pass with create_graph reached the checkpoint of " + named() +
                      ", which has no second derivatives. Call the block with offload(group, ...) "
                      "where you need them.");
    }
    if (core.weight_changes(*group_) != changes_) {
      throw Error(Code::kWrongState,
                  "weights changed between forward and backward of the checkpoint of " + named() +
                      ": it would run again with other ones than forward did. Call backward() "
                      "before step(), load() and gathered(group, Access::kModify).");
    }
    if (trained() != trained_) {
      throw Error(Code::kWrongState,
                  "parameters of " + named() +
                      " were frozen or unfrozen between forward and backward of its checkpoint: "
                      "others would receive gradients than forward said. Call backward() first.");
    }
  }
  void refuse_another_result(std::size_t now, std::size_t before) const {
    if (now == before) return;
    throw Error(Code::kWrongState,
                "the checkpointed block of " + named() + " gave " + std::to_string(now) +
                    " tensors in backward and " + std::to_string(before) +
                    " in forward: its gradients would be of something else. It must do the same "
                    "both times.");
  }

  std::weak_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
  std::uint64_t changes_;      // of any group's weights, before forward
  std::vector<bool> trained_;  // for each of the group's parameters
  Place place_;
  RandomState random_state_;
  Autocast autocast_;
};

template <class F, class... Inputs>
class CheckpointedCallOf final : public CheckpointedCall {
 public:
  using Result = std::decay_t<std::invoke_result_t<F&, Inputs&...>>;

  CheckpointedCallOf(const std::shared_ptr<OffloadCore>& core,
                     std::shared_ptr<OffloadedGroup> group, F function, Inputs... inputs)
      : CheckpointedCall(core, std::move(group)),
        function_(std::move(function)),
        inputs_(std::move(inputs)...) {}

  // Takes the defined tensors out of the inputs. From here on, autograd keeps them.
  Tensors take_inputs() {
    Tensors taken;
    walk_tensors(inputs_, [&](at::Tensor& input) {
      given_.push_back(input.defined());
      if (input.defined()) taken.push_back(std::exchange(input, at::Tensor()));
    });
    return taken;
  }
  // Returns the result of the first run, with autograd's tensors in place of that run's own.
  Result take_result(const Tensors& outputs) {
    Result result = std::move(*result_);
    result_.reset();
    auto next = outputs.begin();
    walk_tensors(result, [&](at::Tensor& output) {
      if (output.defined()) output = *next++;
    });
    return result;
  }

 private:
  Tensors run(at::TensorList given) override {
    std::tuple<Inputs...> inputs = inputs_;
    auto next = given.begin();
    auto slot = given_.begin();
    walk_tensors(inputs, [&](at::Tensor& input) {
      if (*slot++) input = *next++;
    });
    Result result = std::apply(function_, inputs);
    Tensors outputs;
    walk_tensors(result, [&](at::Tensor& output) {
      if (output.defined()) outputs.push_back(output);
    });
    if (!at::GradMode::is_enabled()) result_ = std::move(result);  // the first run
    return outputs;
  }

  F function_;
  std::tuple<Inputs...> inputs_;
  std::vector<bool> given_;
  std::optional<Result> result_;
};

struct Checkpoint : ::torch::autograd::Function<Checkpoint> {
  using Tensors = std::vector<at::Tensor>;

  // The last of `inputs` is a dummy that requires a gradient, so that the parameters receive their
  // gradients even if no real input requires one. The list must be an at::TensorList, because
  // apply() looks for tensors in no other type of list.
  static Tensors forward(::torch::autograd::AutogradContext* context,
                         const c10::intrusive_ptr<CheckpointedCall>& call, at::TensorList inputs) {
    context->set_materialize_grads(false);
    context->save_for_backward(inputs.vec());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->run_first(inputs.slice(0, inputs.size() - 1));
  }
  static Tensors backward(::torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    Tensors inputs = context->get_saved_variables();
    inputs.pop_back();
    for (at::Tensor& input : inputs)
      input = input.detach().set_requires_grad(input.requires_grad());
    static_cast<CheckpointedCall*>(capsule.get())->run_again(inputs, gradients);
    Tensors result(inputs.size() + 2);  // one for `call`, one for the dummy
    for (std::size_t i = 0; i < inputs.size(); ++i) result[i + 1] = inputs[i].grad();
    return result;
  }
};

// Call it with gradients enabled and the group bound.
template <class F, class... Inputs>
auto checkpoint(const std::shared_ptr<OffloadCore>& core, std::shared_ptr<OffloadedGroup> group,
                F function, Inputs... inputs) {
  using Call = CheckpointedCallOf<F, Inputs...>;
  static_assert(!std::is_void_v<typename Call::Result>,
                "a checkpointed block returns the tensors that backward comes from");
  const auto call =
      c10::make_intrusive<Call>(core, std::move(group), std::move(function), std::move(inputs)...);
  std::vector<at::Tensor> tensors = call->take_inputs();
  tensors.push_back(at::empty({0}).set_requires_grad(true));
  return call->take_result(
      Checkpoint::apply(c10::intrusive_ptr<CheckpointedCall>(call), at::TensorList(tensors)));
}
}  // namespace headrace::torch::detail
