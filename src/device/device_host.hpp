// SPDX-License-Identifier: Apache-2.0
// device_host.hpp: the CPU as a device.
#pragma once
#include <memory>

#include "headrace/device.hpp"

namespace headrace::device {
// Device memory is host memory. Each call does its work on the calling thread before it returns.
std::shared_ptr<Device> make_device_host();
}  // namespace headrace::device
