// SPDX-License-Identifier: Apache-2.0
// device_cuda.cpp: an NVIDIA GPU behind the device seam.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda_callbacks.hpp"
#include "device/cuda_context.hpp"
#include "device/cuda_events.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_pins.hpp"
#include "device/device_rules.hpp"
#include "device/gradient_landing.hpp"
#include "device/span_updates.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"
#include "platform/machine.hpp"

namespace headrace::device::cuda {
namespace {
std::uint32_t host_threads(const CudaOptions& options) {
  if (options.host_threads != 0) return options.host_threads;
  const std::uint64_t quarter = platform::usable_cpus().value / 4;
  return static_cast<std::uint32_t>(quarter < 1 ? 1 : quarter > 8 ? 8 : quarter);
}

cudaStream_t stream_of(Stream stream) { return reinterpret_cast<cudaStream_t>(stream.handle); }

class CudaDevice final : public Device, public SpanUpdates {
 public:
  explicit CudaDevice(const CudaOptions& options)
      : context_(options.ordinal),
        allocator_(options.allocator),
        events_(context_),
        pins_(context_),
        parts_(make_parts(options)) {}
  ~CudaDevice() override;

  const char* name() const noexcept override { return context_.name().c_str(); }
  bool shares_host_memory() const noexcept override { return false; }
  bool host_reads_memory() const noexcept override { return false; }

  void* allocate(std::size_t size_bytes) noexcept override;
  void deallocate(void* data, std::size_t size_bytes) noexcept override;
  DeviceOverhead overhead() const noexcept override { return cuda_overhead(); }
  void pin(void* data, std::size_t size_bytes) override;
  void unpin(void* data, std::size_t size_bytes) noexcept override;

  int cuda_ordinal() const noexcept override { return context_.ordinal(); }

  Stream create_stream() override { return create(Context::Priority::kNormal); }
  Stream create_urgent_stream() override { return create(Context::Priority::kUrgent); }
  void destroy_stream(Stream stream) noexcept override;

  void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) override;
  void fill_zero(Stream stream, void* target, std::size_t size_bytes) override;
  void accumulate(Stream stream, const Accumulation& work) override;
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override;

  void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) override;

  Event record(Stream stream) override;
  void wait(Stream stream, Event event) override;
  void synchronize(Stream stream) override;
  void throw_if_failed() override { context_.throw_if_failed(); }

 private:
  struct Parts {
    std::unique_ptr<Callbacks> callbacks;
    std::unique_ptr<GradientLanding> landing;
  };
  Parts make_parts(const CudaOptions& options);
  // A stream of ours, and the one beside it on which the host's functions are called: the GPU goes
  // on with the stream itself meanwhile.
  struct Made {
    cudaStream_t stream = nullptr, notices = nullptr;
    Context::Priority priority = Context::Priority::kNormal;
    bool gone = false;  // destroyed, to be used again
  };
  Stream create(Context::Priority priority);
  cudaStream_t find(Stream stream);
  cudaStream_t refuse_capture(cudaStream_t stream);
  // Null for a stream that is not ours.
  cudaStream_t notices_of(Stream stream);
  Made* made(Stream stream);  // with mutex_ held
  void wait_for(std::map<std::uintptr_t, std::uint64_t>& events, Stream stream);
  // The event behind which what arrived on `stream` has landed; 0: nothing is under way.
  std::uint64_t landing_of(Stream stream);
  // Later work on `stream` follows what arrived on it.
  void join(Stream stream);
  void add_on_device(cudaStream_t stream, const Accumulation& work);

  Context context_;
  const CudaAllocator allocator_;
  Events events_;
  Pins pins_;
  Parts parts_;
  std::mutex mutex_;        // the rest
  std::vector<Made> made_;  // all of ours; none is destroyed before the device, so that a handle
                            // that is gone never comes back as the program's own
  std::map<std::uintptr_t, std::uint64_t> landings_, notified_;  // stream: event
};

CudaDevice::Parts CudaDevice::make_parts(const CudaOptions& options) {
  if ((options.allocator.allocate == nullptr) != (options.allocator.deallocate == nullptr)) {
    throw Error(Code::kInvalidArgument,
                "a CudaAllocator has one function of two: memory could not be taken, or not given "
                "back. Give both, or neither.");
  }
  const Context::Use use(context_);
  context_.check(load_kernels(), "loading the kernels");
  Parts parts;
  parts.callbacks = std::make_unique<Callbacks>(context_);
  parts.landing = std::make_unique<GradientLanding>(context_, events_, *parts.callbacks, pins_,
                                                    host_threads(options));
  return parts;
}

