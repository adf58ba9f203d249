// SPDX-License-Identifier: Apache-2.0
// resumption.hpp: work that resumes the coroutine waiting for it.
#pragma once
#include <coroutine>

#include "async/work.hpp"

namespace headrace::async {
// The base of an object that a coroutine awaits while another thread or a device works. Its
// await_suspend() calls wait(handle) and starts the work. The party that finishes the work posts
// the object to the conductor, once. `Base` is Work or derived from it.
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
