// SPDX-License-Identifier: Apache-2.0
// headrace/collective.hpp: the seam between the ranks of an engine.
//
// A Collective is all that an engine needs to exchange data between ranks. make_collective()
// (headrace/transport.hpp) makes one over threads, MPI, torch's process groups or NCCL. A trainer
// may also implement its own. Each rank holds one Collective, and all ranks make the same calls in
// the same order. Only the data differs.
//
// With several ranks, an engine makes these calls:
//
//   exchange    Four at freeze: two of 32 bytes, one of 32 bytes for each parameter and 24 for each
//               group, and one of 4 bytes. If the settings differ, one more, of their text.
//               One at each gather, step and discard, and one at each switch to another group while
//               gradients are collected: 24 bytes, plus one bit for each parameter of the group
//               whose gradients are being collected.
//               One more at each step: 16 bytes per 65,536 parameters of a rank.
//               A durable engine makes two more at freeze, or four if its store is new, of 1032
//               bytes each, one at each commit(), and one at the first load() after a step.
//               An engine that measures several drives makes at most five more at freeze, of 1032
//               bytes each. save_checkpoint() makes six, of at most 976 bytes each, and
//               load_checkpoint() three. The latency of all these calls matters.
//   all_gather  One per section (a group's parameters of one dtype) of a gather, unless every rank
//               still holds the section.
//   all_to_all_v
//               In its place, with zero_hpz_partition_size: one or two per section.
//   all_to_all  One or several per trained section, when gradients of another group arrive, when
//               the ranks gather, and when they step. With hierarchical_reduce_ranks, in place of
//               each: an all_to_all_v for each node, and with several nodes one more.
//   abort       When the engine has failed, or after the ranks have agreed on a gather or a
//               reduction, this rank's part of it. When close() has waited too long for the others.
//
// Example: two ranks meet in different calls, and their Collective compares calls:
//
//   rank 0  all_gather({7, "gather of h.3"}, stream, {{first, 2048}, {second, 2048}})
//   rank 1  exchange({7, "step"}, mine, all)
//
//   Each rank sends the other its function, tag and size. These differ, so neither call is
//   carried out. Both fail with kPeerLost and the same text:
//
//     rank 1 called exchange 'step' (sequence 7, 16 bytes) where rank 0 called all_gather
//     'gather of h.3' (sequence 7, 4096 bytes): neither was carried out, ...
//
//   Every later call on either rank throws that text again.
//
// This check is a second line of defence. Before each call, the engine's ranks tell each other what
// they are about to do. If rank 0 gathers and rank 1 steps, they meet in the same exchange, and the
// engine names both calls. So a Collective need not compare calls. If it does compare them, any
// difference that it finds is a bug in the engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "headrace/device.hpp"

namespace headrace {
// Names a call. Every rank must make the same calls in the same order. If a rank does not, the
// error names that rank and gives both tags.
struct CollectiveTag {
  std::uint64_t sequence = 0;  // counts an engine's calls from 0
  std::string_view what;       // e.g. "gather of h.3"; valid during the call
  bool of_gradients = false;   // of all_to_all_v: gradients pass, not parameters
};

// Threads: calls come from the trainer's threads, and if takes_any_thread(), from a thread of the
//          engine's too; one at a time per rank. abort() may come from any thread, even during a
//          call.
// Order:   calls are ordered on `stream`. A call sees the results of work that was queued there
//          before the call, and work that is queued there later sees the result of the call. A call
//          may return before its work is done, so the memory given to it must stay valid until the
//          stream has passed the call. exchange() is complete when it returns.
// Throws headrace::Error kPeerLost when another rank left, made a different call, or missed the
//          deadline. From then on, every call throws it. kInvalidArgument if the number of pieces
//          is not the world size. Nothing was sent then, and further calls are possible.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;

  // An engine calls this with its device when the engine is created. From then on, the calls below
  // are ordered on that device's streams, and their pieces may lie in its memory. Throws
  // kOutOfBudget if there is no memory for staging.
  virtual void use_device(const std::shared_ptr<Device>& device) { (void)device; }
  // An engine's pieces lie in this memory of its device, from here until forget_memory(), which
  // comes before the memory is given back and while no call uses it. Only for memory that the
  // engine took from the device, not for memory of the host. Neither waits for calls of others.
  virtual void use_memory(DeviceSpan memory) { (void)memory; }
  virtual void forget_memory(DeviceSpan memory) noexcept { (void)memory; }

  // whole[r] is rank r's piece: world_size pieces of any sizes, also 0, which are the same on every
  // rank. This rank's own piece is already in place. An engine's pieces lie in one buffer, one
  // after the other in rank order.
  virtual void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) = 0;
  // give[r] goes to rank r, and has the same size on every rank. Rank r finds the other ranks'
  // pieces at `take`, one after the other in rank order: (world_size - 1) * give[r].size_bytes
  // bytes. The call does not read this rank's own piece.
  virtual void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                          void* take) = 0;
  // give[r] goes to rank r, and take[r] comes from rank r, which gives as many bytes: world_size
  // pieces each, of any sizes, also 0. This rank's own pieces are ignored. No rank gives a piece
  // larger than largest_bytes, which is the same on every rank. The default throws kUnsupported.
  virtual void all_to_all_v(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                            std::span<const DeviceSpan> take, std::uint64_t largest_bytes);
  // all[r * mine.size() + i] becomes rank r's mine[i]. Both spans are host memory and do not
  // overlap. `mine` has the same size on every rank, and `all` has world_size times that size. The
  // call blocks until every rank has made it.
  virtual void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                        std::span<std::byte> all) = 0;
  // Call this after a local failure. Every rank's pending and later calls then throw kPeerLost with
  // `why`. Never throws, and does not wait for other ranks.
  virtual void abort(std::string_view why) noexcept = 0;
  // The amount of host memory that the Collective holds for bytes in transit, such as a staging
  // buffer. The engine's plan counts this memory.
  virtual std::uint64_t host_bytes() const noexcept { return 0; }
  // Whether calls may come from other threads than the trainer's. Only then can an engine join and
  // reduce ahead of its trainer's calls (headrace.rank_agreement). The same on every rank.
  virtual bool takes_any_thread() const noexcept { return false; }
  // Whether all_to_all_v() is implemented, which zero_optimization.zero_hpz_partition_size and
  // headrace.hierarchical_reduce_ranks need. The same on every rank.
  virtual bool has_all_to_all_v() const noexcept { return false; }
};
}  // namespace headrace
