// SPDX-License-Identifier: Apache-2.0
// resumption.hpp: work that resumes the coroutine which waits for it.
#pragma once
#include <coroutine>

#include "async/work.hpp"

namespace headrace::async {
// Base of what a coroutine awaits while another thread or a device is at it: await_suspend() calls
// wait(handle) and starts it, and whoever ends it posts it to the conductor, once. `Base` is Work
// or derived from it.
template <class Base = Work>
class Resumption : public Base {
 public:
  Resumption() noexcept {
    Base::run = [](Work* work) noexcept { static_cast<Resumption*>(work)->waiting_.resume(); };
  }
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;
  bool await_ready() const noexcept { return false; }

 protected:
  void wait(std::coroutine_handle<> handle) noexcept { waiting_ = handle; }

 private:
  std::coroutine_handle<> waiting_;
};
}  // namespace headrace::async
