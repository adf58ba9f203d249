// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/buffers.hpp"

#include <string>

#include "base/units.hpp"
#include "device/host_memory.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
CopyBuffers::Needed CopyBuffers::needed(const Device& device, std::uint64_t bytes_each) {
  const DeviceOverhead own = device.overhead();
  return {.host_bytes = 4 * bytes_each + own.host_bytes,
          .pinned_bytes = 2 * bytes_each + own.host_bytes,
          .device_bytes = 2 * bytes_each + own.device_bytes};
}

CopyBuffers::CopyBuffers(Device& device, std::uint64_t bytes_each)
    : device_(device), bytes_(bytes_each) {
  const auto refuse_null = [&](const void* memory, const std::string& of) {
    if (memory != nullptr) return;
    throw Error(Code::kOutOfBudget, of + " has no " + base::format_bytes(bytes_each) +
                                        " left for a buffer of the largest copies; nothing was "
                                        "measured. Free some, or give smaller --sizes.");
  };
  try {
    for (void*& memory : host_)
      refuse_null(memory = device::allocate_host_memory(bytes_), "host memory");
    for (std::size_t i = 0; i < pinned_.size(); ++i) {
      device.pin(host_[i], bytes_);
      pinned_[i] = true;
    }
    for (void*& memory : device_memory_)
      refuse_null(memory = device.allocate(bytes_), std::string("the memory of ") + device.name());
  } catch (...) {
    free_all();
    throw;
  }
}

CopyBuffers::~CopyBuffers() { free_all(); }

void CopyBuffers::free_all() noexcept {
  for (void* const memory : device_memory_) {
    if (memory != nullptr) device_.deallocate(memory, bytes_);
  }
  for (std::size_t i = 0; i < pinned_.size(); ++i) {
    if (pinned_[i]) device_.unpin(host_[i], bytes_);
  }
  for (void* const memory : host_) device::free_host_memory(memory, bytes_);
}
}  // namespace headrace::tools
