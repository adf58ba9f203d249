// SPDX-License-Identifier: Apache-2.0
// device_cuda.cpp: an NVIDIA GPU behind the device seam.
#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <utility>

#include "device/cuda_callbacks.hpp"
#include "device/cuda_context.hpp"
#include "device/cuda_events.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_memory.hpp"
#include "device/cuda_pins.hpp"
#include "device/cuda_streams.hpp"
#include "device/gradient_landing.hpp"
#include "device/packing.hpp"
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

class CudaDevice final : public Device, public SpanUpdates, public ValuePacking {
 public:
  explicit CudaDevice(const CudaOptions& options);
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

  Stream create_stream() override;
  Stream create_urgent_stream() override;
  void destroy_stream(Stream stream) noexcept override;

  void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) override;
  void fill_zero(Stream stream, void* target, std::size_t size_bytes) override;
  void accumulate(Stream stream, const Accumulation& work) override;
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override;

  void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) override;
  void pack(Stream stream, const PackWork& work) override;
  void unpack(Stream stream, const PackWork& work) override;

  Event record(Stream stream) override;
  void wait(Stream stream, Event event) override;
  void synchronize(Stream stream) override;
  void throw_if_failed() override { context_.throw_if_failed(); }

 private:
  // The stream, for work that follows what arrived on it.
  cudaStream_t begin(Stream stream, const char* operation, std::uint64_t bytes);
  void add_on_device(cudaStream_t stream, const Accumulation& work);

  Context context_;
  Memory memory_;
  Events events_;
  Pins pins_;
  Streams streams_;
  LastEvents landings_;  // behind which what arrived on a stream has landed
  LastEvents notified_;
  std::unique_ptr<Callbacks> callbacks_;
  std::unique_ptr<GradientLanding> landing_;
};

CudaDevice::CudaDevice(const CudaOptions& options)
    : context_(options.ordinal),
      memory_(options.allocator),
      events_(context_),
      pins_(context_),
      streams_(context_),
      landings_(events_),
      notified_(events_) {
  const Context::Use use(context_);
  context_.check(load_kernels(), "loading the kernels");
  auto callbacks = std::make_unique<Callbacks>(context_);
  landing_ = std::make_unique<GradientLanding>(context_, events_, *callbacks, pins_,
                                               host_threads(options));
  callbacks_ = std::move(callbacks);
}

CudaDevice::~CudaDevice() {
  const Context::Use use(context_);
  streams_.synchronize();
  (void)cudaStreamSynchronize(landing_->landed());
  callbacks_.reset();
  landing_.reset();
  (void)cudaGetLastError();
}

void* CudaDevice::allocate(std::size_t size_bytes) noexcept {
  const Context::Use use(context_);
  return memory_.allocate(size_bytes, landing_->landed());
}
void CudaDevice::deallocate(void* data, std::size_t size_bytes) noexcept {
  const Context::Use use(context_);
  memory_.deallocate(data, size_bytes);
}

void CudaDevice::pin(void* data, std::size_t size_bytes) {
  const Context::Use use(context_);
  pins_.pin(data, size_bytes);
}
void CudaDevice::unpin(void* data, std::size_t size_bytes) noexcept {
  const Context::Use use(context_);
  pins_.unpin(data, size_bytes);
}

Stream CudaDevice::create_stream() {
  const Context::Use use(context_);
  return streams_.create(Context::Priority::kNormal);
}
Stream CudaDevice::create_urgent_stream() {
  const Context::Use use(context_);
  return streams_.create(Context::Priority::kUrgent);
}

void CudaDevice::destroy_stream(Stream stream) noexcept {
  const Context::Use use(context_);
  if (!streams_.holds(stream)) return;
  try {
    synchronize(stream);
  } catch (const std::exception&) {  // kept, and said by the next call that can
  }
  streams_.give_back(stream);
}

cudaStream_t CudaDevice::begin(Stream stream, const char* operation, std::uint64_t bytes) {
  const cudaStream_t queue = streams_.find(stream);
  if (const std::uint64_t event = landings_.of(stream); event != 0) events_.wait(queue, event);
  context_.note(operation, bytes, stream.handle);
  return queue;
}

