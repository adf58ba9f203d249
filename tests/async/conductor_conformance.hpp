// SPDX-License-Identifier: Apache-2.0
// conductor_conformance.hpp: what every conductor promises. A backend instantiates it with a maker.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "async/conductor.hpp"
#include "async/task.hpp"
#include "headrace/error.hpp"

namespace headrace::async::testing {
struct ConductorCase {
  const char* name;
  std::unique_ptr<Conductor> (*make)();
  bool in_posted_order;
};

// co_await Delay{conductor, 5ms}.
struct Delay {
  explicit Delay(Conductor& conductor, Nanoseconds delay) : conductor(conductor), delay(delay) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    timer.waiting = handle;
    timer.run = [](Work* work) noexcept { static_cast<Wake*>(work)->waiting.resume(); };
    conductor.after(delay, timer);
  }
  void await_resume() const noexcept {}
  struct Wake : Timer {
    std::coroutine_handle<> waiting;
  };
  Conductor& conductor;
  Nanoseconds delay;
  Wake timer;
};

// co_await Yield{conductor}: once through the conductor's queue.
struct Yield : Work {
  explicit Yield(Conductor& conductor) : conductor(conductor) {
    run = [](Work* work) noexcept { static_cast<Yield*>(work)->waiting.resume(); };
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    waiting = handle;
    conductor.post(*this);
  }
  void await_resume() const noexcept {}
  Conductor& conductor;
  std::coroutine_handle<> waiting;
};

class ConductorConformance : public ::testing::TestWithParam<ConductorCase> {
 protected:
  std::unique_ptr<Conductor> conductor_ = GetParam().make();
};
}  // namespace headrace::async::testing
