// SPDX-License-Identifier: Apache-2.0
// headrace/torch/offload.hpp: trains LibTorch modules while Headrace keeps their parameters,
// gradients and optimizer state.
//
//   headrace::torch::Offload offload(headrace::Settings::from_file("offload.json"));
//   offload.no_decay();                                // norms and biases
//   std::vector<headrace::torch::Group<BlockImpl>> blocks;
//   for (int i = 0; i < layers; ++i)                   // one at a time, never all in memory
//     blocks.push_back(
//         offload.add_group("h." + std::to_string(i), [config] { return Block(config); }));
//   offload.add_rest(model);                           // embeddings, last norm: always bound
//   offload.freeze();
//   for (auto& block : blocks) x = offload(block, x);  // instead of block->forward(x)
//   loss.backward();
//   offload.step({.learning_rate = 3e-4f, .max_norm = 1});  // optimizer.step() and zero_grad()
//
// A module's forward stays as it is. Its parameters stay the same objects, but they have memory
// only while they are needed. Touching a parameter at any other time throws a c10::Error that names
// its group and the call to use instead.
//
// Values:  buffers (batch norm statistics, masks) stay with torch: buffers() lists them. Parameters
//          are row-major; other strides (channels_last, a transposed weight) are refused.
// .grad(): once gradients have arrived, the engine owns them. Code that looks for gradients itself
//          (clip_grad_norm_, an optimizer) gets a c10::Error that says what to call instead.
// Threads: one trainer thread at a time, and the threads that autograd starts for it. While one
//          trainer thread is inside a call, or inside a backward pass on the CPU, calls from a
//          second thread are refused, including close() and a scope's release(). interrupt() may be
//          called from any thread.
// Errors:  headrace::Error, also from within backward().
// Memory:  if a group's parameters are not all used, or not all trained, the group holds its slot
//          until the end of backward, or until another group needs the slot.
// Uses:    any use of a parameter outside of its group's calls throws, or is served on demand: see
//          serve_on_demand(). Examples are a weight that another block captured, a loss kept in the
//          module, and second derivatives.
#pragma once
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "headrace/checkpoint.hpp"
#include "headrace/engine.hpp"
#include "headrace/torch/checkpoint.hpp"
#include "headrace/torch/gathered_scopes.hpp"
#include "headrace/torch/offload_core.hpp"
#include "headrace/torch/random_state.hpp"
#include "headrace/torch/tensors.hpp"
#include "headrace/torch/trainer_state.hpp"

namespace headrace::torch {
namespace detail {
template <class M>
requires std::is_base_of_v<::torch::nn::Module, M>
const std::shared_ptr<M>& pointer_to(const std::shared_ptr<M>& module) {
  if (module) return module;
  throw Error(Code::kInvalidArgument,
              "a group was given an empty module: there is nothing to offload. Give add_group() a "
              "module, or a factory that returns one.");
}
template <class M>
const std::shared_ptr<M>& pointer_to(const ::torch::nn::ModuleHolder<M>& module) {
  return pointer_to(module.ptr());
}
template <class T>
concept IsModule = requires(const T& module) {
  pointer_to(module);
};
// `source`: a module, or a factory that returns one.
template <class T>
auto module_of(T& source) {
  if constexpr (IsModule<T>) {
    return pointer_to(source);
  } else {
    return pointer_to(source());
  }
}
template <class T>
using ModuleOf = typename decltype(module_of(std::declval<T&>()))::element_type;
}  // namespace detail

// A handle to a group of an Offload. It may be copied freely. It keeps the module alive, but not
// the Offload.
template <class M>
class Group {
 public:
  GroupId id() const noexcept { return state_->id; }
  const std::string& name() const noexcept { return state_->name; }
  // A factory's module exists from freeze() on, and add_rest() keeps no module. Throws kWrongState
  // if there is no module.
  std::shared_ptr<M> module() const {
    if (state_->module) return std::static_pointer_cast<M>(state_->module);
    throw Error(Code::kWrongState,
                detail::quoted_group(state_->name) +
                    " has no module here: a factory's is kept from freeze() on, and that given to "
                    "add_rest() stays yours.");
  }

