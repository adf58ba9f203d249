// SPDX-License-Identifier: Apache-2.0
// headrace/collective.hpp: the seam between ranks.
//
// This is all that an engine needs to exchange data between ranks. The library implements it for
// ranks in one process and for ranks over NCCL (headrace/nccl.hpp). A trainer may implement it over
// MPI or torch's process groups. Each rank holds one Collective, and all ranks make the same calls
// in the same order. Only the data differ.
//
// With several ranks, an engine makes these calls:
//
//   exchange        at freeze three: of 24 bytes; of 32 for each parameter and 24 for each group;
//                   of 8 for each line of the settings. After that 16 bytes for each gather, step,
//                   discard and change of the group whose gradients are collected: latency counts
//   all_gather      one per section (a group's parameters of one dtype) of a gather, unless every
//                   rank still holds them
//   reduce_scatter  one per trained section, when another group's gradients come, and at the step
//   all_reduce_sum  one per step, of 2 doubles and one per parameter
//   barrier         none
//   abort           when it has failed
//
// Two ranks that meet in different calls, over a Collective that compares them:
//
//   rank 0  all_gather({7, "gather of h.3"}, stream, {data, 4096})
//   rank 1  all_reduce_sum({7, "gradient norm"}, values, 5)
//
//   Each rank sends the other its function, tag and size. The two differ, so neither call is
//   carried out, and both fail with kPeerLost and the same text:
//     rank 1 called all_reduce_sum 'gradient norm' (sequence 7, 5 values) where rank 0 called
//     all_gather 'gather of h.3' (sequence 7, 4096 bytes): neither was carried out, ...
//   Every later call on either rank throws that text again.
//
// This check is a second line of defence. Before each call, the engine's ranks exchange what they
// are about to do. If rank 0 gathers and rank 1 steps, they meet in the same exchange, and the
// engine names both calls. So a Collective need not compare calls. One that does finds only bugs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "headrace/device.hpp"

namespace headrace {
// Names a call. Every rank must make the same calls in the same order; an error names a rank that
// does not, with both tags.
struct CollectiveTag {
  std::uint64_t sequence = 0;  // counts an engine's calls from 0
  std::string_view what;       // e.g. "gather of h.3"; lasts as long as the call
};

// Threads: the trainer's, one call at a time per rank; abort() from any, beside a call that waits.
// Order:   stream-ordered: a call sees what was queued on `stream` before it, later work on
//          `stream` sees its result. It may return before the work is done; memory that it was
//          given stays until the stream has passed it. A call without a stream is done when it
//          returns.
// Throws headrace::Error kPeerLost when another rank left, made a different call, or missed the
//          deadline; from then on every call throws it. kInvalidArgument for a size that cannot be
//          divided: nothing was sent, and the next call may follow.
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
  // all[r * mine.size() + i] becomes rank r's mine[i]. Host memory; `mine` is of the same size on
  // every rank, `all` world_size times that and apart from it. Blocks.
  // Without an implementation of its own: one all_reduce_sum, with six bytes in each value.
  virtual void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                        std::span<std::byte> all);
  virtual void barrier(CollectiveTag tag) = 0;
  // After a local failure: every rank's pending and later calls throw kPeerLost with `why`. Never
  // throws itself, and does not wait.
  virtual void abort(std::string_view why) noexcept = 0;
};
}  // namespace headrace
