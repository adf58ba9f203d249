// SPDX-License-Identifier: Apache-2.0
#include "device/device_rules.hpp"

#include <string>

#include "headrace/error.hpp"

namespace headrace::device {
void throw_unknown_stream(Stream stream) {
  throw Error(Code::kWrongState,
              "stream " + std::to_string(stream.handle) +
                  " does not exist on this device: the work was not queued; use stream 0 or one "
                  "that create_stream() gave and destroy_stream() has not taken");
}

void throw_unrecorded_event(Event event, std::uint64_t last_recorded) {
  throw Error(Code::kWrongState,
              "event " + std::to_string(event.id) + " was never recorded on this device (" +
                  std::to_string(last_recorded) +
                  " were): the stream does not wait; call record() before wait()");
}
}  // namespace headrace::device