 private:
  friend class Offload;
  explicit Group(std::shared_ptr<detail::OffloadedGroup> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::OffloadedGroup> state_;
};

enum class Access {
  kRead,    // evaluation, export, inspection; a write is an error
  kModify,  // initialisation, surgery, torch::load(); written back at the end
};

// A scope in which a group's parameters can be used anywhere. Move-only; for one trainer thread.
//   kRead    A write to the parameters, even through data_ptr() or accessor(), does not reach the
//            engine's masters. After a write, every later call of the Offload throws and names the
//            parameter, until the group's values are loaded again (Engine::load). To detect writes,
//            the scope makes a pass over the group's bytes at its start and at its end.
//   kModify  The parameters lie on a full copy of the group's values that nobody else sees. Until
//            the scope ends, forward, backward and gathered() for this group, and step(), throw and
//            name the group. At the end, the engine takes the values. Where an element's bits
//            changed, the master becomes the new value. All other masters, the moments, step counts
//            and gradients stay as they are.
class GatheredModule {
 public:
  // Ends the scope early. With kModify, writes the changes back.
  // Throws  kWrongState in a second thread while the first computes. With kModify, also throws
  //         kWrongState if a parameter's type or shape has changed, and whatever Engine::load()
  //         throws. After an error, the scope is still open.
  // The destructor does the same without throwing. It ends a kRead scope in any thread. If an
  // exception leaves a kModify scope, it drops the changes. If changes could not be written back,
  // the next call of the Offload reports that and names the group.
  void release() {
    if (scope_) scope_->release();
  }
  // Ends the scope, in any thread, without writing anything back.
  void discard() noexcept {
    if (scope_) scope_->discard();
  }

 private:
  friend class Offload;
  explicit GatheredModule(std::unique_ptr<detail::GatheredScope> scope)
      : scope_(std::move(scope)) {}
  std::unique_ptr<detail::GatheredScope> scope_;
};

// How often a group was bound because an operator touched it outside the group's own calls.
struct ServedOnDemand {
  GroupId group;
  std::string name;
  std::uint64_t binds = 0;
};

class Offload {
 public:
  //   place  torch's CPU, or the GPU of options.device (headrace/torch/cuda.hpp). Bound parameters
  //          are there, and from freeze() on, buffers too. Inputs must be there as well. Work is
  //          ordered on the calling thread's current torch stream, and in backward on autograd's
  //          stream.
  // Throws kUnsupported for a place that torch does not have, and kInvalidArgument for one that
  // differs from the engine's device.
  explicit Offload(Settings settings, EngineOptions options = {},
                   at::Device place = at::Device(at::kCPU))
      : core_(std::make_shared<detail::OffloadCore>(std::move(settings), std::move(options),
                                                    place)) {}
  ~Offload() {
    try {
      if (core_) core_->close();
    } catch (...) {  // a GatheredModule is still open: the engine goes with the last of them
    }
  }
  Offload(Offload&&) noexcept = default;
  Offload& operator=(Offload&&) = delete;

  // ---- registration, before freeze ----

  // Sets the function that chooses how each parameter is updated. It receives the parameter's full
  // name ("<group>.<name>") and tensor. Make this call before the first add_group().
  using HyperparameterChoice =
      std::function<HyperparameterSetId(const std::string& full_name, const at::Tensor& parameter)>;
  void choose_hyperparameters(HyperparameterChoice choice) {
    registration().choose_hyperparameters(std::move(choice));
  }
  // The usual choice: parameters that `which` picks (by default those with fewer than two
  // dimensions) get `values`, and the rest get the default set. Returns the set, for
  // Engine::set_hyperparameters().
  using ParameterTest =
      std::function<bool(const std::string& full_name, const at::Tensor& parameter)>;
  HyperparameterSetId no_decay(ParameterTest which = {},
                               const Hyperparameters& values = {.weight_decay = 0}) {
    if (!which)
      which = [](const std::string&, const at::Tensor& parameter) { return parameter.dim() < 2; };
    const HyperparameterSetId set = engine().add_hyperparameters(values);
    choose_hyperparameters(
        [which = std::move(which), set](const std::string& name, const at::Tensor& parameter) {
          return which(name, parameter) ? set : HyperparameterSetId{};
        });
    return set;
  }

