// SPDX-License-Identifier: Apache-2.0
#include "tiles/device_stream.hpp"

#include <exception>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::tiles {
void DeviceStream::UntilDone::await_suspend(std::coroutine_handle<> handle) {
  wait(handle);
  stream_.device_.notify(
      stream_.stream_,
      [](void* self) noexcept {
        auto* const done = static_cast<UntilDone*>(self);
        done->stream_.conductor_.post(*done);
      },
      this);
}

DeviceStream::~DeviceStream() {
  synchronize_quietly();
  device_.destroy_stream(stream_);
}

void DeviceStream::copy(void* target, const void* source, std::uint64_t bytes) {
  device_.copy(stream_, target, source, bytes);
  copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void DeviceStream::synchronize_quietly() noexcept { tiles::synchronize_quietly(device_, stream_); }

void synchronize_quietly(Device& device, Stream stream) noexcept {
  try {
    device.synchronize(stream);
  } catch (const std::exception&) {
  }
}

DeviceMemory::DeviceMemory(Device& device, std::uint64_t bytes, const std::string& what,
                           const char* help)
    : device_(device), bytes_(bytes), what_(what), help_(help) {
  take();
}

DeviceMemory::~DeviceMemory() { release(); }

void DeviceMemory::take() {
  if (bytes_ == 0 || data_ != nullptr) return;
  data_ = static_cast<std::byte*>(device_.allocate(bytes_));
  if (data_ != nullptr) return;
  throw Error(Code::kOutOfBudget, std::string("device ") + device_.name() + " has no room for " +
                                      what_ + ", as planned; nothing was trained. " + help_);
}

void DeviceMemory::release() noexcept {
  if (std::byte* const data = std::exchange(data_, nullptr)) device_.deallocate(data, bytes_);
}
}  // namespace headrace::tiles
