// SPDX-License-Identifier: Apache-2.0
// watched.hpp: an engine that a signal interrupts.
#pragma once
#include "headrace/engine.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
// While it lives a signal interrupts `engine`, which outlives it.
class Watched {
 public:
  explicit Watched(Engine& engine)
      : tell_([](void* to) noexcept { static_cast<Engine*>(to)->interrupt(); }, &engine) {}

 private:
  TellOnSignal tell_;
};
}  // namespace headrace::tools