  // Adds parameters that are used together, from
  //   a module    (Block, std::shared_ptr<BlockImpl>). freeze() moves its values to the engine.
  //   a factory   that returns a module. It runs now for names and shapes, and again in freeze()
  //               for values, so it must capture by value, not by reference. freeze() calls
  //               factories one at a time, in the order of the groups, and the run for shapes
  //               leaves torch's generators as they were. So the same seed gives the same values as
  //               in a model built in that order without the engine.
  // Throws  kInvalidArgument for a parameter that already belongs to another group, or that lies in
  //         another parameter's memory without being the same tensor. The error names both
  //         parameters and their groups.
  //         kUnsupported for a parameter that is not a dense, row-major Float, BFloat16 or Half
  //         tensor, or is neither in CPU memory nor on the device where parameters are bound.
  template <class Source>
  Group<detail::ModuleOf<Source>> add_group(std::string name, Source&& source) {
    using M = detail::ModuleOf<Source>;
    if constexpr (detail::IsModule<Source>) {
      return Group<M>(registration().add_module(std::move(name), detail::pointer_to(source)));
    } else {
      detail::NamedTensors tensors;
      {
        const detail::Restored<detail::RandomState> random_state(core().place());
        tensors = registration().own_parameters(name, *detail::module_of(source));
      }
      return Group<M>(registration().add_factory(
          std::move(name), tensors, [source = std::forward<Source>(source)]() mutable {
            return std::shared_ptr<::torch::nn::Module>(detail::module_of(source));
          }));
    }
  }

  // Makes freeze() take the group's values from `values`, and not from the group's module. Use it
  // to start from stored weights. Each rank reads only its own shard, so all ranks together read a
  // model once. Throws kWrongState after freeze().
  template <class M>
  void take_values_from(const Group<M>& group, ShardValues values) {
    registration().take_values_from(*group.state_, std::move(values));
  }

  // Adds parameters that are used outside of any group's forward (embeddings, a final norm, shared
  // weights). They are bound from freeze() to close(), with gradients and optimizer state offloaded
  // as usual. Given a module, takes those of its trainable parameters that no group has. If there
  // are none, adds nothing and returns no group. Frozen parameters stay with torch, and buffers()
  // lists them. If one of them becomes trainable later, step() throws. In a group named "",
  // parameters keep their names as they are.
  using Rest = std::optional<Group<::torch::nn::Module>>;
  Rest add_rest(const ::torch::nn::Module& model, std::string name = "rest") {
    detail::NamedTensors rest = registration().take_rest(name, model);
    return add_rest(std::move(rest), std::move(name));
  }
  template <class M>
  Rest add_rest(const ::torch::nn::ModuleHolder<M>& model, std::string name = "rest") {
    return add_rest(*model, std::move(name));
  }
  Rest add_rest(std::vector<std::pair<std::string, at::Tensor>> parameters,
                std::string name = "rest") {
    if (parameters.empty()) return std::nullopt;
    return Group<::torch::nn::Module>(
        registration().add_always_bound(std::move(name), std::move(parameters)));
  }

  // Adds parameters that modules of several groups register (tied embeddings, a shared projection).
  // They belong to the group made here, which stays bound from freeze() to close(). A later
  // add_group() leaves them out. A factory must capture the tensor (or a module that has it)
  // instead of creating one.
  // Throws kInvalidArgument, naming both parameters and their groups, for a parameter that already
  // belongs to a group.
  Rest add_shared(std::vector<std::pair<std::string, at::Tensor>> parameters,
                  std::string name = "shared") {
    const detail::NamedTensors tensors = parameters;
    Rest group = add_rest(std::move(parameters), std::move(name));
    registration().share(tensors);
    return group;
  }

  // Declares that a parameter of this group may receive several gradients before a step
  // (Engine::expect_repeated_gradients()), because several backward passes run on one forward pass
  // or on parts of it. Without an argument, the call applies to every group added so far, including
  // those of add_rest() and add_shared(). A parameter that one pass uses in several places does not
  // need this declaration, because torch adds those gradients up. But the declaration is needed if
  // one of those places lies in a checkpoint(), which runs a pass of its own. With this
  // declaration, a gradient takes 4 bytes per element in host memory instead of its own size.
  template <class M>
  void expect_repeated_gradients(const Group<M>& group) {
    registration().require_own(*group.state_);
    engine().expect_repeated_gradients(group.id());
  }
  void expect_repeated_gradients() {
    for (const auto& group : core().groups()) engine().expect_repeated_gradients(group->id);
  }

