// SPDX-License-Identifier: Apache-2.0
// headrace/torch/offload_core.hpp: when a group's parameters are bound: in forward, in backward, in
// a scope.
//
// Forward binds around the block's own code. Outputs that require a gradient get a hook: when the
// gradient reaches one, the block's backward is about to run, and the group is bound again, until
// all its gradients have arrived. A group that does not receive all of them (an unused parameter)
// is released at the end of that backward pass. So is one with frozen parameters: no gradient marks
// their last read. Each gradient is handed to the engine and freed as soon as torch has it.
//
// With serve_on_demand() a group that an operator touches at another time is bound as well
// (on_demand.hpp): until the end of the backward pass it was touched in, or, outside of one, for
// that operator alone.
#pragma once
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/torch/buffer_list.hpp"
#include "headrace/torch/offloaded_group.hpp"
#include "headrace/torch/on_demand.hpp"
#include "headrace/torch/parameter_owners.hpp"
#include "headrace/torch/place.hpp"

namespace headrace::torch::detail {
class OffloadCore final : public OnDemandServer, public std::enable_shared_from_this<OffloadCore> {
 public:
  OffloadCore(Settings settings, EngineOptions options, at::Device place)
      : place_(place), device_(options.device), engine_(std::move(settings), std::move(options)) {
    refuse_another_device();
  }
  ~OffloadCore() override {
    on_demand_.reset();
    for (const auto& group : groups_) {
      group->remove_gradient_hooks();
      if (closed_) continue;  // parked then, and saying so
      group->park_for_good(" was used after its Offload was destroyed: its values are gone.");
      group->leases.clear();  // of those that are always bound: the engine goes next
    }
  }

  Engine& engine() noexcept { return engine_; }
  const Place& place() const noexcept { return place_; }
  bool frozen() const noexcept { return frozen_; }

  // ---- registration ----

  using Choose =
      std::function<HyperparameterSetId(const std::string& full_name, const at::Tensor& parameter)>;
  void set_choice(Choose choose) {
    if (!groups_.empty()) {
      throw Error(Code::kWrongState,
                  "hyperparameters were chosen after " + quoted_group(groups_.front()->name) +
                      " was added, which would not follow them. Choose them before the first "
                      "add_group().");
    }
    choose_ = std::move(choose);
  }