void CudaDevice::copy(Stream stream, void* target, const void* source, std::size_t size_bytes) {
  const Context::Use use(context_);
  pins_.copy(begin(stream, "copy", size_bytes), target, source, size_bytes);
}

void CudaDevice::fill_zero(Stream stream, void* target, std::size_t size_bytes) {
  const Context::Use use(context_);
  if (size_bytes == 0) return void(streams_.find(stream));
  const cudaStream_t queue = begin(stream, "fill with zero", size_bytes);
  context_.check(cudaMemsetAsync(target, 0, size_bytes, queue), "filling with zero");
}

void CudaDevice::accumulate(Stream stream, const Accumulation& work) {
  const Context::Use use(context_);
  const cudaStream_t queue = streams_.find(stream);
  if (work.elements == 0) return;
  context_.note("gradient", work.elements * size_bytes(work.source_dtype), stream.handle);
  cudaPointerAttributes attributes{};
  context_.check(cudaPointerGetAttributes(&attributes, work.sum), "looking at a sum's address");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)
    return add_on_device(queue, work);
  landings_.set(stream, landing_->land(queue, work));
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
  if (span.elements == 0) return void(streams_.find(stream));
  const cudaStream_t queue = begin(stream, "update", span.elements * weight_bytes(span.kind));
  context_.check(launch_update(span, step, queue), "updating");
}

void CudaDevice::pack(Stream stream, const PackWork& work) {
  const Context::Use use(context_);
  const cudaStream_t queue = begin(stream, "packing", work.elements);
  context_.check(launch_pack(work, queue), "packing values for other ranks");
}
void CudaDevice::unpack(Stream stream, const PackWork& work) {
  const Context::Use use(context_);
  const cudaStream_t queue = begin(stream, "unpacking", work.elements);
  context_.check(launch_unpack(work, queue), "unpacking values of other ranks");
}

// Beside the stream where that is ours, or where something that arrived on it is still to land: the
// GPU does not wait for the host then.
void CudaDevice::notify(Stream stream, void (*function)(void* context) noexcept, void* context) {
  const Context::Use use(context_);
  cudaStream_t queue = streams_.find(stream);
  context_.note("notification", 0, stream.handle);
  const std::uint64_t landing = landings_.of(stream);
  cudaStream_t beside = streams_.beside(stream);
  if (beside == nullptr && landing != 0) beside = landing_->landed();
  if (beside != nullptr) {
    events_.wait(beside, events_.record(queue));
    if (landing != 0) events_.wait(beside, landing);
    queue = beside;
  }
  callbacks_->queue(queue, Callbacks::OnFailure::kCall, [=] { function(context); });
  if (beside == nullptr) return;
  try {
    notified_.set(stream, events_.record(queue));
  } catch (const std::exception&) {
    // It will be called, so this must not say otherwise; a GPU that failed says so at the next
    // call.
  }
}

Event CudaDevice::record(Stream stream) {
  const Context::Use use(context_);
  return {events_.record(streams_.find(stream))};
}

void CudaDevice::wait(Stream stream, Event event) {
  const Context::Use use(context_);
  events_.wait(streams_.find(stream), event.id);
}

// By an event, since CUDA's own wait for a stream keeps a CPU busy. A GPU that has failed is waited
// for too, which takes no time: what it was given is freed next.
void CudaDevice::synchronize(Stream stream) {
  const Context::Use use(context_);
  if (context_.failed()) {
    (void)cudaStreamSynchronize(landing_->landed());
    (void)cudaStreamSynchronize(stream_of(stream));
  }
  events_.synchronize(events_.record(streams_.find(stream)));
  landings_.synchronize(stream);
  notified_.synchronize(stream);
}
}  // namespace
}  // namespace headrace::device::cuda

std::shared_ptr<headrace::Device> headrace::make_cuda_device(const CudaOptions& options) {
  return std::make_shared<device::cuda::CudaDevice>(options);
}
