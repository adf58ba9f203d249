// SPDX-License-Identifier: Apache-2.0
// span_updates.hpp: the seam to a device that updates optimizer state in its own memory.
#pragma once
#include "headrace/device.hpp"
#include "kernels/update_span.hpp"

namespace headrace::device {
using kernels::UpdateSpan;
using kernels::UpdateStep;

// Of the engine's own devices: a trainer's has none (Device::updates()), as the bits must be those
// of kernels/update_element.hpp.
class SpanUpdates {
 public:
  // Queues the update on `stream`; both are copied. The span's arrays are device memory, valid
  // until the stream has passed this point. Threads and errors: as Device's.
  virtual void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) = 0;

 protected:
  ~SpanUpdates() = default;
};
}  // namespace headrace::device
