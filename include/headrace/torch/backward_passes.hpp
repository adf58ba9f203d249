// SPDX-License-Identifier: Apache-2.0
// headrace/torch/backward_passes.hpp: counts what each backward pass has bound and which gradients
// it has brought, to know when a group is done.
//
// Several passes may run at once: a checkpoint's runs within the node of another, and autograd has
// a thread for each device. torch numbers them (the graph task).
//
// Example: blocks a, b, c of two trained parameters each. b does not use one of its own, c has a
// third that is frozen. Pass 7 goes c, b, a:
//
//   reached c     hold {c, 7, 0 of 2}
//   gradients     {c, 2 of 2}, and c keeps its hold: the frozen one gets no gradient, so nothing
//                 marks its last read
//   reached b     hold {b, 7, 0 of 2}; its one gradient makes it 1 of 2
//   reached a     there is no slot left to gather a: of the holds of 7 the oldest that awaits
//                 nothing goes, c's. (Else the oldest that awaits something would, b's.)
//   gradients     {a, 2 of 2}: complete, all of its parameters are trained, its hold goes
//   end of 7      b's hold goes
//
// Had an operator thrown in between, torch would call no end: the pass stays known, with the
// gradients that it brought, until the trainer's next call makes end_every() of it. A step is
// refused from then on, until those gradients are discarded.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/torch/offloaded_group.hpp"

namespace headrace::torch::detail {
// Bookkeeping alone: a hold that goes is the caller's binding to undo, and is returned to it, a
// group as often as it had holds.
// Thread: one at a time, under BoundGroups' lock.
class BackwardPasses {
 public:
  using LetGo = std::vector<OffloadedGroup*>;

  // From here on the pass is known. False where it was.
  bool begin(int task) {
    if (find(task) != passes_.end()) return false;
    passes_.push_back({task, 0, std::this_thread::get_id()});
    return true;
  }
  bool awaits_gradients(const OffloadedGroup& group, int task) const {
    return std::any_of(holds_.begin(), holds_.end(),
                       [&](const Hold& hold) { return hold.awaits_gradients_of(group, task); });
  }
  // Holds the group until all its gradients have come, or to the end of the pass.
  void await_gradients(OffloadedGroup& group, int task) {
    holds_.push_back({&group, task, Why::kGradients, ++opened_, 0, group.trainable_count()});
  }
  // Holds it to the end of the pass: an operator touched it outside of its calls.
  void touch(OffloadedGroup& group, int task) {
    holds_.push_back({&group, task, Why::kTouch, ++opened_, 0, 0});
  }
  // `gradient`: whether torch brought one, or says that the parameter has none. True where it was
  // the last one: the group's hold has gone.
  bool arrived(const OffloadedGroup& group, int task, bool gradient) {
    find(task)->arrived += gradient ? 1 : 0;
    const auto hold = std::find_if(holds_.begin(), holds_.end(), [&](const Hold& one) {
      return one.awaits_gradients_of(group, task);
    });
    if (hold == holds_.end() || ++hold->arrived != hold->expected) return false;
    if (hold->expected != group.parameters().size()) return false;  // a frozen one may be read
    holds_.erase(hold);
    return true;
  }
  LetGo end(int task) {
    if (const auto ended = find(task); ended != passes_.end()) passes_.erase(ended);
    return drop([task](const Hold& hold) { return hold.task == task; });
  }
  // Outside of all passes: those that are still known ended in an exception.
  LetGo end_every() {
    for (const Pass& broken : passes_) partial_gradients_ += broken.arrived;
    passes_.clear();
    return drop([](const Hold&) { return true; });
  }
  // Memory is out: the group that is held for longest lets go, those that await nothing before the
  // others. Passes go from group to group, so it is one that is done and was only kept, or one
  // that waits for the gradient of an unused parameter. Only groups that nothing but holds has
  // bound, and of other passes than `task` where `of_any`. Empty: there is none.
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

  // Whether a pass is known that another thread than the calling one began.
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
    std::uint64_t opened;  // counts up: which of two is older
    std::size_t arrived, expected;
    bool awaits_gradients_of(const OffloadedGroup& one, int in_task) const {
      return why == Why::kGradients && group == &one && task == in_task;
    }
  };
  // A pass that runs, or that an exception has ended, and how many gradients it brought.
  struct Pass {
    int task;
    std::size_t arrived;
    std::thread::id thread;
  };
  using Rank = std::pair<bool, std::uint64_t>;  // the least lets go first

  std::vector<Pass>::iterator find(int task) {
    return std::find_if(passes_.begin(), passes_.end(),
                        [task](const Pass& pass) { return pass.task == task; });
  }
  // None: it is needed.
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