  std::shared_ptr<OffloadedGroup> add(std::string name, const NamedTensors& tensors) {
    if (frozen_) {
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
  ParameterOwners& owners() noexcept { return owners_; }
  const std::vector<std::shared_ptr<OffloadedGroup>>& groups() const noexcept { return groups_; }
  void serve_on_demand() {
    if (frozen_) {
      throw Error(Code::kWrongState,
                  "serve_on_demand() after freeze(): groups are parked without it by then. Call it "
                  "before freeze().");
    }
    require_recorded_arguments();
    serves_on_demand_ = true;
  }
  BufferList& buffers() noexcept { return buffers_; }
  void expect_frozen(OffloadedGroup& group, bool frozen) {
    require_own(group);
    if (frozen_) {
      throw Error(Code::kWrongState,
                  std::string(frozen ? "expect_no_gradients()" : "expect_gradients()") + " for " +
                      quoted_group(group.name) +
                      " after freeze(): memory is laid out by then. Call it before freeze().");
    }
    group.frozen = frozen;
  }

  void freeze() {
    if (planned_ || closed_) return engine_.freeze();  // which says so
    for (const auto& group : groups_) settle_frozen(*group);
    for (const auto& group : groups_) {  // before any value moves
      if (!group->factory) check_same_shapes(*group, group->loose);
    }
    engine_.freeze();
    planned_ = true;
    for (const auto& group : groups_) attach(*group);
    buffers_.move_to(place_);
    frozen_ = true;
    bind_rest();
    if (serves_on_demand_) on_demand_.emplace(weak_from_this(), groups_);
  }

  // ---- use ----

  // Throws for a handle on another Offload's group: its number means another group here.
  void require_own(const OffloadedGroup& group) const {
    if (group.owner == this) return;
    throw Error(Code::kInvalidArgument,
                quoted_group(group.name) +
                    " belongs to another Offload: this one would give it another group's values. "
                    "Call the Offload that it was added to.");
  }
  // Grows whenever weights of any group change. `group`: the one that asks.
  std::uint64_t weight_changes(const OffloadedGroup& group) const {
    require_open(group);
    std::uint64_t changes = 0;
    for (const auto& any : groups_) changes += engine_.weight_changes(any->id);
    return changes;
  }

  // Binds; each acquire() is undone by one release().
  void acquire(OffloadedGroup& group) {
    require_own(group);
    const std::lock_guard lock(mutex_);
    require_open(group);
    const int task = ::torch::autograd::get_current_graph_task_id();
    task < 0 ? bind(group) : bind_in_backward(group, task);
  }
  void release(OffloadedGroup& group) noexcept {
    const std::lock_guard lock(mutex_);
    unbind(group);
  }
  // Binds the group to a copy that the user may change; write_changes() gives the engine its
  // values, end_changes() drops it.
  void begin_changes(OffloadedGroup& group) {
    require_own(group);
    const std::lock_guard lock(mutex_);
    require_open(group);
    if (group.changing || group.bindings != (group.always_bound ? 1u : 0u)) {
      throw Error(Code::kWrongState,
                  "gathered() for changing " + quoted_group(group.name) +
                      " while it is in use: who uses it would go on with the old values. End its "
                      "other gathered() scope, and call it outside of forward and backward.");
    }
    if (group.always_bound) unbind(group);
    bind(group, Strays::kTakenBack);
    try {
      group.move_to_copy();
    } catch (...) {
      if (!group.always_bound) unbind(group);
      throw;
    }
    group.changing = true;
  }
  void write_changes(OffloadedGroup& group) {
    if (group.module) group.check_registered(owners_.without_shared(parameters_of(*group.module)));
    group.take_strays_back(engine_);
    const std::lock_guard lock(mutex_);
    group.load_copy(engine_);
    group.mark_changed();
  }
  void end_changes(OffloadedGroup& group) noexcept {
    try {
      group.drop_strays(engine_);
    } catch (const std::exception&) {  // named when the group is used
    }
    const std::lock_guard lock(mutex_);
    group.drop_copy();
    group.changing = false;
    group.bindings = 0;
    if (!group.always_bound) return;
    try {
      bind(group);
    } catch (const std::exception& error) {
      written_ = quoted_group(group.name) + " could not be bound again: " + error.what();
    }
  }
  void report_lost_changes(const OffloadedGroup& group, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    written_ = "the changes made to " + quoted_group(group.name) +
               " in a gathered() scope were not written back, and are lost: " + cause;
  }
  // One thread at a time has a call under way, or, on the CPU, where it runs it itself, a backward
  // pass: another's would let go of groups that this one reads. enter() and leave() are Call's.
  void enter(bool discards = false) {
    const std::lock_guard lock(mutex_);
    const auto me = std::this_thread::get_id();
    if (calls_ > 0 && caller_ != me) refuse_second_thread("inside of a call");
    const bool passing = place_.is_cpu() && !discards &&
                         std::ranges::any_of(ending_tasks_, [me](const EndingTask& pass) {
                           return pass.thread != me;
                         });
    if (passing) {
      refuse_second_thread(
          "inside of a backward pass, or left one by an exception and has called nothing since "
          "(discard_gradients() ends that)");
    }
    caller_ = me;
    ++calls_;
  }
  void leave() noexcept {
    const std::lock_guard lock(mutex_);
    --calls_;
  }
  // At the start of a call that is not part of a backward pass: what an interrupted one left bound
  // goes.
  void begin_call() {
    throw_if_written();
    if (::torch::autograd::get_current_graph_task_id() < 0) end_backwards(kEveryBackward);
  }
  // A group whose values were written behind the engine's back is refused until new ones are
  // loaded.
  void throw_if_written() {
    const std::lock_guard lock(mutex_);
    if (!written_.empty()) throw Error(Code::kWrongState, std::exchange(written_, {}));
    for (std::size_t i = 0; i < groups_.size() && any_spoiled_; ++i) {
      OffloadedGroup& group = *groups_[i];
      if (group.spoiled.empty()) continue;
      if (engine_.weight_changes(group.id) == group.spoiled_changes)
        throw Error(Code::kWrongState, group.spoiled);
      group.spoiled.clear();
    }
    any_spoiled_ = false;
  }
  // `before`, `changes`: the fingerprints, and how often weights had been loaded, when the scope
  // that ends now began.
  void report_if_changed(OffloadedGroup& group, const std::vector<std::uint64_t>& before,
                         std::uint64_t changes) noexcept {
    const std::lock_guard lock(mutex_);
    if (changes_of(group) != changes) return;  // by the engine's own load()
    if (const OffloadedParameter* written = group.changed_since(before)) spoil(group, *written);
  }

  // The gradient has reached an output of the block.
  void backward_reached(OffloadedGroup& group) {
    const std::lock_guard lock(mutex_);
    require_open(group);
    const int task = ::torch::autograd::get_current_graph_task_id();
    if (find_backward(group, task) != group.backwards.end()) return;
    bind_in_backward(group, task);
    group.backwards.push_back({task, ++backwards_opened_, 0, group.trainable_count()});
    end_with(task);
  }

  std::uint64_t touches(const OffloadedGroup& group) {
    const std::lock_guard lock(mutex_);
    return group.touches;
  }
  bool hold_if_bound(OffloadedGroup& group) noexcept override {
    const std::lock_guard lock(mutex_);
    if (group.bindings == 0) return false;
    ++group.bindings;
    return true;
  }
  bool hold_on_demand(OffloadedGroup& group) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      const int task = ::torch::autograd::get_current_graph_task_id();
      if (task >= 0) end_with(task);
      bind_in_backward(group, task);
      if (group.bindings > 1) return true;  // another thread was first
      ++group.touches;
      // Outside of a backward pass nothing is bound between operators, where a write through
      // data_ptr() would change what the engine does not read back.
      if (task < 0) return true;
      group.touched = TouchedBinding{task, ++backwards_opened_};
      ++group.bindings;
      return true;
    } catch (const std::exception& error) {
      group.stay_parked(error.what());
      return false;
    }
  }
  void let_go(OffloadedGroup& group) noexcept override { release(group); }

