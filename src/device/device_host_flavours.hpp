// SPDX-License-Identifier: Apache-2.0
// device_host_flavours.hpp: the two makers behind make_device_host(), and the error that both give.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device_host.hpp"

namespace headrace::device {
std::shared_ptr<DeviceHost> make_prompt_device_host();
std::shared_ptr<DeviceHost> make_late_device_host(const HostOptions& options);

[[noreturn]] void throw_unknown_stream(Stream stream);
[[noreturn]] void throw_unrecorded_event(Event event, std::uint64_t last_recorded);
}  // namespace headrace::device
