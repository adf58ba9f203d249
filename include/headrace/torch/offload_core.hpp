// SPDX-License-Identifier: Apache-2.0
// headrace/torch/offload_core.hpp: an Offload's parts, and the order in which freeze(), step(),
// restore() and close() go through them.
//
//   Registration    the groups, and what torch keeps          (registration.hpp)
//   Calls           one thread at a time                      (below)
//   GroupBinder     the engine's bytes under parameters       (bound_groups.hpp)
//   BoundGroups     which groups are bound, and for whom      (bound_groups.hpp)
//   BackwardPasses  what each backward pass still needs       (backward_passes.hpp, in BoundGroups)
//   GradientIntake  gradients into the engine                 (gradient_intake.hpp)
//   WriteWatch      groups written behind the engine's back   (write_watch.hpp)
//   OnDemandTable   operators that touch parked parameters    (on_demand.hpp, for all Offloads)
//
// Scopes (Binding, ReadScope, Modification) and calls under way hold the core by shared_ptr, so the
// core outlives the Offload while one of them is open. Hooks that torch keeps hold the core by
// weak_ptr: a graph that outlives the Offload throws in backward.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/torch/bound_groups.hpp"
#include "headrace/torch/gradient_intake.hpp"
#include "headrace/torch/on_demand.hpp"
#include "headrace/torch/registration.hpp"

namespace headrace::torch::detail {
// Keeps track of the thread that has calls under way, in order to refuse a second thread. May be
// called from any thread.
//
// A call by another thread would release groups that the first thread is reading. Calls nest, so
// they are counted:
//
//   trainer   offload.run(a, ...)          enter: 1, the trainer's
//   trainer     offload(b, x), within it   enter: 2.  leave: 1
//   actor     offload(a, x)                refused: the trainer has a call under way
//   trainer   run returns                  leave: 0
//   actor     offload(a, x)                enter: 1, the actor's
//   trainer   loss.backward()              not a call: torch runs it, and Headrace's hooks report
//                                          it
//   actor     offload(a, x)                refused on the CPU, where the trainer's thread runs the
//                                          pass. On a GPU, autograd's threads run it, and torch
//                                          orders their work with the actor's operators.
class Calls {
 public:
  // `during_anothers_pass`: another thread runs a backward pass that this call must not disturb.
  void enter(bool during_anothers_pass) {
    const std::lock_guard lock(mutex_);
    const auto me = std::this_thread::get_id();
    if (under_way_ > 0 && thread_ != me) refuse_second_thread("inside of a call");
    if (during_anothers_pass) {
      refuse_second_thread(
          "inside of a backward pass, or left one by an exception and has called nothing since "
          "(discard_gradients() ends that)");
    }
    thread_ = me;
    ++under_way_;
  }
  void leave() noexcept {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }

 private:
  [[noreturn]] static void refuse_second_thread(const std::string& where) {
    throw Error(Code::kWrongState,
                "an Offload was called by a second thread while the first is " + where +
                    ": nothing was done, since it would take weights away from under it. Let one "
                    "thread at a time use it, by a mutex around each pass and each step, or give "
                    "the other thread a model of its own.");
  }

  std::mutex mutex_;
  std::uint32_t under_way_ = 0;  // nested calls, all made by thread_
  std::thread::id thread_;
};

class OffloadCore final : public std::enable_shared_from_this<OffloadCore> {
 public:
  OffloadCore(Settings settings, EngineOptions options, at::Device place)
      : place_(place), device_(options.device), engine_(std::move(settings), std::move(options)) {}
  ~OffloadCore() {
    if (closed_) return;
    stop_serving();
    for (const auto& group : groups()) {
      group->leave(" was used after its Offload was destroyed: its values are gone.");
      group->give_back();  // an always-bound group still has leases; the engine goes next
    }
  }

  Engine& engine() noexcept { return engine_; }
  const Place& place() const noexcept { return place_; }
  Registration& registration() noexcept { return registration_; }
  const Groups& groups() const noexcept { return registration_.groups(); }
  BoundGroups& bound() noexcept { return bound_; }
  WriteWatch& writes() noexcept { return writes_; }

  // `load_all` gives the engine its values in place of the modules, unless a store has them. May be
  // null.
  void freeze(const std::function<void(Engine&)>& load_all = nullptr) {
    if (planned_ || closed_) return engine_.freeze();  // which throws
    registration_.settle();
    engine_.freeze();
    planned_ = true;
    const bool in_store = engine_.resumed().has_value();
    if (load_all && !in_store) load_all(engine_);
    registration_.attach(/*has_values=*/in_store || load_all);
    const std::shared_ptr<BoundGroups> bound(shared_from_this(), &bound_);
    bound_.open(bound, registration_.serves_on_demand());
    for (const auto& group : groups()) set_gradient_hooks(*group);
    bound_.bind_rest();
    for (const auto& group : groups()) {
      if (registration_.serves_on_demand()) OnDemandTable::instance().add(bound, *group);
    }
  }

  // ---- calls ----

  // The class Call uses enter() and leave(). `discards`: the call cleans up after another thread's
  // pass.
  void enter(bool discards) {
    calls_.enter(place_.is_cpu() && !discards && bound_.pass_of_another_thread());
  }
  void leave() noexcept { calls_.leave(); }
  // Begins a call. Outside of a backward pass, also releases the groups that an interrupted pass
  // left bound.
  void begin_call() {
    writes_.throw_if_written();
    if (::torch::autograd::get_current_graph_task_id() < 0) bound_.end_every_pass();
  }
  // Begins a call that concerns all groups at once.
  void begin_call_of_all(const char* call) {
    for (const auto& group : groups()) require_open(*group);
    begin_call();
    for (const auto& group : groups()) group->require_attached();
    bound_.require_none_in_use(call);
  }
  // Returns the group if this Offload may bind it now, or throws.
  OffloadedGroup& usable(OffloadedGroup& group) const {
    registration_.require_own(group);
    require_open(group);
    return group;
  }
  // A count that grows whenever weights of any group change. `group`: the group for which the
  // caller asks.
  std::uint64_t weight_changes(const OffloadedGroup& group) const {
    require_open(group);
    std::uint64_t changes = 0;
    for (const auto& any : groups()) changes += engine_.weight_changes(any->id);
    return changes;
  }