  // A parameter that requires no gradient at freeze() is frozen (ParameterSpec::frozen). The engine
  // keeps no gradient, master or moments for it, even if other parameters of its group are trained
  // (adapters in a layer). Backward refuses a gradient for such a parameter and names the
  // parameter. The two calls below override that for a whole group. If you make several such calls
  // before freeze(), the last one counts.
  //   expect_gradients     The group may be trained later. The engine keeps all that memory,
  //                        whether it is used or not.
  //   expect_no_gradients  The group is never trained, whatever requires_grad says at freeze().
  template <class M>
  void expect_gradients(const Group<M>& group) {
    registration().expect_frozen(*group.state_, false);
  }
  template <class M>
  void expect_no_gradients(const Group<M>& group) {
    registration().expect_frozen(*group.state_, true);
  }

  // Makes the Offload bind a group when an operator is about to read one of its parked parameters,
  // a view of one, or a tensor that autograd saved from one. The Offload does this from freeze() to
  // close(), in forward, in backward and outside of both, and in any thread. Without this call,
  // such a use throws a c10::Error that names the group. The results are the same as if the group
  // had already been bound. The details:
  //   until     The group is bound until the end of the operator, or in a backward pass until the
  //             end of the pass. It is parked earlier if memory runs out and no group has been
  //             bound for longer, but never during an operator that uses it.
  //   memory    The group takes one more gather slot for that time (headrace.prefetch_groups). If
  //             no slot is free, the operator throws the error of a parked parameter, with that
  //             cause.
  //   refused   The same uses as without this call: writing, torch::save, data_ptr() and other ways
  //             around operators.
  //   several   Several backward passes that reach one parameter before a step (a loss kept in a
  //             module beside that of the output, or retain_graph) need
  //             expect_repeated_gradients().
  // Cost:    a torch callback (at::addGlobalCallback) for the whole process. The callback sees
  //          every operator in every thread, including those of other models, and takes some 0.4 us
  //          for each operator. It is removed with the last Offload that asked for it. A group that
  //          is bound on demand has not been read ahead of time.
  // Order:   before freeze().
  // Throws kWrongState after freeze(), and kUnsupported if torch does not report the arguments of
  //         operators.
  void serve_on_demand() { registration().serve_on_demand(); }
  // The groups that were served on demand, in the order in which they were added. Where you can,
  // use them through run() or gathered() instead.
  std::vector<ServedOnDemand> served_on_demand() const {
    std::vector<ServedOnDemand> served;
    for (const auto& group : core().groups()) {
      const std::uint64_t binds = core().bound().touches(*group);
      if (binds != 0) served.push_back({group->id, group->name, binds});
    }
    return served;
  }

  // Plans and allocates (Engine::freeze), then moves the values group by group. From here on
  // parameters are offloaded.
  // Throws  as Engine::freeze() does, or kInvalidArgument if a module's parameters are not those
  //         that add_group() saw. In both cases, nothing was moved, and the call may be repeated.
  //         After a later error, such as one that a factory throws, the groups that were already
  //         moved have their values only in the engine. Any use of these groups throws an error
  //         that says so; engine().store() returns the values.
  void freeze() { core().freeze(); }
  // Does the same with the values of a checkpoint (headrace/checkpoint.hpp) instead of those of the
  // modules, and gives torch's generators and the buffers the values that they had at
  // save_checkpoint().
  //   which  as given to save_checkpoint().
  // Returns the bytes given to save_checkpoint(); none if headrace::save_checkpoint() has written
  // the checkpoint, which leaves generators and buffers as they are. No value: headrace.store
  // resumes, and the checkpoint was not read. Call resume() then.
  // Throws  also as load_checkpoint() does. The Offload can then only be closed.
  std::optional<std::vector<std::byte>> freeze_from(const std::string& checkpoint,
                                                    const ParameterTest& which = {}) {
    std::optional<LoadedCheckpoint> loaded;
    core().freeze([&](Engine& engine) { loaded = load_checkpoint(engine, checkpoint); });
    if (!loaded) return std::nullopt;
    if (loaded->trainer_state.empty()) return std::vector<std::byte>();
    const detail::Call call = begin();
    const detail::TrainerState state{std::span<const std::byte>(loaded->trainer_state)};
    state.set(core().place(), buffers_to_keep(which));
    return state.own();
  }

  // ---- use ----

