// SPDX-License-Identifier: Apache-2.0
// computing_device.hpp: a device that tests compute on with functions of the host.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "device/forwarding_device.hpp"

namespace headrace::device {
class ComputingDevice : public Device {
 public:
  // Queues `kernel` on `stream`.
  virtual void launch(Stream stream, std::function<void()> kernel) = 0;
};

// All but launch() is another device's.
class DeviceWithLaunch final : public ForwardingDevice<ComputingDevice> {
 public:
  using Launch = std::function<void(Stream, std::function<void()> kernel)>;
  DeviceWithLaunch(std::shared_ptr<Device> device, Launch launch)
      : ForwardingDevice(std::move(device)), launch_(std::move(launch)) {}
  void launch(Stream stream, std::function<void()> kernel) override {
    launch_(stream, std::move(kernel));
  }

 private:
  Launch launch_;
};
}  // namespace headrace::device
