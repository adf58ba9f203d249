// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_streams.hpp"

#include <algorithm>

#include "device/device_rules.hpp"
#include "headrace/error.hpp"

namespace headrace::device::cuda {
Streams::~Streams() {
  const Context::Use use(context_);
  for (const Made& made : made_) {
    (void)cudaStreamDestroy(made.stream);
    (void)cudaStreamDestroy(made.notices);
  }
  (void)cudaGetLastError();
}

Stream Streams::create(Context::Priority priority) {
  const std::lock_guard lock(mutex_);
  const auto unused = std::ranges::find_if(
      made_, [&](const Made& made) { return made.gone && made.priority == priority; });
  if (unused != made_.end()) {
    unused->gone = false;
    return {reinterpret_cast<std::uintptr_t>(unused->stream)};
  }
  made_.reserve(made_.size() + 1);
  Made made{.priority = priority};
  made.stream = context_.make_stream(priority);
  try {
    made.notices = context_.make_stream();
  } catch (...) {
    (void)cudaStreamDestroy(made.stream);
    throw;
  }
  made_.push_back(made);
  return {reinterpret_cast<std::uintptr_t>(made.stream)};
}

cudaStream_t Streams::find(Stream stream) {
  context_.throw_if_failed();
  {
    const std::lock_guard lock(mutex_);
    if (const Made* const ours = made(stream); ours != nullptr && ours->gone)
      throw_unknown_stream(stream);
  }
  refuse_capture(stream_of(stream));
  return stream_of(stream);
}

// A graph would hold this device's events and host functions, which later work uses again.
void Streams::refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked != cudaErrorStreamCaptureImplicit) context_.check(asked, "looking for a capture");
  if (asked == cudaSuccess && status == cudaStreamCaptureStatusNone) return;
  (void)cudaGetLastError();
  throw Error(Code::kWrongState,
              context_.name() +
                  ": the program captures a CUDA graph on this stream, and a graph cannot hold "
                  "what the engine queues: call the engine before the capture begins or after it "
                  "has ended, and capture what lies between.");
}

Streams::Made* Streams::made(Stream stream) {
  const auto found = std::ranges::find(made_, stream_of(stream), &Made::stream);
  return found == made_.end() ? nullptr : &*found;
}

cudaStream_t Streams::beside(Stream stream) {
  const std::lock_guard lock(mutex_);
  const Made* const ours = made(stream);
  return ours == nullptr ? nullptr : ours->notices;
}

bool Streams::holds(Stream stream) {
  const std::lock_guard lock(mutex_);
  const Made* const ours = made(stream);
  return ours != nullptr && !ours->gone;
}

void Streams::give_back(Stream stream) {
  const std::lock_guard lock(mutex_);
  made(stream)->gone = true;
}

void Streams::synchronize() noexcept {
  for (const Made& made : made_) {
    (void)cudaStreamSynchronize(made.stream);
    (void)cudaStreamSynchronize(made.notices);
  }
}
}  // namespace headrace::device::cuda
