// SPDX-License-Identifier: Apache-2.0
#include "device/gradient_landing.hpp"

#include <algorithm>
#include <cstring>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "device/cuda_kernels.hpp"
#include "device/host_memory.hpp"
#include "headrace/error.hpp"
#include "kernels/gradient_pass.hpp"

namespace headrace::device::cuda {
namespace {
const void* at(const void* data, std::uint64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
void* at(void* data, std::uint64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

// Elements of a piece that is whole.
std::uint64_t piece_of(const Accumulation& work) {
  return work.piece_elements != 0 ? work.piece_elements : work.elements;
}
}  // namespace

// Elements [first, first + elements) of the work, whose first piece they begin.
struct GradientLanding::Stretch {
  std::uint64_t first = 0, elements = 0;
  std::uint64_t first_piece = 0, pieces = 0;  // index, number
  std::uint64_t first_piece_elements = 0;
};

// A gradient in stretches of at most `room` elements: where it has pieces, of whole ones, as many
// as a slot has room for.
class GradientLanding::Stretches {
 public:
  Stretches(const Accumulation& work, std::uint64_t room)
      : work_(work),
        room_(room),
        next_piece_(work.first_piece_elements != 0 ? work.first_piece_elements : piece_of(work)) {}

  // To the next one, at first the first; false behind the last.
  bool next() {
    now_.first += now_.elements;
    now_.first_piece += now_.pieces;
    const std::uint64_t left = work_.elements - now_.first;
    now_.first_piece_elements = std::min(next_piece_, left);
    now_.elements = std::min(left, room_);
    if (work_.pieces != nullptr && left != 0) take_whole_pieces(left);
    return left != 0;
  }
  const Stretch& now() const { return now_; }

 private:
  void take_whole_pieces(std::uint64_t left) {
    const std::uint64_t piece = piece_of(work_);
    const std::uint64_t whole =
        std::min((room_ - now_.first_piece_elements) / piece, kLandingPieces - 1);
    now_.elements = std::min(left, now_.first_piece_elements + whole * piece);
    now_.pieces = 1 + base::ceil_div(now_.elements - now_.first_piece_elements, piece);
    next_piece_ = piece;
  }

  const Accumulation& work_;
  const std::uint64_t room_;
  std::uint64_t next_piece_;
  Stretch now_;
};

GradientLanding::GradientLanding(Context& context, Events& events, Callbacks& callbacks, Pins& pins,
                                 std::uint32_t host_threads)
    : context_(context),
      events_(events),
      callbacks_(callbacks),
      pins_(pins),
      team_(host_threads, {.name = "headrace-sum",
                           .where_refused = async::ThreadTeam::WhereRefused::kWorkWithFewer}) {
  try {
    copies_ = context_.make_stream();
    // Its blocks are few, and a slot waits for them.
    measures_ = context_.make_stream(Context::Priority::kUrgent);
    landed_ = context_.make_stream();
    context_.check(cudaEventCreateWithFlags(&by_host_, cudaEventDisableTiming), "making an event");
    for (Slot& slot : slots_) make(slot);
  } catch (...) {
    free_all();
    throw;
  }
}

GradientLanding::~GradientLanding() { free_all(); }

void GradientLanding::make(Slot& slot) {
  void* memory = nullptr;
  context_.check(cudaMalloc(&memory, kLandingSlotBytes), "allocating what gradients leave through");
  slot.device = static_cast<std::byte*>(memory);
  slot.host = static_cast<std::byte*>(allocate_host_memory(kLandingHalfBytes));
  if (slot.host == nullptr) {
    throw Error(Code::kOutOfBudget, context_.name() + ": no host memory for what gradients leave " +
                                        "through: " + base::format_bytes(kLandingHalfBytes));
  }
  pins_.pin(slot.host, kLandingHalfBytes);
  void* pieces = nullptr;
  context_.check(cudaHostGetDevicePointer(&pieces, slot.host + kLandingSlotBytes, 0),
                 "mapping host memory");
  slot.pieces_by_device = static_cast<GradientPiece*>(pieces);
  for (cudaEvent_t* const event : {&slot.staged, &slot.copied, &slot.measured, &slot.free}) {
    context_.check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
  }
}

// Returns when nothing is under way to a slot or a sum.
void GradientLanding::drain() noexcept {
  for (const cudaStream_t stream : {copies_, measures_, landed_}) {
    if (stream != nullptr) (void)cudaStreamSynchronize(stream);
  }
  (void)cudaGetLastError();
}

void GradientLanding::free_all() noexcept {
  drain();
  for (Slot& slot : slots_) {
    for (const cudaEvent_t event : {slot.staged, slot.copied, slot.measured, slot.free}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
    if (slot.host != nullptr) pins_.unpin(slot.host, kLandingHalfBytes);
    free_host_memory(slot.host, kLandingHalfBytes);
    if (slot.device != nullptr) (void)cudaFree(slot.device);
  }
  if (by_host_ != nullptr) (void)cudaEventDestroy(by_host_);
  for (const cudaStream_t stream : {copies_, measures_, landed_}) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
}

void GradientLanding::follow(cudaStream_t stream, cudaEvent_t event, cudaStream_t before) {
  context_.check(cudaEventRecord(event, before), "recording an event");
  context_.check(cudaStreamWaitEvent(stream, event, 0), "waiting for an event");
}

std::uint64_t GradientLanding::land(cudaStream_t stream, const Accumulation& work) {
  const bool in_place =
      work.overwrite && size_bytes(work.sum_dtype) <= size_bytes(work.source_dtype);
  Stretches stretches(work, room_for(work, in_place));
  const std::lock_guard lock(mutex_);
  while (stretches.next()) {
    Slot& slot = slots_[next_slot_++ % kLandingSlots];
    try {
      context_.check(cudaStreamWaitEvent(stream, slot.free, 0), "waiting for an event");
      if (in_place) {
        land_in_place(stream, slot, work, stretches.now());
      } else {
        land_by_host(stream, slot, work, stretches.now());
      }
      context_.check(cudaEventRecord(slot.free, landed_), "recording an event");
    } catch (...) {  // of what was queued before it failed no event says the end
      (void)cudaStreamSynchronize(stream);
      drain();
      throw;
    }
  }
  return events_.record(landed_);
}

// Elements that a slot takes.
std::uint64_t GradientLanding::room_for(const Accumulation& work, bool in_place) const {
  const std::uint64_t room =
      kLandingSlotBytes / size_bytes(in_place ? work.sum_dtype : work.source_dtype);
  const std::uint64_t piece = piece_of(work);
  if (work.pieces == nullptr || std::min(piece, work.elements) <= room) return room;
  throw Error(Code::kUnsupported,
              context_.name() + ": a gradient's sum of squares cannot be taken over pieces of " +
                  std::to_string(piece) + " elements; " + std::to_string(room) +
                  " is the most that a GPU takes");
}

void GradientLanding::land_in_place(cudaStream_t stream, Slot& slot, const Accumulation& work,
                                    const Stretch& stretch) {
  CastWork cast;
  cast.source = at(work.source, stretch.first * size_bytes(work.source_dtype));
  cast.source_dtype = work.source_dtype;
  cast.target = slot.device;
  cast.target_dtype = work.sum_dtype;
  cast.elements = stretch.elements;
  context_.check(launch_cast(cast, stream), "casting a gradient");
  const std::uint64_t bytes = size_bytes(work.sum_dtype);
  follow(copies_, slot.staged, stream);
  context_.check(cudaStreamWaitEvent(copies_, by_host_, 0), "waiting for an event");
  pins_.copy(copies_, at(work.sum, stretch.first * bytes), slot.device, stretch.elements * bytes);
  if (work.pieces != nullptr) {
    context_.check(cudaStreamWaitEvent(measures_, slot.staged, 0), "waiting for an event");
    MeasureWork measure;
    measure.values = slot.device;
    measure.dtype = work.sum_dtype;
    measure.elements = stretch.elements;
    measure.first_piece_elements = stretch.first_piece_elements;
    measure.piece_elements = work.piece_elements != 0 ? work.piece_elements : stretch.elements;
    measure.pieces = slot.pieces_by_device;  // a copy of so few would wait behind the large ones
    context_.check(launch_measure(measure, measures_), "measuring a gradient");
    const std::uint64_t pieces_bytes = stretch.pieces * sizeof(GradientPiece);
    follow(landed_, slot.measured, measures_);
    callbacks_.queue(landed_, Callbacks::OnFailure::kDrop,
                     [from = slot.host + kLandingSlotBytes, to = work.pieces + stretch.first_piece,
                      pieces_bytes] { std::memcpy(to, from, pieces_bytes); });
  }
  follow(landed_, slot.copied, copies_);
}

void GradientLanding::land_by_host(cudaStream_t stream, Slot& slot, const Accumulation& work,
                                   const Stretch& stretch) {
  const std::uint64_t bytes = size_bytes(work.source_dtype);
  context_.check(cudaMemcpyAsync(slot.device, at(work.source, stretch.first * bytes),
                                 stretch.elements * bytes, cudaMemcpyDeviceToDevice, stream),
                 "staging a gradient");
  follow(copies_, slot.staged, stream);
  pins_.copy(copies_, slot.host, slot.device, stretch.elements * bytes);
  follow(landed_, slot.copied, copies_);
  callbacks_.queue(landed_, Callbacks::OnFailure::kDrop,
                   [this, from = slot.host, work, stretch] { add_on_host(from, work, stretch); });
  context_.check(cudaEventRecord(by_host_, landed_), "recording an event");
}

// A piece, or without pieces a block, per unit.
void GradientLanding::add_on_host(const std::byte* source, const Accumulation& work,
                                  const Stretch& stretch) {
  const bool pieces = work.pieces != nullptr;
  const std::uint64_t unit = !pieces                    ? base::kBlockElements
                             : work.piece_elements != 0 ? work.piece_elements
                                                        : stretch.elements;
  const std::uint64_t head =
      pieces ? stretch.first_piece_elements : std::min(unit, stretch.elements);
  const std::uint64_t units = 1 + base::ceil_div(stretch.elements - head, unit);
  auto add = [&](std::uint64_t i) {
    const std::uint64_t first = i == 0 ? 0 : head + (i - 1) * unit;
    const std::uint64_t end = std::min(head + i * unit, stretch.elements);
    Accumulation part = work;
    part.source = source + first * size_bytes(work.source_dtype);
    part.sum = at(work.sum, (stretch.first + first) * size_bytes(work.sum_dtype));
    part.elements = end - first;
    part.pieces = pieces ? work.pieces + stretch.first_piece + i : nullptr;
    part.first_piece_elements = part.piece_elements = end - first;
    kernels::accumulate_on_host(part);
  };
  team_.run(units, add);
}
}  // namespace headrace::device::cuda
