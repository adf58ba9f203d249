// SPDX-License-Identifier: Apache-2.0
// cuda_context.hpp: one GPU: makes it the calling thread's, and converts its errors.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace headrace::device::cuda {
// Threads: any.
class Context {
 public:
  // Throws headrace::Error kUnsupported if `ordinal` is not a usable GPU.
  explicit Context(int ordinal);

  int ordinal() const noexcept { return ordinal_; }
  const std::string& name() const noexcept { return name_; }  // "NVIDIA H200 (cuda:0)"

  // Makes the GPU the calling thread's for a scope, and then restores the previous one. Calls
  // within the scope do not break a graph that the program captures in another thread.
  class Use {
   public:
    explicit Use(const Context& context) noexcept;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    int before_ = -1;                                            // -1: it was this one
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own
  };

  // Creates a stream that the default stream does not delay. Urgent streams run before the other
  // work of the GPU. Throws as check(). The GPU is the thread's (Use).
  enum class Priority { kNormal, kUrgent };
  cudaStream_t make_stream(Priority priority = Priority::kNormal);

  // Remembers the last few operations, for the text of an error that is reported later.
  void note(const char* operation, std::uint64_t bytes, std::uintptr_t stream) noexcept;
  // Throws for anything but success: kFailed from the GPU's first failure on; kOutOfBudget or
  // kWrongState for an error of this call alone.
  void check(cudaError_t result, const char* operation);
  void throw_if_failed();
  bool failed() const noexcept { return failed_.load(); }
  // For threads that cannot throw: remembers an error that no later work survives, and returns true
  // for such an error. The GPU is the thread's (Use).
  bool fails(cudaError_t result, const char* operation) noexcept;

 private:
  struct Noted {
    const char* operation = nullptr;
    std::uint64_t bytes = 0;
    std::uintptr_t stream = 0;
  };
  std::string text(cudaError_t result, const char* operation) const;

  int ordinal_;
  std::string name_;
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;  // protects the rest
  std::string first_failure_;
  std::array<Noted, 6> noted_;
  std::uint64_t notes_ = 0;
};
}  // namespace headrace::device::cuda