CudaDevice::~CudaDevice() {
  const Context::Use use(context_);
  for (const Made& made : made_) {
    (void)cudaStreamSynchronize(made.stream);
    (void)cudaStreamSynchronize(made.notices);
  }
  (void)cudaStreamSynchronize(parts_.landing->landed());
  parts_.callbacks.reset();
  parts_.landing.reset();
  for (const Made& made : made_) {
    (void)cudaStreamDestroy(made.stream);
    (void)cudaStreamDestroy(made.notices);
  }
  (void)cudaGetLastError();
}

void* CudaDevice::allocate(std::size_t size_bytes) noexcept {
  const Context::Use use(context_);
  void* data = nullptr;
  if (allocator_.allocate != nullptr) {
    data = allocator_.allocate(allocator_.context, size_bytes);
  } else if (cudaMalloc(&data, size_bytes == 0 ? 1 : size_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  if (data == nullptr) return nullptr;
  const cudaStream_t stream = parts_.landing->landed();
  if (cudaMemsetAsync(data, 0, size_bytes, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess)
    return data;
  (void)cudaGetLastError();
  deallocate(data, size_bytes);
  return nullptr;
}

void CudaDevice::deallocate(void* data, std::size_t size_bytes) noexcept {
  if (data == nullptr) return;
  const Context::Use use(context_);
  if (allocator_.deallocate != nullptr) {
    (void)cudaDeviceSynchronize();  // as cudaFree does by itself
    allocator_.deallocate(allocator_.context, data, size_bytes);
  } else {
    (void)cudaFree(data);
    (void)cudaGetLastError();
  }
}

void CudaDevice::pin(void* data, std::size_t size_bytes) {
  const Context::Use use(context_);
  pins_.pin(data, size_bytes);
}
void CudaDevice::unpin(void* data, std::size_t size_bytes) noexcept {
  const Context::Use use(context_);
  pins_.unpin(data, size_bytes);
}

Stream CudaDevice::create(Context::Priority priority) {
  const Context::Use use(context_);
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

void CudaDevice::destroy_stream(Stream stream) noexcept {
  const Context::Use use(context_);
  if (notices_of(stream) == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    if (made(stream)->gone) return;
  }
  try {
    synchronize(stream);
  } catch (const std::exception&) {  // kept, and said by the next call that can
  }
  const std::lock_guard lock(mutex_);
  made(stream)->gone = true;
}

cudaStream_t CudaDevice::find(Stream stream) {
  context_.throw_if_failed();
  const std::lock_guard lock(mutex_);
  if (const Made* const ours = made(stream); ours != nullptr && ours->gone)
    throw_unknown_stream(stream);
  return refuse_capture(stream_of(stream));
}

// A graph would hold events and host functions of ours that are used again for others.
cudaStream_t CudaDevice::refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked != cudaErrorStreamCaptureImplicit) context_.check(asked, "looking for a capture");
  if (asked == cudaSuccess && status == cudaStreamCaptureStatusNone) return stream;
  (void)cudaGetLastError();
  throw Error(Code::kWrongState,
              context_.name() +
                  ": the program captures a CUDA graph on this stream, and a graph cannot hold "
                  "what the engine queues: call the engine before the capture begins or after it "
                  "has ended, and capture what lies between.");
}

CudaDevice::Made* CudaDevice::made(Stream stream) {
  const auto found = std::ranges::find(made_, stream_of(stream), &Made::stream);
  return found == made_.end() ? nullptr : &*found;
}

cudaStream_t CudaDevice::notices_of(Stream stream) {
  const std::lock_guard lock(mutex_);
  const Made* const ours = made(stream);
  return ours == nullptr ? nullptr : ours->notices;
}

std::uint64_t CudaDevice::landing_of(Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = landings_.find(stream.handle);
  return found == landings_.end() ? 0 : found->second;
}

void CudaDevice::join(Stream stream) {
  if (const std::uint64_t event = landing_of(stream); event != 0)
    events_.wait(stream_of(stream), event);
}

void CudaDevice::copy(Stream stream, void* target, const void* source, std::size_t size_bytes) {
  const Context::Use use(context_);
  const cudaStream_t queue = find(stream);
  join(stream);
  context_.note("copy", size_bytes, stream.handle);
  pins_.copy(queue, target, source, size_bytes);
}

void CudaDevice::fill_zero(Stream stream, void* target, std::size_t size_bytes) {
  const Context::Use use(context_);
  const cudaStream_t queue = find(stream);
  if (size_bytes == 0) return;
  join(stream);
  context_.note("fill with zero", size_bytes, stream.handle);
  context_.check(cudaMemsetAsync(target, 0, size_bytes, queue), "filling with zero");
}

void CudaDevice::accumulate(Stream stream, const Accumulation& work) {
  const Context::Use use(context_);
  const cudaStream_t queue = find(stream);
  if (work.elements == 0) return;
  context_.note("gradient", work.elements * size_bytes(work.source_dtype), stream.handle);
  cudaPointerAttributes attributes{};
  context_.check(cudaPointerGetAttributes(&attributes, work.sum), "looking at a sum's address");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)
    return add_on_device(queue, work);
  const std::uint64_t landed = parts_.landing->land(queue, work);
  const std::lock_guard lock(mutex_);
  landings_[stream.handle] = landed;
}

void CudaDevice::add_on_device(cudaStream_t stream, const Accumulation& work) {
  if (work.pieces != nullptr) {
    throw Error(Code::kUnsupported, context_.name() +
                                        ": sums of squares are taken where gradients land in host "
                                        "memory; a sum in the GPU's memory has none");
  }
  CastWork cast;
  cast.source = work.source;
  cast.source_dtype = work.source_dtype;
  cast.target = work.sum;
  cast.target_dtype = work.sum_dtype;
  cast.elements = work.elements;
  cast.overwrite = work.overwrite;
  context_.check(launch_cast(cast, stream), "adding a gradient");
}

void CudaDevice::update(Stream stream, const UpdateSpan& span, const UpdateStep& step) {
  const Context::Use use(context_);
  const cudaStream_t queue = find(stream);
  if (span.elements == 0) return;
  join(stream);
  context_.note("update", span.elements * weight_bytes(span.kind), stream.handle);
  context_.check(launch_update(span, step, queue), "updating");
}

// Beside the stream where that is ours, or where something that arrived on it is still to land: the
// GPU does not wait for the host then.
void CudaDevice::notify(Stream stream, void (*function)(void* context) noexcept, void* context) {
  const Context::Use use(context_);
  cudaStream_t queue = find(stream);
  context_.note("notification", 0, stream.handle);
  const std::uint64_t landing = landing_of(stream);
  cudaStream_t beside = notices_of(stream);
  if (beside == nullptr && landing != 0) beside = parts_.landing->landed();
  if (beside != nullptr) {
    events_.wait(beside, events_.record(queue));
    if (landing != 0) events_.wait(beside, landing);
    queue = beside;
  }
  parts_.callbacks->queue(queue, Callbacks::OnFailure::kCall, [=] { function(context); });
  if (beside == nullptr) return;
  try {
    const std::uint64_t called = events_.record(queue);
    const std::lock_guard lock(mutex_);
    notified_[stream.handle] = called;
  } catch (const std::exception&) {
    // It will be called, so this must not say otherwise; a GPU that failed says so at the next
    // call.
  }
}

Event CudaDevice::record(Stream stream) {
  const Context::Use use(context_);
  return {events_.record(find(stream))};
}

void CudaDevice::wait(Stream stream, Event event) {
  const Context::Use use(context_);
  events_.wait(find(stream), event.id);
}

// By an event, since CUDA's own wait for a stream keeps a CPU busy. A GPU that has failed is waited
// for too, which takes no time: what it was given is freed next.
void CudaDevice::synchronize(Stream stream) {
  const Context::Use use(context_);
  if (context_.failed()) {
    (void)cudaStreamSynchronize(parts_.landing->landed());
    (void)cudaStreamSynchronize(stream_of(stream));
  }
  events_.synchronize(events_.record(find(stream)));
  wait_for(landings_, stream);
  wait_for(notified_, stream);
}

void CudaDevice::wait_for(std::map<std::uintptr_t, std::uint64_t>& events, Stream stream) {
  std::unique_lock lock(mutex_);
  const auto found = events.find(stream.handle);
  if (found == events.end()) return;
  const std::uint64_t event = found->second;
  lock.unlock();
  events_.synchronize(event);
  lock.lock();
  if (const auto still = events.find(stream.handle);
      still != events.end() && still->second == event)
    events.erase(still);
}
}  // namespace
}  // namespace headrace::device::cuda

std::shared_ptr<headrace::Device> headrace::make_cuda_device(const CudaOptions& options) {
  return std::make_shared<device::cuda::CudaDevice>(options);
}
