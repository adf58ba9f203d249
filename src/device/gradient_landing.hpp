// SPDX-License-Identifier: Apache-2.0
// gradient_landing.hpp: moves gradients from a GPU to their sums in host memory.
//
// A gradient goes through a ring of slots, in stretches of whole pieces. The stream on which it
// arrives only copies a stretch into a slot, and casts it to the dtype for the transfer. Behind
// that, on streams of their own, one job copies the slot to the host, and another measures it. If
// the slot cannot be written in place as it is, host threads add it to the sum:
//
//   the sum starts here, in a dtype no wider than the gradient's: cast on the GPU, copied into the
//       sum, measured on the GPU
//   otherwise: copied unchanged into the slot's host half; cast, added and measured on the host
//
// So each gradient crosses the link once, in no more bytes than it has.
//
// Example: 5 Mi elements of bf16, the first gradient of a bf16 sum. A slot takes 4 MiB, so slots 0,
// 1 and 2 take stretches of 2, 2 and 1 Mi elements. For slot 0:
//
//   `stream`   waits for slot 0's `free`, fills the slot, records `staged`. It may go on
//   copies_    waits for `staged`, copies the slot into the sum, records `copied`
//   measures_  waits for `staged`, measures the slot, records `measured`
//   landed_    waits for both, stores the pieces, records `free`
//
// The next gradient of this sum is added to it, through slots 3, 4 and 5: copies_ fills the host's
// half of a slot, and landed_ has the host add it, then records by_host_ and `free`. When the sum
// begins anew in the next step, copies_ waits for by_host_ before it writes over the sum.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "async/thread_team.hpp"
#include "device/cuda_callbacks.hpp"
#include "device/cuda_context.hpp"
#include "device/cuda_events.hpp"
#include "device/cuda_overhead.hpp"
#include "device/cuda_pins.hpp"
#include "headrace/device.hpp"

namespace headrace::device::cuda {
class GradientLanding {
 public:
  GradientLanding(Context& context, Events& events, Callbacks& callbacks, Pins& pins,
                  std::uint32_t host_threads);
  // No work may be in progress.
  ~GradientLanding();
  GradientLanding(const GradientLanding&) = delete;
  GradientLanding& operator=(const GradientLanding&) = delete;

  // Queues all of this. The GPU has read `work.source` when `stream` passes this point. Returns the
  // event after which the sum and its pieces are in place. Sums land in the order of these calls.
  // Throws kUnsupported for pieces that do not fit into a slot.
  std::uint64_t land(cudaStream_t stream, const Accumulation& work);
  // A stream that runs behind everything queued so far.
  cudaStream_t landed() const noexcept { return landed_; }

 private:
  struct Slot {
    std::byte* device = nullptr;
    std::byte* host = nullptr;                  // kLandingSlotBytes, then the pieces
    GradientPiece* pieces_by_device = nullptr;  // the pieces, as the GPU addresses them
    cudaEvent_t staged = nullptr, copied = nullptr, measured = nullptr, free = nullptr;
  };
  struct Stretch;
  class Stretches;
  std::uint64_t room_for(const Accumulation& work, bool in_place) const;
  void make(Slot& slot);
  void free_all() noexcept;
  void drain() noexcept;
  void land_in_place(cudaStream_t stream, Slot& slot, const Accumulation& work,
                     const Stretch& stretch);
  void land_by_host(cudaStream_t stream, Slot& slot, const Accumulation& work,
                    const Stretch& stretch);
  void follow(cudaStream_t stream, cudaEvent_t event, cudaStream_t before);
  void add_on_host(const std::byte* source, const Accumulation& work, const Stretch& stretch);

  Context& context_;
  Events& events_;
  Callbacks& callbacks_;
  Pins& pins_;
  async::ThreadTeam team_;
  std::mutex mutex_;  // one gradient at a time
  cudaStream_t copies_ = nullptr, measures_ = nullptr, landed_ = nullptr;
  cudaEvent_t by_host_ = nullptr;  // the last sum that the host has added to
  std::array<Slot, kLandingSlots> slots_;
  std::uint64_t next_slot_ = 0;
};
}  // namespace headrace::device::cuda
