// SPDX-License-Identifier: Apache-2.0
// headrace/torch/bound_groups.hpp: binds a group's parameters while they are needed: in forward, in
// backward, in a scope, or on demand.
//
// Forward binds the group while the block's own code runs. Outputs that require a gradient get a
// hook. When a gradient reaches such an output, the block's backward is about to run, so the hook
// binds the group again, until all of the group's gradients have arrived. Example: x -> encoder ->
// decoder -> loss, each block with a group of its own, and the backward pass of that loss.
//
//   offload(encoder, x)  acquire(encoder): 1 binding. The encoder's forward runs, and returns y.
//                        release(encoder): the group is parked. y gets a hook.
//   offload(decoder, y)  The same for the decoder. By now autograd has saved weights of both
//                        blocks, on storages that are parked.
//   backward             The gradient of the loss reaches the decoder's output: reached(decoder)
//                        binds its group, for pass 7. The decoder's nodes run. torch writes a
//                        gradient, a hook on the parameter hands it to the engine, and
//                        gradient_arrived(decoder) counts it. After the last gradient, the group
//                        is parked. The decoder's input is the encoder's output: reached(encoder)
//                        binds the encoder's group, and so on.
//   end of pass 7        torch calls end_pass(7): groups that the pass still holds are parked.
//
// Bindings are counted, so they may overlap. If the user has a gathered() scope for the encoder
// open around all of this, the encoder's group has 2 bindings while its forward runs, and is parked
// when the scope ends. backward_passes.hpp tracks which groups each backward pass holds, and until
// when.
#pragma once
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "headrace/torch/backward_passes.hpp"
#include "headrace/torch/offloaded_group.hpp"
#include "headrace/torch/write_watch.hpp"

namespace headrace::torch::detail {
// Has the engine gather a group, and puts the group's parameters on the gathered bytes. Orders
// torch's work behind the engine's: on a device, the stream that will read the bytes waits for
// them. Torch's CPU operators run on no stream, so on the CPU the host waits for the engine's
// device. Undo each bind() of a group with one unbind(). OffloadedGroup::bindings counts the
// bindings that are not yet undone.
// Threads: one at a time, under the lock of BoundGroups.
class GroupBinder {
 public:
  // Throws kInvalidArgument if torch cannot use parameters in the memory of the engine's device.
  GroupBinder(Engine& engine, const Place& place, std::shared_ptr<Device> device, WriteWatch& watch)
      : engine_(engine), place_(place), device_(std::move(device)), watch_(watch) {
    refuse_another_device();
  }

  using Strays = OffloadedGroup::Strays;
  void bind(OffloadedGroup& group, Strays strays = Strays::kRefused) {
    if (group.changing) {
      throw Error(Code::kWrongState,
                  quoted_group(group.name) +
                      " was used while it is being changed: its values are not the engine's yet. "
                      "End its gathered() scope first.");
    }
    group.require_attached(strays);
    const Stream stream = place_.stream();
    if (group.bindings == 0) {
      Gathered gathered = engine_.gather(group.id, stream);
      wait_for_cpu_operators();
      // If the group was loaded since the last binding, torch must refuse a backward pass over
      // values saved before.
      const std::uint64_t changes = engine_.weight_changes(group.id);
      if (std::exchange(group.seen_changes, changes) != changes) group.mark_changed();
      group.bind(stream, std::move(gathered));
    } else if (!group.leased_on(stream)) {
      group.bind(stream, engine_.gather(group.id, stream));
    }
    ++group.bindings;
  }
  void unbind(OffloadedGroup& group) noexcept {
    if (--group.bindings != 0) return;
    if (const OffloadedParameter* written = group.unbind()) watch_.spoil(group, *written);
  }
  // Waits until the engine's device has finished its queued work, so that torch's CPU operators may
  // read what it wrote, and overwrite what it read. May be called from any thread.
  void wait_for_cpu_operators() const {
    if (place_.is_cpu() && device_) device_->synchronize({});
  }

