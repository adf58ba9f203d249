// SPDX-License-Identifier: Apache-2.0
// cuda_streams.hpp: the streams that a device creates, and those that it is given.
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
  // No work may be in progress.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  Stream create(Context::Priority priority);
  // A stream for queueing work, the device's own or the program's. Throws kWrongState for one of
  // its own that was given back, and if the program captures a graph on it.
  cudaStream_t find(Stream stream);
  // For a stream of the device's own, the one beside it that calls host functions, while the GPU
  // continues with the stream itself. Null for the program's streams.
  cudaStream_t beside(Stream stream);
  bool holds(Stream stream);      // created, and not given back
  void give_back(Stream stream);  // it must be idle
  void synchronize() noexcept;    // all of the device's own

 private:
  struct Made {
    cudaStream_t stream = nullptr, notices = nullptr;
    Context::Priority priority = Context::Priority::kNormal;
    bool gone = false;  // given back; used again later
  };
  Made* made(Stream stream);  // call with mutex_ held; null for the program's
  void refuse_capture(cudaStream_t stream);

  Context& context_;
  std::mutex mutex_;
  std::vector<Made> made_;  // none is destroyed before the device, so that an old handle never
                            // reappears as one of the program's
};
}  // namespace headrace::device::cuda
