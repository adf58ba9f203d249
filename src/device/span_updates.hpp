// SPDX-License-Identifier: Apache-2.0
// span_updates.hpp: the seam for a device that updates optimizer state in its own memory.
#pragma once
#include "headrace/device.hpp"
#include "kernels/update_span.hpp"

namespace headrace::device {
using kernels::UpdateSpan;
using kernels::UpdateStep;

// A second base class of the engine's own devices. A trainer's device does not have it, since the
// bits must be those of kernels/update_reference.cpp.
class SpanUpdates {
 public:
  // Queues the update on `stream`, and copies both arguments. The span's arrays are device memory,
  // valid until the stream has passed this point. Threads and errors: as in Device.
  virtual void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) = 0;

 protected:
  ~SpanUpdates() = default;

 private:
  friend SpanUpdates* updates_of(Device& device);
  // A device that forwards calls returns that of the other device, or null.
  virtual SpanUpdates* served() noexcept { return this; }
};

// The device's interface for updates in its own memory (headrace.update_on "device"); null for all
// devices but make_cuda_device()'s.
inline SpanUpdates* updates_of(Device& device) {
  auto* const own = dynamic_cast<SpanUpdates*>(&device);
  return own == nullptr ? nullptr : own->served();
}
}  // namespace headrace::device
