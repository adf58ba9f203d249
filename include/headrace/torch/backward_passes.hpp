// SPDX-License-Identifier: Apache-2.0
// headrace/torch/backward_passes.hpp: tracks the groups that each backward pass has bound, and the
// gradients that it has delivered, in order to know when a group is done.
//
// Several passes may run at once: a checkpoint's pass runs within a node of another pass, and
// autograd has a thread for each device. torch numbers the passes (graph task ids).
//
// Example: blocks a, b and c have two trained parameters each. Block b does not use one of its two,
// and block c has a third parameter, which is frozen. Pass 7 visits c, b and a:
//
//   reached c     hold {c, 7, 0 of 2}
//   gradients     {c, 2 of 2}, but c keeps its hold: the frozen parameter gets no gradient, and
//                 c was called by run(), so nothing marks its last read
//   reached b     hold {b, 7, 0 of 2}; its one gradient makes this 1 of 2
//   reached a     there is no slot left in which to gather a, so a hold of pass 7 must go. It is
//                 the oldest one that awaits nothing: c's. (If there were no such hold, the oldest
//                 of the others would go: b's.)
//   gradients     {a, 2 of 2}: complete, and all of a's parameters are trained, so its hold goes
//   end of 7      b's hold goes
//
// Where the inputs of c's call are known, its hold also awaits their gradients, and then goes: a
// frozen parameter is read on the way to the gradients of trained ones and of inputs, and nowhere
// else.
//
// If an operator throws during a pass, torch does not report the end of the pass. The pass stays
// known, with the gradients that it delivered, until the trainer's next call runs end_every(). From
// then on, a step is refused until those gradients are discarded.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/torch/offloaded_group.hpp"

namespace headrace::torch::detail {
// One forward call of a block.
struct BlockCall {
  std::size_t inputs = 0;   // whose gradients its backward brings
  bool all_inputs = false;  // nothing else that requires a gradient goes into the block
};

// This class only does the bookkeeping. A function that removes holds returns the group of each
// hold, so the same group may appear several times. For each entry, the caller must undo one
// binding of that group.
// Threads: one at a time, under the lock of BoundGroups.
class BackwardPasses {
 public:
  using LetGo = std::vector<OffloadedGroup*>;

  // Makes the pass known. Returns false if it was known already.
  bool begin(int task) {
    if (find(task) != passes_.end()) return false;
    passes_.push_back({task, 0, std::this_thread::get_id()});
    return true;
  }
  bool awaits_gradients(const OffloadedGroup& group, int task) const {
    return std::any_of(holds_.begin(), holds_.end(),
                       [&](const Hold& hold) { return hold.awaits_gradients_of(group, task); });
  }
  // Holds the group until all its gradients have arrived, or until the end of the pass.
  void await_gradients(OffloadedGroup& group, int task) {
    holds_.push_back({&group, task, Why::kGradients, ++opened_, 0, group.trainable_count()});
  }
  // The hold that awaits the group's gradients also awaits those of the call's inputs, if they are
  // known. Call it for every call that the pass reaches.
  void await_inputs_of(const OffloadedGroup& group, int task,
                       const std::shared_ptr<const BlockCall>& call) {
    const auto hold = find_hold(group, task);
    if (hold == holds_.end() || hold->has(*call)) return;
    hold->calls.push_back(call);
    hold->inputs_expected += call->inputs;
    hold->all_inputs = hold->all_inputs && call->all_inputs;
  }
  // Holds the group until the end of the pass. Call it when an operator has touched the group
  // outside of the group's own calls.
  void touch(OffloadedGroup& group, int task) {
    holds_.push_back({&group, task, Why::kTouch, ++opened_, 0, 0});
  }
  // `gradient`: true if torch delivered one, false if torch reports that there is none. Returns
  // true if this was the last gradient awaited, and the group's hold is gone.
  bool arrived(const OffloadedGroup& group, int task, bool gradient) {
    find(task)->arrived += gradient ? 1 : 0;
    const auto hold = find_hold(group, task);
    if (hold == holds_.end()) return false;
    ++hold->arrived;
    return end_if_done(hold);
  }
  // The gradient of an input of the call. Returns the same.
  bool input_arrived(const OffloadedGroup& group, int task, const BlockCall& call) {
    const auto hold = find_hold(group, task);
    if (hold == holds_.end() || !hold->has(call)) return false;
    ++hold->inputs_arrived;
    return end_if_done(hold);
  }
  LetGo end(int task) {
    if (const auto ended = find(task); ended != passes_.end()) passes_.erase(ended);
    return drop([task](const Hold& hold) { return hold.task == task; });
  }
  // Call it outside of all passes. Any pass that is still known then was ended by an exception.
  LetGo end_every() {
    for (const Pass& broken : passes_) partial_gradients_ += broken.arrived;
    passes_.clear();
    return drop([](const Hold&) { return true; });
  }
  // Drops the holds of one group. Call it when memory runs out. It chooses the group that has been
  // held longest among those that await nothing, or, if there are none, among the others. Passes go
  // from group to group, so that group is done, or waits for the gradient of an unused parameter.
  // Groups with bindings other than holds are left out. So are, unless `of_any`, groups that a pass
  // other than `task` holds. Returns nothing if no group remains.
  LetGo let_go_of_oldest(int task, bool of_any) {
    const OffloadedGroup* oldest = nullptr;
    std::optional<Rank> oldest_rank;
    for (const Hold& hold : holds_) {
      const std::optional<Rank> rank = rank_to_let_go(*hold.group, task, of_any);
      if (!rank || (oldest_rank && *oldest_rank < *rank)) continue;
      oldest = hold.group;
      oldest_rank = rank;
    }
    return drop([oldest](const Hold& hold) { return hold.group == oldest; });
  }

