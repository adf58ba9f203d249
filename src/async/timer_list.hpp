// SPDX-License-Identifier: Apache-2.0
// timer_list.hpp: a conductor's timers, earliest first, in an intrusive list. An engine has few at
// a time, so finding the right place is cheap.
#pragma once
#include <algorithm>

#include "async/conductor.hpp"

namespace headrace::async {
class TimerList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  Nanoseconds first_deadline() const noexcept {
    return static_cast<const Timer*>(first_)->deadline;
  }

  // Puts the timer behind those with the same deadline.
  void add(Timer& timer, Nanoseconds now, Nanoseconds delay) noexcept {
    delay = std::clamp(delay, Nanoseconds::zero(), Nanoseconds::max() - now);
    timer.deadline = now + delay;
    Work** link = &first_;
    while (*link != nullptr && static_cast<Timer*>(*link)->deadline <= timer.deadline) {
      link = &(*link)->next;
    }
    timer.next = *link;
    *link = &timer;
  }

  // Removes and returns the first timer if its deadline is not after `now`, else null.
  Timer* take_due(Nanoseconds now) noexcept {
    if (empty() || first_deadline() > now) return nullptr;
    Timer* const timer = static_cast<Timer*>(first_);
    first_ = timer->next;
    timer->next = nullptr;
    return timer;
  }

 private:
  Work* first_ = nullptr;
};
}  // namespace headrace::async
