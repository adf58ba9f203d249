// SPDX-License-Identifier: Apache-2.0
// watched.hpp: an engine that a signal interrupts.
#pragma once
#include "headrace/engine.hpp"

namespace headrace::tools {
// While it lives a signal interrupts `engine`, which outlives it. At most four at a time.
class Watched {
 public:
  explicit Watched(Engine& engine);
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Engine& engine_;
};
}  // namespace headrace::tools
