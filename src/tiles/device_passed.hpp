// SPDX-License-Identifier: Apache-2.0
// device_passed.hpp: waiting for a device without holding the conductor up.
#pragma once
#include <coroutine>

#include "async/conductor.hpp"
#include "async/task.hpp"
#include "headrace/device.hpp"

namespace headrace::tiles {
// Resumes on the conductor when the device has passed this point of `stream`.
inline async::Task<> device_passed(async::Conductor& conductor, Device& device, Stream stream) {
  struct Passed : async::Work {
    async::Conductor* conductor = nullptr;
    Device* device = nullptr;
    Stream stream;
    std::coroutine_handle<> waiting;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      waiting = handle;
      run = [](async::Work* work) noexcept { static_cast<Passed*>(work)->waiting.resume(); };
      device->notify(
          stream,
          [](void* self) noexcept {
            auto* passed = static_cast<Passed*>(self);
            passed->conductor->post(*passed);
          },
          this);
    }
    void await_resume() const noexcept {}
  } passed;
  passed.conductor = &conductor;
  passed.device = &device;
  passed.stream = stream;
  co_await passed;
}
}  // namespace headrace::tiles