  // Calls group.module()->forward(args...), with the parameters bound for that call and for its
  // backward.
  // Cost:   one Engine::gather() in forward and one in backward. Each is free if the group is
  //         resident in memory that the device shares; otherwise the group's bytes are read, most
  //         of them ahead of time. In backward, a group with frozen parameters is released once the
  //         gradients of its trained ones and of the tensors in `args` have come. A block that also
  //         reads tensors which require a gradient from elsewhere must be called by run().
  // Throws  as Engine::gather() does, also from within backward. Also throws kWrongState
  //         - for a group that is being changed,
  //         - after a write or a move of parameters behind the engine's back,
  //         - in a second thread while the first computes.
  template <class M, class... Args>
  auto operator()(const Group<M>& group, Args&&... args) {
    const auto call = watch_inputs(group.state_, args...);
    return run(group, call, [&] { return group.module()->forward(std::forward<Args>(args)...); });
  }
  // Does the same for any function that uses the group's parameters. The function's result may be
  // nested (tensors.hpp). In backward, the parameters are bound again when a gradient reaches one
  // of the tensors in that result.
  template <class M, class F>
  auto run(const Group<M>& group, F&& function) {
    return run(group, std::make_shared<const detail::BlockCall>(), std::forward<F>(function));
  }
  // Calls function(inputs...), or group.module()->forward(inputs...), without keeping activations:
  // backward runs the function again, with torch's generators and autocast settings as they are
  // now. The gradients of each call equal those of run(), bit for bit, if torch's operators give
  // the same bits with and without gradients (an LSTM does not). Counters of the block itself, such
  // as batch norm's running statistics, are updated twice.
  //   inputs  tensors, numbers, strings, and optional, pair, tuple, array, vector or map of these;
  //           the tensors are kept until backward. The function is copied, and must capture
  //           whatever else it needs. A tensor that requires a gradient must be an input, unless it
  //           is a parameter.
  //   result  may have the same types as inputs. Its floating-point tensors require a gradient.
  // Cost:   one more forward pass. If a block trains nothing and no input requires a gradient, call
  //         run() instead: it does not keep activations either, and backward skips the block.
  // Order:  if a group is called several times before a step, each call brings it gradients. In
  //         that case, call engine().expect_repeated_gradients(group.id()) before freeze().
  // Throws  kUnsupported if the block changes an input in place.
  // Backward throws kUnsupported with create_graph, or if it is run for selected inputs only
  //         (autograd::grad). It throws kWrongState if, since forward, weights of any group have
  //         changed, or parameters were frozen or unfrozen. It also throws whatever the function
  //         throws in its second run.
  template <class M, class F, class... Inputs>
  requires std::invocable < F&, std::decay_t<Inputs>
  &... > auto checkpoint(const Group<M>& group, F&& function, Inputs&&... inputs) {
    if (!at::GradMode::is_enabled()) {
      std::tuple<std::decay_t<Inputs>...> given(std::forward<Inputs>(inputs)...);
      return run(group, [&] { return std::apply(function, given); });
    }
    const detail::Call call = begin();
    core().begin_call();
    detail::Binding binding(core_, group.state_);
    auto result =
        detail::checkpoint(core_, group.state_, std::decay_t<F>(std::forward<F>(function)),
                           std::decay_t<Inputs>(std::forward<Inputs>(inputs))...);
    binding.release();
    core().writes().throw_if_written();
    return result;
  }
  template <class M, class... Inputs>
  auto checkpoint(const Group<M>& group, Inputs&&... inputs) {
    return checkpoint(
        group, [module = group.module()](auto&... given) { return module->forward(given...); },
        std::forward<Inputs>(inputs)...);
  }

  // Gives the group's parameters memory, wherever they are used, until the scope ends.
  // Throws  as operator() does, and kWrongState for kModify while the group is in use.
  template <class M>
  [[nodiscard]] GatheredModule gathered(const Group<M>& group, Access access = Access::kRead) {
    const detail::Call call = begin();
    core().begin_call();
    if (access == Access::kModify)
      return GatheredModule(std::make_unique<detail::Modification>(core_, group.state_));
    return GatheredModule(std::make_unique<detail::ReadScope>(core_, group.state_));
  }

