// SPDX-License-Identifier: Apache-2.0
// headrace/device.hpp: the seam to the processor that computes: streams of work, events between
// them, copies and memory.
//
// The engine needs no more from a device than this. A trainer may implement this interface. If no
// device is given, the engine uses the CPU. The CPU's memory is the host's (shares_host_memory()),
// so nothing is copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "headrace/tensor.hpp"

namespace headrace {
struct DeviceSpan {
  // A device address. Work on a stream can read the bytes there. The CPU can do so only if memory
  // is shared.
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

// An ordered queue of device work. 0 is the device's default stream.
struct Stream {
  std::uintptr_t handle = 0;
};
// A point in a stream. An event with id 0 was never recorded, and waiting for it is an error.
struct Event {
  std::uint64_t id = 0;
};

// Statistics of one piece of an accumulated gradient: a parameter's elements inside one block.
struct GradientPiece {
  double sum_squares = 0;  // of the accumulated values, in the fixed order of docs/architecture.md
  std::uint64_t non_finite = 0;  // how many of them are NaN or infinite
};

// Memory that a device keeps for itself for as long as it exists. The plan counts this memory.
struct DeviceOverhead {
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
};

// Describes one addition: the device adds `source` to `sum`, or writes it over `sum`, element by
// element in f32. The device rounds the result to `sum_dtype` once (to nearest, ties to even). For
// each piece of the result, it reports the sum of squares and the number of values that are not
// finite. The first piece has `first_piece_elements`, which may be fewer than `piece_elements`, the
// size of each other piece.
struct Accumulation {
  const void* source = nullptr;  // device memory, `source_dtype`
  DType source_dtype = DType::kBf16;
  void* sum = nullptr;  // `sum_dtype`; host memory, or device memory before summing over ranks
  DType sum_dtype = DType::kBf16;
  std::uint64_t elements = 0;
  bool overwrite = true;            // false: add to the values at `sum`
  GradientPiece* pieces = nullptr;  // null: no report; always null if `sum` is device memory
  std::uint64_t first_piece_elements = 0;
  std::uint64_t piece_elements = 0;
};

// Threads: every call may come from any thread. Calls for one stream come one at a time.
// Order:   work on one stream runs in order. Only events order the work of different streams.
class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const noexcept = 0;
  // True if device memory is host memory. The engine then reads from drives straight into device
  // memory, and copies nothing. Such a device must finish all work before the call that queues the
  // work returns.
  virtual bool shares_host_memory() const noexcept = 0;

  // Whether the CPU can read and write device memory directly. If it cannot, an adapter must not
  // pass a pointer to device memory to code that runs on the CPU.
  virtual bool host_reads_memory() const noexcept { return true; }

  // Returns 256-byte aligned, zero-filled memory; null when there is none left.
  virtual void* allocate(std::size_t size_bytes) noexcept = 0;
  virtual void deallocate(void* data, std::size_t size_bytes) noexcept = 0;
  virtual DeviceOverhead overhead() const noexcept { return {}; }

  // Page-locks host memory for copies and sums of gradients, so that the device can access it
  // directly; the bytes stay where they are. Optional: without pinning, everything works, but more
  // slowly. If pin() fails, it throws headrace::Error and locks nothing. The engine pins a range
  // once, before it queues work on that range, and unpins the range when that work is done.
  virtual void pin(void*, std::size_t) {}
  virtual void unpin(void*, std::size_t) noexcept {}

  // The GPU that this device's streams are on, as CUDA numbers it in this process; -1: none, or
  // unknown. A device that forwards calls to another device must forward this one too.
  virtual int cuda_ordinal() const noexcept { return -1; }

  virtual Stream create_stream() = 0;
  // Creates a stream for short jobs on which much other work waits. If streams have priorities,
  // this stream gets the highest.
  virtual Stream create_urgent_stream() { return create_stream(); }
  virtual void destroy_stream(Stream stream) noexcept = 0;

  // copy() and fill_zero() queue work on `stream`. `source` and `target` must stay valid until the
  // stream has passed this point.
  virtual void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) = 0;
  virtual void fill_zero(Stream stream, void* target, std::size_t size_bytes) = 0;
  // Queues `work`, and copies the struct. The memory that the struct points to must stay valid
  // until the stream has passed this point. A sum in host memory, and its pieces, are complete when
  // synchronize() returns, or when the function of a later notify() runs. An event does not show
  // that they are complete, because gradients may leave the device by a path other than the stream.
  // Sums are computed in the order of these calls.
  virtual void accumulate(Stream stream, const Accumulation& work) = 0;
  // Runs `function(context)` on the device's own thread, in stream order. The function must not
  // block or call the device.
  virtual void notify(Stream stream, void (*function)(void* context) noexcept, void* context) = 0;

  virtual Event record(Stream stream) = 0;
  // Later work on `stream` waits for `event`. Throws kWrongState for an event that was never
  // recorded.
  virtual void wait(Stream stream, Event event) = 0;
  // Blocks the caller until everything queued on `stream` so far is done.
  virtual void synchronize(Stream stream) = 0;
  // Throws the error that made the device fail, if it has failed. Queues nothing.
  virtual void throw_if_failed() {}
};
}  // namespace headrace
