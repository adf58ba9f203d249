// SPDX-License-Identifier: Apache-2.0
// device_rules.hpp: the errors that every device throws for an invalid stream or event.
#pragma once
#include <cstdint>

#include "headrace/device.hpp"

namespace headrace::device {
[[noreturn]] void throw_unknown_stream(Stream stream);
[[noreturn]] void throw_unrecorded_event(Event event, std::uint64_t last_recorded);
}  // namespace headrace::device