  // Whether a thread other than the calling one began a pass that is still known.
  bool of_another_thread() const {
    return std::any_of(passes_.begin(), passes_.end(),
                       [me = std::this_thread::get_id()](const Pass& p) { return p.thread != me; });
  }
  void refuse_partial_gradients() const {
    if (partial_gradients_ == 0) return;
    throw Error(Code::kWrongState,
                "a backward pass ended in an exception after " +
                    std::to_string(partial_gradients_) +
                    " of its gradients had reached the engine: with them a step would train on "
                    "part of a pass. Call discard_gradients(), then go on.");
  }
  void forget_partial_gradients() noexcept { partial_gradients_ = 0; }

 private:
  enum class Why { kGradients, kTouch };
  // One binding of a group.
  struct Hold {
    OffloadedGroup* group;
    int task;
    Why why;
    std::uint64_t opened;  // counts up: shows which of two holds is older
    std::size_t arrived, expected;
    std::vector<std::shared_ptr<const BlockCall>> calls = {};  // that the pass has reached
    std::size_t inputs_arrived = 0, inputs_expected = 0;
    bool all_inputs = true;  // of all calls
    bool has(const BlockCall& call) const {
      return std::any_of(calls.begin(), calls.end(),
                         [&](const auto& known) { return known.get() == &call; });
    }
    bool awaits_gradients_of(const OffloadedGroup& one, int in_task) const {
      return why == Why::kGradients && group == &one && task == in_task;
    }
  };
  // A pass that is running, or that an exception has ended, and how many gradients it delivered.
  struct Pass {
    int task;
    std::size_t arrived;
    std::thread::id thread;
  };
  using Rank = std::pair<bool, std::uint64_t>;  // the lowest goes first

  std::vector<Pass>::iterator find(int task) {
    return std::find_if(passes_.begin(), passes_.end(),
                        [task](const Pass& pass) { return pass.task == task; });
  }
  std::vector<Hold>::iterator find_hold(const OffloadedGroup& group, int task) {
    return std::find_if(holds_.begin(), holds_.end(),
                        [&](const Hold& one) { return one.awaits_gradients_of(group, task); });
  }
  bool end_if_done(std::vector<Hold>::iterator hold) {
    if (hold->arrived != hold->expected) return false;
    const bool all_trained = hold->expected == hold->group->parameters().size();
    const bool inputs_came =
        !hold->calls.empty() && hold->all_inputs && hold->inputs_arrived == hold->inputs_expected;
    if (!all_trained && !inputs_came) return false;  // a frozen one may yet be read
    holds_.erase(hold);
    return true;
  }
  // No value: the group is needed.
  std::optional<Rank> rank_to_let_go(const OffloadedGroup& group, int task, bool of_any) const {
    Rank rank{false, 0};
    std::size_t holds = 0;
    for (const Hold& hold : holds_) {
      if (hold.group != &group) continue;
      if (!of_any && hold.task != task) return std::nullopt;
      rank.first = rank.first || hold.arrived < hold.expected;
      rank.second = std::max(rank.second, hold.opened);
      ++holds;
    }
    return holds == group.bindings ? std::optional(rank) : std::nullopt;
  }
  template <class Which>
  LetGo drop(Which which) {
    LetGo dropped;
    std::erase_if(holds_, [&](const Hold& hold) {
      if (which(hold)) dropped.push_back(hold.group);
      return which(hold);
    });
    return dropped;
  }

  std::vector<Hold> holds_;
  std::vector<Pass> passes_;
  std::size_t partial_gradients_ = 0;  // of passes that an exception ended, until discarded
  std::uint64_t opened_ = 0;
};
}  // namespace headrace::torch::detail