  // Runs Engine::step() with the gradients that have arrived since the last step, and then forgets
  // them.
  // Order:  outside of gathered() scopes, forward and backward. If a later backward pass uses
  //         values that a forward pass saved before the step, torch throws.
  // Throws  as Engine::step() does. Also throws kWrongState if an exception ended a backward pass
  //         that had delivered gradients, if zero_grad() reset a gradient that the engine has, or
  //         if a parameter left its storage. Then nothing was updated, and the gradients are kept.
  StepResult step(const StepOptions& options) {
    const detail::Call call = begin();
    return core().step(options);
  }
  // Drops the gradients received since the last step, including .grad(). Also releases groups that
  // a backward pass left bound when an exception ended it. Any thread may call this after such a
  // pass.
  void discard_gradients() {
    const detail::Call call = begin(/*discards=*/true);
    core().discard_gradients();
  }

  // With headrace.durable, stores with the next step the state that the engine does not have: the
  // states of torch's generators (the CPU's and the place's), the buffers, and bytes of the
  // trainer's own, such as its position in the data. All of this may take at most
  // headrace.trainer_state_bytes. Call it before each step(), after backward; resume() restores all
  // of this state.
  //   which  selects the buffers to keep, by default all of buffers(). Leave out large ones that
  //          never change, such as masks.
  // Frozen parameters that add_rest() left out are not kept.
  // Throws kInvalidArgument if the state is too large. Then the bytes of the previous call remain.
  void keep_trainer_state(std::span<const std::byte> own = {}, const ParameterTest& which = {}) {
    const detail::Call call = begin();
    engine().set_trainer_state(
        detail::TrainerState(core().place(), buffers_to_keep(which), own).pack());
  }
  // Call it after freeze(). Returns Engine::resumed(), with the bytes given to keep_trainer_state()
  // as trainer_state, and gives torch's generators and the buffers the values that they had at that
  // step. Without a committed step, it returns no value and changes nothing.
  //   which  as given to keep_trainer_state().
  // Throws kWrongState if the store's bytes are not those of keep_trainer_state(), or if buffers or
  // generators of this run are missing from those bytes. Then nothing was changed.
  std::optional<Resumed> resume(const ParameterTest& which = {}) {
    const detail::Call call = begin();
    std::optional<Resumed> resumed = engine().resumed();
    if (!resumed) return resumed;
    const detail::TrainerState state{std::span<const std::byte>(resumed->trainer_state)};
    resumed->trainer_state = state.own();
    state.set(core().place(), buffers_to_keep(which));
    return resumed;
  }

  // Writes a checkpoint (headrace/checkpoint.hpp) of all values, with the state that
  // keep_trainer_state() describes in the place of SaveOptions::trainer_state. Call it between
  // steps, on every rank. freeze_from() continues from it. With several ranks, the states of
  // torch's generators and the buffers are those of rank 0.
  void save_checkpoint(const std::string& directory, std::span<const std::byte> own = {},
                       SaveOptions options = {}, const ParameterTest& which = {}) {
    const detail::Call call = begin();
    const std::vector<std::byte> state = saved_state(own, which);
    options.trainer_state = state;
    headrace::save_checkpoint(engine(), directory, options);
  }
  // The same while training goes on (headrace/checkpoint.hpp), for a durable engine.
  [[nodiscard]] BackgroundSave save_checkpoint_in_background(const std::string& directory,
                                                             std::span<const std::byte> own = {},
                                                             SaveOptions options = {},
                                                             const ParameterTest& which = {}) {
    const detail::Call call = begin();
    const std::vector<std::byte> state = saved_state(own, which);
    options.trainer_state = state;
    return headrace::save_checkpoint_in_background(engine(), directory, options);
  }

  // The buffers (batch norm statistics, masks, caches) of the modules given to add_group() and
  // add_rest(), and the frozen parameters that add_rest() left out, each once, by full name
  // ("<group>.<name>"). A factory's module contributes from freeze() on. All of these stay with
  // torch: they are not parked, and are neither in the plan nor in the engine's hashes. Save them
  // together with the weights.
  const std::vector<std::pair<std::string, at::Tensor>>& buffers() const {
    return registration().buffers().all();
  }

  // Calls Engine::interrupt(). May be called from any thread and from a signal handler.
  void interrupt() noexcept {
    if (core_) core_->engine().interrupt();
  }

