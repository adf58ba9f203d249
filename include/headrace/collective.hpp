// SPDX-License-Identifier: Apache-2.0
// headrace/collective.hpp: the seam between ranks.
#pragma once
#include <cstdint>
#include <string_view>

#include "headrace/device.hpp"

namespace headrace {
// Names a call. Every rank must make the same calls in the same order; an error names a rank that
// does not, with both tags.
struct CollectiveTag {
  std::uint64_t sequence = 0;
  std::string_view what;  // e.g. "gather h.3"
};

// Threads: the trainer's, one call at a time per rank.
// Order:   stream-ordered: a call sees the work queued on `stream` before it, and later work on
//          `stream` sees its result.
// Throws headrace::Error kPeerLost when another rank left, called something else, or did not come
//          within the deadline; from then on every call throws it.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;

  // `whole` is world_size equal pieces; this rank's own piece is in its place already.
  virtual void all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) = 0;
  // Sums world_size buffers of `elements` (a multiple of world_size) elementwise in rank order, in
  // f32, rounding once to `dtype`; afterwards this rank's 1/world_size piece of `buffer` holds the
  // sum, the rest is unspecified.
  virtual void reduce_scatter(CollectiveTag tag, Stream stream, void* buffer, DType dtype,
                              std::uint64_t elements) = 0;
  // values[i] becomes the sum over ranks, added in rank order: equal on all ranks. Blocks.
  virtual void all_reduce_sum(CollectiveTag tag, double* values, std::uint64_t count) = 0;
  virtual void barrier(CollectiveTag tag) = 0;
  // Called after a local failure: every rank's pending and later calls end in kPeerLost with `why`.
  // Never throws.
  virtual void abort(std::string_view why) noexcept = 0;
};
}  // namespace headrace
