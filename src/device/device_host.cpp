// SPDX-License-Identifier: Apache-2.0
#include "device/device_host.hpp"

#include "device/device_host_flavours.hpp"

namespace headrace::device {
std::shared_ptr<DeviceHost> make_device_host(const HostOptions& options) {
  return options.flavour == HostFlavour::kLate ? make_late_device_host(options)
                                               : make_prompt_device_host();
}
}  // namespace headrace::device
