// SPDX-License-Identifier: Apache-2.0
#include "engine/background.hpp"

#include "async/thread.hpp"

namespace headrace::engine {
void Background::start(std::function<void()> work, std::function<void()> then) {
  finish();  // a thread that has ended
  running_.store(true);
  try {
    thread_ = async::start_thread("headrace-bgsave", [this, work, then] {
      work();
      running_.store(false);
      then();
    });
  } catch (...) {
    running_.store(false);
    throw;
  }
}

void Background::finish() {
  if (!thread_.joinable()) return;
  awaited_.store(true);
  thread_.join();
  awaited_.store(false);
}
}  // namespace headrace::engine
