// SPDX-License-Identifier: Apache-2.0
// device_host_flavours.hpp: the two makers behind make_device_host().
#pragma once
#include <memory>

#include "device/device_host.hpp"

namespace headrace::device {
std::shared_ptr<DeviceHost> make_prompt_device_host();
std::shared_ptr<DeviceHost> make_late_device_host(const HostOptions& options);
}  // namespace headrace::device
