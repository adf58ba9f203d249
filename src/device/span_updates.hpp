// SPDX-License-Identifier: Apache-2.0
// span_updates.hpp: the seam to a device that updates optimizer state in its own memory.
#pragma once
#include "headrace/device.hpp"
#include "kernels/update_span.hpp"

namespace headrace::device {
using kernels::UpdateSpan;
using kernels::UpdateStep;

// A second base of the engine's own devices: a trainer's has none, as the bits must be those of
// kernels/update_reference.cpp.
class SpanUpdates {
 public:
  // Queues the update on `stream`; both are copied. The span's arrays are device memory, valid
  // until the stream has passed this point. Threads and errors: as Device's.
  virtual void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) = 0;

 protected:
  ~SpanUpdates() = default;

 private:
  friend SpanUpdates* updates_of(Device& device);
  // A device that hands calls on has those of the other device, or null.
  virtual SpanUpdates* served() noexcept { return this; }
};

// What updates optimizer state in the device's memory (headrace.update_on "device"), if it does:
// null for all but make_cuda_device()'s.
inline SpanUpdates* updates_of(Device& device) {
  auto* const own = dynamic_cast<SpanUpdates*>(&device);
  return own == nullptr ? nullptr : own->served();
}
}  // namespace headrace::device
