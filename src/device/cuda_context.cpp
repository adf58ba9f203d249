// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_context.hpp"

#include <cuda.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/units.hpp"
#include "device/cuda_kernels.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"

namespace headrace::device::cuda {
namespace {
// Whether the whole context is lost, and not the call alone. A call's own code does not tell: a
// refused call returns codes of all kinds (for a pin, cudaErrorOperatingSystem). But every later
// call on a lost context fails.
bool context_is_lost() {
  (void)cudaGetLastError();
  const cudaError_t now = cudaStreamQuery(cudaStreamPerThread);
  (void)cudaGetLastError();
  return now != cudaSuccess && now != cudaErrorNotReady;
}

std::string name_of(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}
}  // namespace

bool serves(std::string_view architectures, int major, int minor) noexcept {
  const int wanted = 10 * major + minor;
  int last = 0;
  for (const char *at = architectures.data(), *end = at + architectures.size(); at < end; ++at) {
    int built = 0;
    const auto [after, error] = std::from_chars(at, end, built);
    if (error != std::errc{}) continue;
    at = after;
    if (built / 10 == major && built <= wanted) return true;
    last = built;
  }
  return last != 0 && last <= wanted;
}

namespace {
// The runtime gives device 0 to a thread that never used CUDA. Making that current again would make
// a context there, of hundreds of megabytes. The driver can tell, the runtime has no call for it.
bool has_context(int ordinal) noexcept {
  static const auto state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    (void)cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000,
                                           cudaEnableDefault, &found);
    return reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function);
  }();
  unsigned flags = 0;
  int active = 0;
  return state != nullptr && state(ordinal, &flags, &active) == CUDA_SUCCESS && active != 0;
}
}  // namespace

Context::Use::Use(const Context& context) noexcept {
  (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current == context.ordinal_) return;
  if (current >= 0 && has_context(current)) before_ = current;
  (void)cudaSetDevice(context.ordinal_);  // a failure shows at the call that follows
}
Context::Use::~Use() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}

Context::Context(int ordinal) : ordinal_(ordinal) {
  const CudaFacts facts = cuda_facts();
  const auto gpu = std::ranges::find(facts.gpus, ordinal, &CudaGpu::ordinal);
  if (gpu == facts.gpus.end() && !facts.gpus.empty()) {
    throw Error(Code::kUnsupported, "there is no GPU " + std::to_string(ordinal) + ": " +
                                        std::to_string(facts.gpus.size()) +
                                        " can be seen, numbered from 0. Name one of them, or let "
                                        "CUDA_VISIBLE_DEVICES show more.");
  }
  if (gpu == facts.gpus.end())
    throw Error(Code::kUnsupported, "no GPU can be used: " + facts.missing);
  if (!gpu->served) {
    throw Error(Code::kUnsupported, gpu->name + " has compute capability " +
                                        std::to_string(gpu->compute_major) + "." +
                                        std::to_string(gpu->compute_minor) +
                                        ", and this build has kernels for " + facts.architectures +
                                        " and newer: it cannot be used. Build with "
                                        "-DHEADRACE_CUDA_ARCHITECTURES=native on this machine.");
  }
  name_ = gpu->name + " (cuda:" + std::to_string(ordinal) + ")";
}

cudaStream_t Context::make_stream(Priority priority) {
  int least = 0, greatest = 0;  // CUDA counts downwards; 0 and 0 where it has none
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "looking at stream priorities");
  const int wanted = priority == Priority::kUrgent ? greatest : 0;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, wanted), "making a stream");
  return stream;
}

void Context::note(const char* operation, std::uint64_t bytes, std::uintptr_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  noted_[notes_++ % noted_.size()] = {operation, bytes, stream};
}

std::string Context::text(cudaError_t result, const char* operation) const {
  std::string text = name_ + ": " + operation + ": " + name_of(result);
  if (notes_ == 0) return text;
  text += "; queued before it, the last first:";
  const std::uint64_t kept = std::min<std::uint64_t>(notes_, noted_.size());
  for (std::uint64_t i = 1; i <= kept; ++i) {
    const Noted& noted = noted_[(notes_ - i) % noted_.size()];
    char stream[32];
    std::snprintf(stream, sizeof(stream), " on stream 0x%zx", std::size_t{noted.stream});
    text += std::string(i == 1 ? " " : ", ") + noted.operation + " of " +
            base::format_bytes(noted.bytes) + stream;
  }
  return text;
}

bool Context::fails(cudaError_t result, const char* operation) noexcept {
  if (result == cudaSuccess || result == cudaErrorNotReady || !context_is_lost()) return false;
  const std::lock_guard lock(mutex_);
  if (first_failure_.empty()) {
    try {
      first_failure_ = text(result, operation) +
                       ". A GPU reports an error later than its cause, and does not recover in "
                       "this process: start it again. compute-sanitizer names the cause.";
    } catch (const std::exception&) {
      first_failure_.assign("GPU");  // fits without memory
    }
  }
  failed_.store(true);
  return true;
}

void Context::throw_if_failed() {
  if (!failed_.load()) return;
  const std::lock_guard lock(mutex_);
  throw Error(Code::kFailed, first_failure_);
}

void Context::check(cudaError_t result, const char* operation) {
  throw_if_failed();
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // or the host program would find it at its next call
  if (fails(result, operation)) throw_if_failed();
  const std::lock_guard lock(mutex_);
  if (result == cudaErrorMemoryAllocation) {
    throw Error(Code::kOutOfBudget,
                name_ + ": " + operation +
                    ": the GPU, or the driver in host memory, has no room left: "
                    "nothing was queued. Leave more of it free for the engine.");
  }
  throw Error(Code::kWrongState,
              name_ + ": " + operation + ": " + name_of(result) + ": the work was not queued");
}
}  // namespace headrace::device::cuda