  StepResult step(const StepOptions& options) {
    for (const auto& group : groups_) require_open(*group);
    begin_call();
    for (const auto& group : groups_) group->check_attached();
    require_no_scope("step()");
    unbind_rest();
    StepResult result;
    try {
      throw_if_written();
      require_whole_gradients();
      result = engine_.step(options);
    } catch (...) {
      // The step was refused and the call may be repeated, or the engine is failed and this fails
      // as well.
      try {
        bind_rest();
      } catch (const Error&) {
      }
      throw;
    }
    for (const auto& group : groups_) {
      group->mark_changed();
      group->forget_gradients();
    }
    bind_rest();
    return result;
  }
  void discard_gradients() {
    for (const auto& group : groups_) require_open(*group);
    end_backwards(kEveryBackward);
    partial_gradients_ = 0;
    for (const auto& group : groups_) {
      group->forget_gradients();
      for (const OffloadedParameter& parameter : group->parameters())
        parameter.tensor.mutable_grad().reset();
    }
    engine_.discard_gradients();
  }
  // Throws where step() would train on what the user believes dropped, on part of a backward pass,
  // or without a parameter that is trained.
  void require_whole_gradients() {
    for (const auto& [parameter, tensor] : frozen_rest_) {
      if (!tensor.requires_grad()) continue;
      throw Error(Code::kWrongState,
                  "parameter '" + parameter +
                      "' was frozen when add_rest() left it out, and is trained now: the engine "
                      "does not have it and would never update it. Unfreeze it before add_rest(), "
                      "and freeze it again afterwards.");
    }
    for (const auto& group : groups_) {
      for (const OffloadedParameter& parameter : group->parameters()) refuse_if_reset(parameter);
    }
    const std::lock_guard lock(mutex_);
    refuse_partial_gradients();
  }
  // Parameters that are torch's until the end, unless they are unfrozen.
  void add_frozen_rest(std::string parameter, const at::Tensor& tensor) {
    buffers_.add(parameter, tensor);
    frozen_rest_.emplace_back(std::move(parameter), tensor);
  }
  // For calls that concern every group at once.
  void require_idle(const char* call) {
    begin_call();
    for (const auto& group : groups_) {
      require_open(*group);
      group->check_attached();
    }
    require_no_scope(call);
  }
  // `what_then` follows a group's name where it is used afterwards.
  void close(const char* what_then = kGone) {
    end_backwards(kEveryBackward);
    require_no_scope("close()");
    on_demand_.reset();
    unbind_rest();
    engine_.close();
    const bool was_closed = std::exchange(closed_, true);
    if (!was_closed) after_close_ = what_then;
    for (const auto& group : groups_) {
      group->remove_gradient_hooks();
      group->park_for_good(
          " was used after its Offload was closed: its values are gone from memory. Use it, or "
          "save it, before close().");
    }
    if (!was_closed) throw_if_written();
  }

