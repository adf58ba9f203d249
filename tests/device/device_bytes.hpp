// SPDX-License-Identifier: Apache-2.0
// device_bytes.hpp: device memory in tests.
#pragma once
#include <cstddef>

#include "headrace/device.hpp"

namespace headrace::device {
// Device memory for the length of a test.
class DeviceBytes {
 public:
  DeviceBytes(Device& device, std::size_t size_bytes)
      : device_(device), size_bytes_(size_bytes), data_(device.allocate(size_bytes)) {}
  ~DeviceBytes() { device_.deallocate(data_, size_bytes_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  std::size_t size_bytes_;
  void* data_;
};
}  // namespace headrace::device
