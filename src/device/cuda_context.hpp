// SPDX-License-Identifier: Apache-2.0
// cuda_context.hpp: one GPU: making it the calling thread's, and what its errors become.
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
  // Throws headrace::Error kUnsupported where `ordinal` is no GPU that can be used.
  explicit Context(int ordinal);

  int ordinal() const noexcept { return ordinal_; }
  const std::string& name() const noexcept { return name_; }  // "NVIDIA H200 (cuda:0)"

  // The GPU is the calling thread's for the length of this; afterwards the one before is. Nor does
  // what is called meanwhile break a graph that the program captures in another thread.
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

  // A stream that the default stream does not hold up; urgent ones go before the rest of what the
  // GPU has to do. Throws as check(). The GPU is the thread's (Use).
  enum class Priority { kNormal, kUrgent };
  cudaStream_t make_stream(Priority priority = Priority::kNormal);

  // Kept, the last few, for the text of an error that comes later than its cause.
  void note(const char* operation, std::uint64_t bytes, std::uintptr_t stream) noexcept;
  // Throws for anything but success: kFailed once the GPU has failed, which it stays; kOutOfBudget,
  // kWrongState for what concerns this call alone.
  void check(cudaError_t result, const char* operation);
  void throw_if_failed();
  bool failed() const noexcept { return failed_.load(); }
  // For threads that cannot throw: remembers an error that no later work survives; true if it is
  // one. The GPU is the thread's (Use).
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
  mutable std::mutex mutex_;  // the rest
  std::string first_failure_;
  std::array<Noted, 6> noted_;
  std::uint64_t notes_ = 0;
};
}  // namespace headrace::device::cuda