 private:
  // A backward pass that runs, or that an exception has ended, and how many gradients it brought.
  struct EndingTask {
    int task;
    std::size_t arrived;
    std::thread::id thread;  // that opened it
  };
  [[noreturn]] static void refuse_second_thread(const std::string& where) {
    throw Error(Code::kWrongState,
                "an Offload was called by a second thread while the first is " + where +
                    ": nothing was done, since it would take weights away from under it. Let one "
                    "thread at a time use it, by a mutex around each pass and each step, or give "
                    "the other thread a model of its own.");
  }
  static constexpr int kEveryBackward = -1;
  static constexpr const char* kGone = " was used after close(): its values are gone.";

  // Where the parameters are for torch, the engine's device has to be.
  void refuse_another_device() const {
    if (place_.is_cpu() && device_ && !device_->host_reads_memory()) {
      throw Error(Code::kInvalidArgument,
                  std::string("the engine's device is ") + device_->name() +
                      ", and parameters are to be bound on torch's CPU, which cannot read there. "
                      "Name the GPU as the Offload's place: Offload(settings, options, "
                      "at::Device(at::kCUDA, 0)).");
    }
    const bool shares = !device_ || device_->shares_host_memory();
    if (!place_.is_cpu() && shares) {
      throw Error(Code::kInvalidArgument,
                  "parameters are to be bound on " + place_.device().str() +
                      ", and the engine's device is the CPU: torch would be given host memory "
                      "there. Give the engine that device, e.g. {.device = "
                      "headrace::torch::make_cuda_device(gpu)}.");
    }
  }
  // A factory's parameters are taken for what they were when add_group() called it.
  void settle_frozen(const OffloadedGroup& group) {
    const std::span<const ParameterId> ids = engine_.parameters(group.id);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (group.frozen) {
        engine_.set_frozen(ids[i], *group.frozen);
      } else if (!group.factory) {
        engine_.set_frozen(ids[i], !group.loose[i].second.requires_grad());
      }
    }
  }
  void attach(OffloadedGroup& group) {
    NamedTensors tensors = std::exchange(group.loose, {});
    if (group.factory) {
      group.module = std::exchange(group.factory, nullptr)();
      tensors = owners_.without_shared(parameters_of(*group.module));
      owners_.refuse_owned(group.name, tensors);
      owners_.own(group.name, tensors);
      buffers_.add(group.name, *group.module);
    }
    check_same_shapes(group, tensors);
    group.serves_on_demand = serves_on_demand_;
    group.attach(place_, engine_, tensors);
    if (group.module) group.check_registered(owners_.without_shared(parameters_of(*group.module)));
    group.set_gradient_hooks([this, &group](std::size_t index) -> TakeGradient::Take {
      return [weak = weak_from_this(), &group, index](const at::Tensor& parameter) {
        if (const auto core = weak.lock()) core->take_gradient(group, index, parameter);
      };
    });
  }
  void check_same_shapes(const OffloadedGroup& group, const NamedTensors& tensors) {
    const std::span<const ParameterId> ids = engine_.parameters(group.id);
    bool same = ids.size() == tensors.size();
    for (std::size_t i = 0; same && i < ids.size(); ++i) {
      const ParameterSpec& before = engine_.spec(ids[i]);
      const ParameterSpec now = spec_of(place_, group.name, tensors[i].first, tensors[i].second);
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

  void require_open(const OffloadedGroup& group) const {
    if (frozen_ && !closed_) return;
    throw Error(Code::kWrongState,
                quoted_group(group.name) +
                    (closed_    ? after_close_
                     : planned_ ? " was used after a freeze() that ended in an error: not all "
                                  "groups have their values. Mend what it named, and make another "
                                  "Offload; engine().store() has the values of those that it came "
                                  "to."
                                : " was used before freeze(): its values have no place yet. Call "
                                  "freeze() first."));
  }
  // A scope of the user's: its values would be old ones, or gone, after the call.
  void require_no_scope(const char* call) {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (!group->changing && group->bindings <= (group->always_bound ? 1u : 0u)) continue;
      throw Error(Code::kWrongState,
                  std::string(call) + " while " + quoted_group(group->name) +
                      " is in use: its values would not be current. End its gathered() scope, and "
                      "call it outside of forward and backward.");
    }
  }
  // kTakenBack: parameters that torch gave other memory are what the user puts in.
  enum class Strays { kRefused, kTakenBack };
  void bind(OffloadedGroup& group, Strays strays = Strays::kRefused) {
    if (group.changing) {
      throw Error(Code::kWrongState,
                  quoted_group(group.name) +
                      " was used while it is being changed: its values are not the engine's yet. "
                      "End its gathered() scope first.");
    }
    if (strays == Strays::kRefused) group.check_storage();
    group.check_hooks();
    const Stream stream = place_.stream();
    if (group.bindings == 0) {
      Gathered gathered = engine_.gather(group.id, stream);
      wait_for_cpu_operators();
      // Loaded since: a backward pass over values saved before is torch's to refuse.
      const std::uint64_t changes = engine_.weight_changes(group.id);
      if (std::exchange(group.seen_changes, changes) != changes) group.mark_changed();
      group.bind(stream, std::move(gathered));
    } else if (!group.leased_on(stream)) {  // its bytes are there, and this stream waits for them
      group.leases.push_back({stream, engine_.gather(group.id, stream)});
    }
    ++group.bindings;
  }
  // Torch's CPU operators run on no stream: they neither wait for one nor are waited for.
  void wait_for_cpu_operators() {
    if (place_.is_cpu() && device_) device_->synchronize({});
  }
  // Where memory is out, a group that has been bound for longest lets go: backward passes go from
  // group to group, so it is one that is done and was only kept, or one that waits for the gradient
  // of an unused parameter. Were it still needed, it would be bound on demand, or its parked
  // parameters would say so.
  void bind_in_backward(OffloadedGroup& group, int task) {
    for (;;) {
      try {
        return bind(group);
      } catch (const Error& error) {
        if (error.code() != Code::kOutOfBudget || !let_go_of_oldest(task)) throw;
      }
    }
  }
  bool let_go_of_oldest(int task) {
    OffloadedGroup* oldest = nullptr;
    std::pair<bool, std::uint64_t> oldest_rank;  // those that await nothing go first
    for (const auto& group : groups_) {
      if (!may_let_go(*group, task)) continue;
      std::pair<bool, std::uint64_t> rank{false, group->touched ? group->touched->opened : 0};
      for (const OpenBackward& open : group->backwards) {
        rank.first = rank.first || open.arrived < open.expected;
        rank.second = std::max(rank.second, open.opened);
      }
      if (oldest != nullptr && oldest_rank < rank) continue;
      oldest = group.get();
      oldest_rank = rank;
    }
    if (oldest == nullptr) return false;
    while (!oldest->backwards.empty()) {
      oldest->backwards.pop_back();
      unbind(*oldest);
    }
    end_touch(*oldest);
    return true;
  }
  // Whether all that has `group` bound can be done without: no call, scope or running operator, and
  // no other backward pass, unless what it misses would come on demand.
  bool may_let_go(const OffloadedGroup& group, int task) const {
    const std::size_t ours = group.backwards.size() + (group.touched ? 1 : 0);
    if (ours == 0 || group.bindings != ours) return false;
    return serves_on_demand_ ||
           std::all_of(group.backwards.begin(), group.backwards.end(),
                       [task](const OpenBackward& open) { return open.graph_task == task; });
  }
  void end_touch(OffloadedGroup& group) noexcept {
    if (!group.touched) return;
    group.touched.reset();
    unbind(group);
  }
  void unbind(OffloadedGroup& group) noexcept {
    if (--group.bindings != 0) return;
    const OffloadedParameter* written = group.unbind();
    if (written != nullptr) spoil(group, *written);
  }
  // None once the engine has failed or was interrupted: it can only be closed then.
  std::optional<std::uint64_t> changes_of(const OffloadedGroup& group) const noexcept {
    try {
      return engine_.weight_changes(group.id);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  void spoil(OffloadedGroup& group, const OffloadedParameter& written) {
    const std::optional<std::uint64_t> changes = changes_of(group);
    if (!changes) return;
    any_spoiled_ = true;
    group.spoiled_changes = *changes;
    group.spoiled =
        "parameter '" + written.full_name + "' of " + quoted_group(group.name) +
        " was written while it was bound for reading, of which the engine does not know: its "
        "weights and their masters are at odds now, and nothing goes on with them. Write within "
        "gathered(group, Access::kModify). To go on here, load the group's values again with "
        "engine().load(), and drop the gradients that came of it with discard_gradients(). That "
        "load resets the group's moments and step counts: store() those first, and load them "
        "behind it.";
    try {
      engine_.mark_written(group.id, group.spoiled);  // nor are they stored or hashed
    } catch (const Error&) {                          // it can only be closed, as it has said
    }
  }
  void bind_rest() {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group->always_bound && group->bindings == 0) bind(*group);
    }
  }
  void unbind_rest() {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group->always_bound && group->bindings != 0) unbind(*group);
    }
  }

  static std::vector<OpenBackward>::iterator find_backward(OffloadedGroup& group, int task) {
    return std::find_if(group.backwards.begin(), group.backwards.end(),
                        [task](const OpenBackward& open) { return open.graph_task == task; });
  }
  std::vector<EndingTask>::iterator find_ending(int task) {
    return std::find_if(ending_tasks_.begin(), ending_tasks_.end(),
                        [task](const EndingTask& ending) { return ending.task == task; });
  }
  // Calls end_backwards(task) when that pass, which runs, ends; an exception ends it without.
  void end_with(int task) {
    if (find_ending(task) != ending_tasks_.end()) return;
    ending_tasks_.push_back({task, 0, std::this_thread::get_id()});
    ::torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this(), task] {
      if (const auto self = core.lock()) self->end_backwards(task);
    });
  }
  // Lets go of every group that the backward pass `task` still has bound.
  void end_backwards(int task) {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      for (auto open = group->backwards.begin(); open != group->backwards.end();) {
        if (task != kEveryBackward && open->graph_task != task) {
          ++open;
          continue;
        }
        open = group->backwards.erase(open);
        unbind(*group);
      }
      if (group->touched && (task == kEveryBackward || group->touched->graph_task == task))
        end_touch(*group);
    }
    if (task == kEveryBackward) {
      for (const EndingTask& broken : ending_tasks_) partial_gradients_ += broken.arrived;
      ending_tasks_.clear();
    } else if (const auto ended = find_ending(task); ended != ending_tasks_.end()) {
      ending_tasks_.erase(ended);
    }
  }
  void refuse_partial_gradients() const {
    if (partial_gradients_ == 0) return;
    throw Error(Code::kWrongState,
                "a backward pass ended in an exception after " +
                    std::to_string(partial_gradients_) +
                    " of its gradients had reached the engine: with them a step would train on "
                    "part of a pass. Call discard_gradients(), then go on.");
  }
  static void refuse_if_reset(const OffloadedParameter& parameter) {
    if (!parameter.gradient.was_reset(parameter.tensor)) return;
    throw Error(Code::kWrongState,
                "the gradient of parameter '" + parameter.full_name +
                    "' was reset (zero_grad()) before step(): the engine has it, and would use "
                    "it. Call discard_gradients() to drop gradients; step() forgets them itself.");
  }

  [[noreturn]] static void refuse_frozen(const OffloadedParameter& parameter) {
    throw Error(Code::kInvalidArgument,
                "a gradient of parameter '" + parameter.full_name +
                    "' arrived: it was frozen at freeze() (no requires_grad, or "
                    "expect_no_gradients()), so it has no memory for gradients and no optimizer "
                    "state; the gradient is dropped. Call expect_gradients(group) before freeze() "
                    "for parameters that are trained later, or leave requires_grad off.");
  }

  // torch has written parameter.grad(): the engine takes it, and torch's memory goes.
  void take_gradient(OffloadedGroup& group, std::size_t index, const at::Tensor& parameter) {
    // Out of the parameter before anything can throw: what is refused must not wait there for the
    // next step.
    OffloadedParameter& ours = group.parameters()[index];
    const at::Tensor gradient = ours.gradient.take_from(parameter);
    const int task = ::torch::autograd::get_current_graph_task_id();
    if (gradient.defined()) {
      refuse_if_reset(ours);
      {
        const std::lock_guard lock(mutex_);
        refuse_partial_gradients();
      }
      if (gradient.layout() != at::kStrided) {
        throw Error(Code::kUnsupported,
                    "the gradient of parameter '" + ours.full_name +
                        "' is sparse: only dense gradients are taken. Build the embedding with "
                        "sparse(false).");
      }
      if (engine_.spec(ours.id).frozen) refuse_frozen(ours);
      const at::Tensor dense = gradient.detach().contiguous();
      engine_.add_gradient(ours.id, dense.const_data_ptr(),
                           dtype_of(dense, ours.full_name + ".grad"), place_.stream());
      wait_for_cpu_operators();  // it has been read: the tensor may go
      place_.keep_until_read(dense);
      ours.gradient.mark_taken(parameter);
    }
    const std::lock_guard lock(mutex_);
    end_with(task);
    find_ending(task)->arrived += gradient.defined() ? 1 : 0;
    const auto open = find_backward(group, task);
    if (open == group.backwards.end() || ++open->arrived != open->expected) return;
    if (open->expected != group.parameters().size()) return;  // a frozen one may still be read
    group.backwards.erase(open);
    unbind(group);
  }

  const Place place_;
  std::shared_ptr<Device> device_;
  Engine engine_;  // outlives the groups' leases
  Choose choose_;
  ParameterOwners owners_;
  BufferList buffers_;
  NamedTensors frozen_rest_;  // by full name
  std::vector<std::shared_ptr<OffloadedGroup>> groups_;
  bool serves_on_demand_ = false;
  bool planned_ = false;  // the engine is frozen; the groups may not all be
  bool frozen_ = false;
  bool closed_ = false;
  std::optional<OnDemandService> on_demand_;  // from freeze() to close()
  const char* after_close_ = kGone;
  std::mutex mutex_;  // of everything below and of the groups' bindings: autograd may have threads
                      // of its own. No torch operator runs under it: it may end up here.
  std::uint32_t calls_ = 0;  // under way, one in another, all of caller_
  std::thread::id caller_;
  std::vector<EndingTask> ending_tasks_;
  std::size_t partial_gradients_ = 0;  // of passes that an exception ended, until discarded
  bool any_spoiled_ = false;
  std::uint64_t backwards_opened_ = 0;
  std::string written_;
};

// A call of the trainer's, for a scope.
class Call {
 public:
  explicit Call(std::shared_ptr<OffloadCore> core, bool discards = false) : core_(std::move(core)) {
    core_->enter(discards);
  }
  ~Call() { core_->leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  std::shared_ptr<OffloadCore> core_;
};

// One binding, for a scope.
class Binding {
 public:
  Binding(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : core_(std::move(core)), group_(std::move(group)) {
    core_->acquire(*group_);
  }
  Binding(Binding&&) noexcept = default;
  Binding& operator=(Binding&& other) noexcept {
    if (this != &other) {
      release();
      core_ = std::move(other.core_);
      group_ = std::move(other.group_);
    }
    return *this;
  }
  ~Binding() { release(); }

  // Null once it was released, or moved from.
  const std::shared_ptr<OffloadCore>& core() const noexcept { return core_; }
  OffloadedGroup& group() const noexcept { return *group_; }
  void release() noexcept {
    if (core_) core_->release(*group_);
    core_.reset();
    group_.reset();
  }

 private:
  std::shared_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
};
}  // namespace headrace::torch::detail
