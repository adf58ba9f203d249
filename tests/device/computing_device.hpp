// SPDX-License-Identifier: Apache-2.0
// computing_device.hpp: a device that tests compute on with functions of the host.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "device/device_host.hpp"
#include "device/forwarding_device.hpp"

namespace headrace::device {
// All but launch() is the device's own.
class ComputingDevice final : public ForwardingDevice<DeviceHost> {
 public:
  using Launch = std::function<void(Stream, std::function<void()> kernel)>;
  ComputingDevice(std::shared_ptr<Device> device, Launch launch)
      : ForwardingDevice(std::move(device)), launch_(std::move(launch)) {}
  void launch(Stream stream, std::function<void()> kernel) override {
    launch_(stream, std::move(kernel));
  }

 private:
  Launch launch_;
};
}  // namespace headrace::device
