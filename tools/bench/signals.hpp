// SPDX-License-Identifier: Apache-2.0
// signals.hpp: Ctrl-C and SIGTERM end a benchmark early, with everything removed as at its end.
#pragma once
#include "headrace/engine.hpp"

namespace headrace::bench {
// SIGINT, SIGTERM and SIGHUP are noted; the engines under watch are interrupted.
void install_signal_handlers();
int signal_received() noexcept;
// Throws headrace::Error kInterrupted once a signal has come.
void check_signal();

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
}  // namespace headrace::bench