  StepResult step(const StepOptions& options) {
    begin_call_of_all("step()");
    bound_.unbind_rest();
    StepResult result;
    try {
      writes_.throw_if_written();
      registration_.buffers().require_frozen();
      gradients_.require_whole(groups());
      result = engine_.step(options);
    } catch (...) {
      // Either the step was refused and the call may be repeated, or the engine has failed and
      // binding fails as well.
      try {
        bound_.bind_rest();
      } catch (const Error&) {
      }
      throw;
    }
    for (const auto& group : groups()) group->mark_changed();
    gradients_.forget(groups());
    bound_.bind_rest();
    return result;
  }
  void discard_gradients() {
    for (const auto& group : groups()) require_open(*group);
    bound_.end_every_pass();
    gradients_.discard(groups());
  }
  // `what_then` follows the group's name in the error that a later use throws.
  void close(const char* what_then = " was used after close(): its values are gone.") {
    bound_.end_every_pass();
    bound_.require_none_in_use("close()");
    stop_serving();
    bound_.unbind_rest();
    engine_.close();
    const bool was_closed = std::exchange(closed_, true);
    if (!was_closed) after_close_ = what_then;
    for (const auto& group : groups()) {
      group->leave(
          " was used after its Offload was closed: its values are gone from memory. Use it, or "
          "save it, before close().");
    }
    if (!was_closed) writes_.throw_if_written();
  }

 private:
  void stop_serving() {
    for (const auto& group : groups()) OnDemandTable::instance().remove(*group);
  }
  void set_gradient_hooks(OffloadedGroup& group) {
    for (OffloadedParameter& parameter : group.parameters()) {
      parameter.set_hook([weak = weak_from_this(), &group, &parameter](const at::Tensor&) {
        if (const auto core = weak.lock()) core->gradients_.take(group, parameter);
      });
    }
  }
  void require_open(const OffloadedGroup& group) const {
    if (registration_.attached() && !closed_) return;
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

  const Place place_;
  const std::shared_ptr<Device> device_;
  Engine engine_;  // outlives the groups' leases
  WriteWatch writes_{engine_};
  Registration registration_{engine_, place_};
  GroupBinder binder_{engine_, place_, device_, writes_};
  BoundGroups bound_{binder_, writes_, registration_.groups()};
  GradientIntake gradients_{engine_, place_, binder_, bound_};
  Calls calls_;
  bool planned_ = false;  // the engine is frozen, but perhaps not all groups are attached
  bool closed_ = false;
  const char* after_close_ = "";
};

// Marks a trainer's call, for a scope. Throws kWrongState in a second thread.
class Call {
 public:
  explicit Call(std::shared_ptr<OffloadCore> core, bool discards = false) : core_(std::move(core)) {
    core_->enter(discards);
  }
  ~Call() { core_->leave(); }
  Call& operator=(Call&&) = delete;

 private:
  std::shared_ptr<OffloadCore> core_;
};

// Holds one binding of a group, for a scope.
class Binding {
 public:
  Binding(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : core_(std::move(core)), group_(std::move(group)) {
    core_->bound().acquire(core_->usable(*group_));
  }
  ~Binding() { release(); }
  Binding& operator=(Binding&&) = delete;

  // Null after release().
  const std::shared_ptr<OffloadCore>& core() const noexcept { return core_; }
  OffloadedGroup& group() const noexcept { return *group_; }
  void release() noexcept {
    if (core_) core_->bound().release(*group_);
    core_.reset();
    group_.reset();
  }

 private:
  std::shared_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
};

// Gives parameters memory of their own again, with their current values. Copies the values out,
// group by group. Moves the parameters to the copies only when all copies are complete, so an error
// along the way changes nothing.
inline void restore(const std::shared_ptr<OffloadCore>& core,
                    std::optional<std::uint64_t> limit_bytes) {
  core->begin_call_of_all("restore()");
  std::uint64_t bytes = 0;
  for (const auto& group : core->groups()) {
    for (const OffloadedParameter& parameter : group->parameters())
      bytes += parameter.tensor().nbytes();
  }
  if (limit_bytes && bytes > *limit_bytes) {
    const std::string needed = std::to_string(bytes);
    throw Error(Code::kOutOfBudget,
                "restore() needs " + needed + " bytes for the weights of " +
                    std::to_string(core->groups().size()) + " groups, the first of them " +
                    quoted_group(core->groups().front()->name) + ", and its limit_bytes is " +
                    std::to_string(*limit_bytes) +
                    ": nothing was restored. Give it a limit_bytes of at least " + needed +
                    ", or save group by group within gathered().");
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> restored;  // parameter, values
  for (const auto& group : core->groups()) {
    const Binding binding(core, group);
    for (const OffloadedParameter& parameter : group->parameters())
      restored.emplace_back(parameter.tensor(), parameter.tensor().detach().clone());
  }
  for (const auto& group : core->groups()) group->mark_changed();  // earlier graphs are void
  for (auto& [parameter, values] : restored) parameter.set_data(values);
  core->close(
      " was used after restore(): its parameters are ordinary tensors again, which the "
      "Offload no longer has. Call its module itself.");
}
}  // namespace headrace::torch::detail