  // Gives access to the calls that do not involve torch: load(), store(), the hashes, plan() and
  // stats(). Do not call engine() from a signal handler.
  Engine& engine() { return core().engine(); }
  // Makes every parameter an ordinary tensor again, with its own memory, its current values and
  // none of the adapter's hooks, so that the model trains, saves and loads in plain torch. Then
  // closes the Offload. This drops the optimizer state, and any gradients that no step has used. To
  // keep the state, store() it first.
  //   limit_bytes  the most memory that the weights may take, in addition to the engine's memory.
  // Throws  kOutOfBudget, stating how much memory is needed, before anything is changed;
  //         kWrongState while a gathered() scope is open. After any error, every parameter is
  //         offloaded as before.
  void restore(std::optional<std::uint64_t> limit_bytes = std::nullopt) {
    const detail::Call call = begin();
    detail::restore(core_, limit_bytes);
  }
  // Completes work in progress and closes the engine. Modules remain, but without values, and
  // graphs made before close() throw in backward. A second call does nothing.
  // Throws  kWrongState while a gathered() scope is open, or in a second thread while the first
  //         computes. The Offload then remains open. If there was a write behind the engine's back
  //         that no call has reported, close() throws to report it, but only after it has closed
  //         the Offload.
  void close() {
    const detail::Call call = begin();
    core().close();
  }

 private:
  template <class M, class F>
  auto run(const Group<M>& group, const std::shared_ptr<const detail::BlockCall>& block,
           F&& function) {
    const detail::Call call = begin();
    core().begin_call();
    detail::Binding binding(core_, group.state_);
    if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
      function();
      binding.release();
      core().writes().throw_if_written();
    } else {
      auto result = function();
      binding.release();
      core().writes().throw_if_written();
      watch(group.state_, block, result);
      return result;
    }
  }
  // A leaf, such as a parameter, may outlive the call: its hooks would, too.
  template <class... Args>
  std::shared_ptr<const detail::BlockCall> watch_inputs(
      const std::shared_ptr<detail::OffloadedGroup>& group, const Args&... args) {
    const auto block = std::make_shared<detail::BlockCall>();
    if constexpr ((detail::shows_its_tensors<Args>() && ...)) {
      if (!at::GradMode::is_enabled()) return block;
      block->all_inputs = true;
      const auto see = [&](const at::Tensor& input) {
        if (!input.defined() || !input.requires_grad()) return;
        if (input.is_leaf()) return void(block->all_inputs = false);
        ++block->inputs;
        input.register_hook([core = std::weak_ptr(core_), group, block](const at::Tensor&) {
          if (const auto alive = core.lock()) alive->bound().input_arrived(*group, *block);
        });
      };
      (for_each_tensor(args, see), ...);
    }
    return block;
  }
  template <class Result>
  void watch(const std::shared_ptr<detail::OffloadedGroup>& group,
             const std::shared_ptr<const detail::BlockCall>& block, const Result& result) {
    if (!at::GradMode::is_enabled()) return;
    for_each_tensor(result, [&](const at::Tensor& output) {
      // A leaf is an input or a parameter that was passed through. No part of the block lies behind
      // it.
      if (!output.defined() || !output.requires_grad() || output.is_leaf()) return;
      output.register_hook([core = std::weak_ptr(core_), group, block](const at::Tensor&) {
        const auto alive = core.lock();
        if (!alive) {
          throw Error(Code::kWrongState, "backward reached " + detail::quoted_group(group->name) +
                                             " after its Offload was closed: its values are gone.");
        }
        alive->bound().reached(alive->usable(*group), block);
      });
    });
  }

  // Marks this thread as inside a call until the result is destroyed.
  detail::Call begin(bool discards = false) const {
    core();
    return detail::Call(core_, discards);
  }
  detail::OffloadCore& core() const {
    if (core_) return *core_;
    throw Error(Code::kWrongState,
                "this Offload was moved from: it has no groups and no engine any more. Use the one "
                "that it was moved to.");
  }

  detail::Registration& registration() const { return core().registration(); }
  // SaveOptions::trainer_state of a checkpoint.
  std::vector<std::byte> saved_state(std::span<const std::byte> own, const ParameterTest& which) {
    core().begin_call();
    return detail::TrainerState(core().place(), buffers_to_keep(which), own).pack();
  }
  detail::NamedTensors buffers_to_keep(const ParameterTest& which) const {
    detail::NamedTensors kept = registration().buffers().of_modules();
    if (which) {
      std::erase_if(kept, [&](const auto& named) { return !which(named.first, named.second); });
    }
    return kept;
  }

  std::shared_ptr<detail::OffloadCore> core_;
};
}  // namespace headrace::torch
