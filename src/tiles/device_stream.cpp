// SPDX-License-Identifier: Apache-2.0
#include "tiles/device_stream.hpp"

#include <exception>

#include "headrace/error.hpp"

namespace headrace::tiles {
void DeviceStream::Passed::await_suspend(std::coroutine_handle<> handle) {
  wait(handle);
  stream_.device_.notify(
      stream_.stream_,
      [](void* self) noexcept {
        auto* const passed = static_cast<Passed*>(self);
        passed->stream_.conductor_.post(*passed);
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
    : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(device_.allocate(bytes));
  if (data_ != nullptr) return;
  throw Error(Code::kOutOfBudget, std::string("device ") + device_.name() + " has no room for " +
                                      what + ", as planned; nothing was trained. " + help);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_.deallocate(data_, bytes_);
}
}  // namespace headrace::tiles