 private:
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

  Engine& engine_;
  const Place& place_;
  const std::shared_ptr<Device> device_;
  WriteWatch& watch_;
};

// Guards the bindings of every group with one lock. May be called from any thread, because autograd
// may have threads of its own. No torch operator may run under the lock, because an operator could
// call hold_if_bound().
class BoundGroups final {
 public:
  BoundGroups(GroupBinder& binder, WriteWatch& watch, const Groups& groups)
      : binder_(binder), watch_(watch), groups_(groups) {}

  // freeze() calls this. `self` also keeps the engine alive. If `on_demand`, a group that is
  // released too early is bound again when an operator touches it.
  void open(std::weak_ptr<BoundGroups> self, bool on_demand) {
    self_ = std::move(self);
    on_demand_ = on_demand;
  }

  // ---- for calls and scopes ----

  // Binds the group. Undo each acquire() with one release().
  void acquire(OffloadedGroup& group) {
    const std::lock_guard lock(mutex_);
    const int task = ::torch::autograd::get_current_graph_task_id();
    task < 0 ? binder_.bind(group) : bind_in_pass(group, task);
  }
  void release(OffloadedGroup& group) noexcept {
    const std::lock_guard lock(mutex_);
    binder_.unbind(group);
  }
  // Binds a group that is not in use. Nobody else can use that group until end_changes().
  void begin_changes(OffloadedGroup& group) {
    const std::lock_guard lock(mutex_);
    if (in_use(group)) {
      throw Error(Code::kWrongState,
                  "gathered() for changing " + quoted_group(group.name) +
                      " while it is in use: who uses it would go on with the old values. End its "
                      "other gathered() scope, and call it outside of forward and backward.");
    }
    if (group.bindings != 0) binder_.unbind(group);  // the group is always bound
    binder_.bind(group, GroupBinder::Strays::kTakenBack);
    group.changing = true;
  }
  void end_changes(OffloadedGroup& group) noexcept {
    const std::lock_guard lock(mutex_);
    group.park();
    group.give_back();
    group.changing = false;
    group.bindings = 0;
    try {
      if (group.always_bound) binder_.bind(group);
    } catch (const std::exception& error) {
      watch_.report(quoted_group(group.name) + " could not be bound again: " + error.what());
    }
  }
  // Runs `function` while no group can be bound or released.
  template <class F>
  void while_none_binds(F function) {
    const std::lock_guard lock(mutex_);
    function();
  }
  // Binds the groups that are always bound. unbind_rest() releases them, for a step and on close.
  void bind_rest() {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group->always_bound && group->bindings == 0) binder_.bind(*group);
    }
  }
  void unbind_rest() {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group->always_bound && group->bindings != 0) binder_.unbind(*group);
    }
  }
  // Throws if the user has a scope open, because the scope's values would be out of date, or gone,
  // after `call`.
  void require_none_in_use(const char* call) {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (!in_use(*group)) continue;
      throw Error(Code::kWrongState,
                  std::string(call) + " while " + quoted_group(group->name) +
                      " is in use: its values would not be current. End its gathered() scope, and "
                      "call it outside of forward and backward.");
    }
  }

  // ---- for hooks, in backward ----

  // A gradient has reached an output of this call of the block.
  void reached(OffloadedGroup& group, const std::shared_ptr<const BlockCall>& call) {
    const std::lock_guard lock(mutex_);
    const int task = ::torch::autograd::get_current_graph_task_id();
    if (!passes_.awaits_gradients(group, task)) {
      bind_in_pass(group, task);
      passes_.await_gradients(group, task);
      begin_pass(task);
    }
    passes_.await_inputs_of(group, task, call);
  }
  // All of the gradient of one of its inputs has come.
  void input_arrived(OffloadedGroup& group, const BlockCall& call) {
    const std::lock_guard lock(mutex_);
    const int task = ::torch::autograd::get_current_graph_task_id();
    if (passes_.input_arrived(group, task, call)) binder_.unbind(group);
  }
  // A parameter's part of backward is done. `gradient`: whether torch delivered a gradient for it.
  void gradient_arrived(OffloadedGroup& group, bool gradient) {
    const std::lock_guard lock(mutex_);
    const int task = ::torch::autograd::get_current_graph_task_id();
    begin_pass(task);
    if (passes_.arrived(group, task, gradient)) binder_.unbind(group);
  }
  void end_pass(int task) {
    const std::lock_guard lock(mutex_);
    unbind_all(passes_.end(task));
  }
  // Releases the groups that a pass left bound when an exception ended it. Call it outside of all
  // passes.
  void end_every_pass() {
    const std::lock_guard lock(mutex_);
    unbind_all(passes_.end_every());
  }
  bool pass_of_another_thread() {
    const std::lock_guard lock(mutex_);
    return passes_.of_another_thread();
  }
  void refuse_partial_gradients() {
    const std::lock_guard lock(mutex_);
    passes_.refuse_partial_gradients();
  }
  void forget_partial_gradients() {
    const std::lock_guard lock(mutex_);
    passes_.forget_partial_gradients();
  }

  // ---- for operators that touch a group outside of its calls ----

  std::uint64_t touches(const OffloadedGroup& group) {
    const std::lock_guard lock(mutex_);
    return group.touches;
  }
  // If the group is bound, adds a binding, which release() undoes. Returns false if the group is
  // parked.
  bool hold_if_bound(OffloadedGroup& group) noexcept {
    const std::lock_guard lock(mutex_);
    if (group.bindings == 0) return false;
    ++group.bindings;
    return true;
  }
  // Binds a parked group, and holds it until release(). Returns false on failure; the group's
  // parked text then says why.
  bool hold_on_demand(OffloadedGroup& group) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      const int task = ::torch::autograd::get_current_graph_task_id();
      if (task >= 0) begin_pass(task);
      bind_in_pass(group, task);
      if (group.bindings > 1) return true;  // another thread was first
      ++group.touches;
      // Outside of a backward pass, nothing stays bound between operators. Otherwise, a write
      // through data_ptr() could change bytes that the engine does not read back.
      if (task < 0) return true;
      passes_.touch(group, task);
      ++group.bindings;
      return true;
    } catch (const std::exception& error) {
      group.park(std::string(" It could not be brought when it was touched: ") + error.what());
      return false;
    }
  }

 private:
  static bool in_use(const OffloadedGroup& group) {
    return group.changing || group.bindings > (group.always_bound ? 1u : 0u);
  }
  // If memory runs out, releases groups that passes hold. If such a group is still needed, it is
  // bound again on demand, or its parked parameters throw.
  void bind_in_pass(OffloadedGroup& group, int task) {
    for (;;) {
      try {
        return binder_.bind(group);
      } catch (const Error& error) {
        if (error.code() != Code::kOutOfBudget) throw;
        const BackwardPasses::LetGo oldest = passes_.let_go_of_oldest(task, on_demand_);
        if (oldest.empty()) throw;
        unbind_all(oldest);
      }
    }
  }
  // Makes torch call end_pass(task) at the end of that pass, which must be running. If an exception
  // ends the pass, torch does not make this call.
  void begin_pass(int task) {
    if (!passes_.begin(task)) return;
    ::torch::autograd::Engine::get_default_engine().queue_callback([self = self_, task] {
      if (const auto alive = self.lock()) alive->end_pass(task);
    });
  }
  void unbind_all(const BackwardPasses::LetGo& groups) noexcept {
    for (OffloadedGroup* group : groups) binder_.unbind(*group);
  }

  GroupBinder& binder_;
  WriteWatch& watch_;
  const Groups& groups_;
  std::weak_ptr<BoundGroups> self_;
  bool on_demand_ = false;
  std::mutex mutex_;  // guards everything below and the groups' counts
  BackwardPasses passes_;
};
}  // namespace headrace::torch::detail
