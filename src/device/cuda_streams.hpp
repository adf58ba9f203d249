// SPDX-License-Identifier: Apache-2.0
// cuda_streams.hpp: the streams that a device makes, and those it is given.
#pragma once
#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "device/cuda_context.hpp"
#include "headrace/device.hpp"

namespace headrace::device::cuda {
inline cudaStream_t stream_of(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.handle);
}

// Threads: any, with the GPU in use (Context::Use).
class Streams {
 public:
  explicit Streams(Context& context) : context_(context) {}
  // Nothing may be under way.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  Stream create(Context::Priority priority);
  // A stream that work may be queued on, one of ours or the program's. Throws kWrongState for one
  // of ours that was given back, and where the program captures a graph.
  cudaStream_t find(Stream stream);
  // Of a stream of ours the one beside it on which the host's functions are called: the GPU goes on
  // with the stream itself meanwhile. Null for the program's.
  cudaStream_t beside(Stream stream);
  bool holds(Stream stream);      // made, and not given back
  void give_back(Stream stream);  // it is idle
  void synchronize() noexcept;    // all of ours

 private:
  struct Made {
    cudaStream_t stream = nullptr, notices = nullptr;
    Context::Priority priority = Context::Priority::kNormal;
    bool gone = false;  // given back, to be used again
  };
  Made* made(Stream stream);  // with mutex_ held; null for the program's
  void refuse_capture(cudaStream_t stream);

  Context& context_;
  std::mutex mutex_;
  std::vector<Made> made_;  // none is destroyed before the device, so that a handle that is gone
                            // never comes back as the program's own
};
}  // namespace headrace::device::cuda
