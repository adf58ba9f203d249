// SPDX-License-Identifier: Apache-2.0
// device_stream.hpp: an engine's own resources on a device: a stream, and memory.
#pragma once
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <string>

#include "async/conductor.hpp"
#include "async/resumption.hpp"
#include "headrace/device.hpp"

namespace headrace::tiles {
class DeviceStream {
 public:
  // co_await resumes on the conductor when the device has completed the work queued on the stream
  // so far, or has failed. On a GPU, a host function on a second stream posts it there from CUDA's
  // thread. If the GPU has failed, the watchdog headrace-cuda posts it: call throw_if_failed().
  class [[nodiscard]] UntilDone : public async::Resumption<> {
   public:
    explicit UntilDone(DeviceStream& stream) noexcept : stream_(stream) {}
    void await_suspend(std::coroutine_handle<> handle);
    void await_resume() const noexcept {}

   private:
    DeviceStream& stream_;
  };

  DeviceStream(Device& device, async::Conductor& conductor)
      : device_(device), conductor_(conductor), stream_(device.create_stream()) {}
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  Stream get() const noexcept { return stream_; }
  void copy(void* target, const void* source, std::uint64_t bytes);
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_.load(); }  // any thread
  Event record() { return device_.record(stream_); }
  UntilDone until_done() noexcept { return UntilDone(*this); }
  void synchronize_quietly() noexcept;

 private:
  Device& device_;
  async::Conductor& conductor_;
  const Stream stream_;
  std::atomic<std::uint64_t> copied_bytes_{0};
};

// Blocks until all work is complete. Ignores errors: a device that fails here is not used again.
void synchronize_quietly(Device& device, Stream stream) noexcept;

class DeviceMemory {
 public:
  // Throws kOutOfBudget if there is no room for `what`, with the fix `help`.
  DeviceMemory(Device& device, std::uint64_t bytes, const std::string& what, const char* help);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  // Gives it back. take() throws as the constructor does, and may be repeated.
  void release() noexcept;
  void take();
  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return bytes_; }

 private:
  Device& device_;
  const std::uint64_t bytes_;
  const std::string what_;
  const char* const help_;
  std::byte* data_ = nullptr;  // null for 0 bytes
};
}  // namespace headrace::tiles
