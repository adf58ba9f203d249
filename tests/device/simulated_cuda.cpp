// SPDX-License-Identifier: Apache-2.0
#include "device/simulated_cuda.hpp"

#include <cuda.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "device/simulated_cuda_state.hpp"

namespace headrace::device::simulated_cuda {
namespace {
thread_local int current_device = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;
}  // namespace

Gpu& gpu() {
  static Gpu the_gpu;
  return the_gpu;
}

cudaError_t ends_in(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// After which a real context serves no call any more.
bool loses_the_context(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

// What this call has to end in before it does anything.
cudaError_t before(const char* function) {
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  if (in_host_function) {
    ++g.counters.calls_in_host_functions;
    return ends_in(cudaErrorNotPermitted);
  }
  g.of[current_device].has_context = true;
  const auto planned = g.failing_calls.find(function);
  if (planned != g.failing_calls.end() && planned->second.calls-- == 0) {
    const cudaError_t error = planned->second.error;
    g.failing_calls.erase(planned);
    if (loses_the_context(error)) g.of[current_device].failed = error;
    return ends_in(error);
  }
  return ends_in(g.of[current_device].failed.load());
}

// Both ends of an allocation: to change all of it for each operation would take most of the time.
void protect_ends(void* memory, std::size_t bytes, int protection) {
  if (!gpu().options.protects) protection = PROT_READ | PROT_WRITE;
  constexpr std::size_t kEnd = 16384;
  auto* const begin = static_cast<std::byte*>(memory);
  // A range that is freed meanwhile is gone: this fails, and nobody works on it.
  (void)::mprotect(begin, std::min(kEnd, bytes), protection);
  if (bytes > kEnd) (void)::mprotect(begin + bytes - kEnd, kEnd, protection);
}

// On the GPUs' thread: device memory can be touched for the length of this, that of other GPUs by
// copies alone.
enum class Touches { kOwnMemory, kAllMemory };
void run_on_gpu(int ordinal, Touches touches, const std::function<void()>& work) {
  Gpu& g = gpu();
  if (g.of[ordinal].failed.load() != cudaSuccess) return;
  std::vector<std::pair<void*, std::size_t>> memory;
  {
    const std::lock_guard lock(g.mutex);
    for (const auto& [begin, allocation] : g.allocations) {
      if (touches == Touches::kAllMemory || allocation.gpu == ordinal)
        memory.emplace_back(reinterpret_cast<void*>(begin), allocation.bytes);
    }
  }
  for (const auto& [begin, bytes] : memory) protect_ends(begin, bytes, PROT_READ | PROT_WRITE);
  work();
  for (const auto& [begin, bytes] : memory) protect_ends(begin, bytes, PROT_NONE);
}

// The queue that the calling thread names by `stream`: the default stream is its current GPU's.
std::uintptr_t queue_of(std::uintptr_t stream) {
  constexpr std::uintptr_t kLegacy = 1;
  return stream <= kLegacy ? static_cast<std::uintptr_t>(current_device) : stream;
}
std::uintptr_t queue_of(cudaStream_t stream) {
  return queue_of(reinterpret_cast<std::uintptr_t>(stream));
}

// Why nothing can be queued on it; of the streams of other GPUs than the thread's current one
// copies alone take work.
cudaError_t refused_by(std::uintptr_t queue, Touches touches) {
  const int ordinal = gpu().queues->gpu_of(queue);
  if (ordinal < 0 || (touches == Touches::kOwnMemory && ordinal != current_device))
    return ends_in(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(gpu().mutex);
  return ends_in(gpu().capturing.contains(queue) ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

void queue_work(std::uintptr_t queue, Touches touches, std::function<void()> work) {
  const int ordinal = gpu().queues->gpu_of(queue);
  gpu().queues->run(queue, Queues::By::kGpu, [ordinal, touches, work = std::move(work)] {
    run_on_gpu(ordinal, touches, work);
  });
}

cudaError_t launch(std::uintptr_t stream, std::function<void()> kernel) {
  const std::uintptr_t queue = queue_of(stream);
  const cudaError_t refused = refused_by(queue, Touches::kOwnMemory);
  if (refused == cudaSuccess) queue_work(queue, Touches::kOwnMemory, std::move(kernel));
  return refused;
}

void plug_in(const GpuOptions& options) {
  Gpu& g = gpu();
  g.queues.reset();
  const std::lock_guard lock(g.mutex);
  for (const auto& [begin, allocation] : g.allocations)
    (void)::munmap(reinterpret_cast<void*>(begin), allocation.bytes);
  g.allocations.clear();
  g.registrations.clear();
  g.streams.clear();
  g.capturing.clear();
  g.failing_calls.clear();
  for (Gpu::Own& own : g.of) {
    own.failed = cudaSuccess;
    own.has_context = false;
  }
  current_device = 0;
  g.counters = {};
  g.options = options;
  g.queues =
      std::make_unique<Queues>(QueueOptions{.seed = options.seed,
                                            .late_microseconds_max = options.late_microseconds_max,
                                            .hardware_queues = options.hardware_queues,
                                            .gpus = options.gpus});
}

void fail_call(const char* name, cudaError_t error, std::uint64_t calls) {
  const std::lock_guard lock(gpu().mutex);
  gpu().failing_calls[name] = {error, calls};
}
void fail_gpu(std::uintptr_t stream, cudaError_t error) {
  const std::uintptr_t queue = queue_of(stream);
  const int ordinal = gpu().queues->gpu_of(queue);
  gpu().queues->run(queue, Queues::By::kGpu,
                    [error, ordinal] { gpu().of[ordinal].failed = error; });
}
bool has_context(int ordinal) {
  const std::lock_guard lock(gpu().mutex);
  return gpu().of[ordinal].has_context;
}
int priority_of(std::uintptr_t stream) {
  const std::lock_guard lock(gpu().mutex);
  return gpu().streams.at(stream);
}
Counters counters() {
  const std::lock_guard lock(gpu().mutex);
  return gpu().counters;
}

namespace {
std::size_t bytes_of(std::size_t registration) { return registration; }
std::size_t bytes_of(const Gpu::Allocation& allocation) { return allocation.bytes; }

// The begin and end of the range of `ranges` that holds `address`; nulls where none does.
template <class Ranges>
std::pair<std::uintptr_t, std::uintptr_t> range_of(const Ranges& ranges, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return {};
  const auto& [begin, held] = *std::prev(next);
  return at < begin + bytes_of(held) ? std::pair{begin, begin + bytes_of(held)}
                                     : std::pair<std::uintptr_t, std::uintptr_t>{};
}

enum class Side { kDevice, kRegistered, kPageable, kStraddling };
Side side_of(const void* address, std::size_t bytes) {
  const auto end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  Gpu& g = gpu();
  if (const auto [b, e] = range_of(g.allocations, address); e != 0)
    return end <= e ? Side::kDevice : Side::kStraddling;
  if (const auto [b, e] = range_of(g.registrations, address); e != 0)
    return end <= e ? Side::kRegistered : Side::kStraddling;
  const auto next = g.registrations.upper_bound(reinterpret_cast<std::uintptr_t>(address));
  return next != g.registrations.end() && next->first < end ? Side::kStraddling : Side::kPageable;
}

struct SimulatedEvent {
  int gpu = current_device;
  bool blocking_sync = false;
  Point passed = std::make_shared<std::atomic<bool>>(true);
};
SimulatedEvent& of(cudaEvent_t event) { return *reinterpret_cast<SimulatedEvent*>(event); }
void count_spinning_wait() {
  const std::lock_guard lock(gpu().mutex);
  ++gpu().counters.spinning_waits;
}

// With a registration: they are of whole pages.
bool shares_a_page(const void* data, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(data) / kPage;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes + kPage - 1) / kPage;
  return std::ranges::any_of(gpu().registrations, [&](const auto& registration) {
    const auto& [from, size] = registration;
    return from / kPage < end && begin < (from + size + kPage - 1) / kPage;
  });
}

// Of the calling thread's own work: a machine that is busy with other things adds nothing.
std::uint64_t cpu_microseconds() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

void call_host_function(cudaHostFn_t function, void* data) {
  const std::uint64_t begin = cpu_microseconds();
  in_host_function = true;
  function(data);
  in_host_function = false;
  const bool is_long = cpu_microseconds() - begin > kHostFunctionMicroseconds;
  const std::lock_guard lock(gpu().mutex);
  ++gpu().counters.host_functions;
  gpu().counters.long_host_functions += is_long ? 1 : 0;
}

// With the mutex held.
std::uint64_t free_bytes_of(int ordinal) {
  std::uint64_t bytes = gpu().options.memory_bytes;
  for (const auto& [begin, allocation] : gpu().allocations)
    bytes -= allocation.gpu == ordinal ? allocation.bytes : 0;
  return bytes;
}

CUresult primary_context_state(CUdevice ordinal, unsigned* flags, int* active) {
  *flags = 0;
  *active = has_context(ordinal) ? 1 : 0;
  return CUDA_SUCCESS;
}
}  // namespace

extern "C" {
#define BEFORE() \
  if (const cudaError_t refused = before(__func__); refused != cudaSuccess) return refused

cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpu().options.missing == cudaSuccess ? gpu().options.gpus : 0;
  return ends_in(gpu().options.missing);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpu().options.gpus) return ends_in(cudaErrorInvalidDevice);
  current_device = device;
  const std::lock_guard lock(gpu().mutex);
  gpu().of[device].has_context = true;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  const bool known = std::strcmp(name, "cuDevicePrimaryCtxGetState") == 0;
  *function = known ? reinterpret_cast<void*>(&primary_context_state) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "Simulated GPU");
  properties->major = gpu().options.compute_major;
  properties->minor = gpu().options.compute_minor;
  properties->totalGlobalMem = gpu().options.memory_bytes;
  properties->asyncEngineCount = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) {
  std::strncpy(id, "0000:01:00.0", static_cast<std::size_t>(size));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = gpu().options.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  *total_bytes = gpu().options.memory_bytes;
  *free_bytes = free_bytes_of(current_device);
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorOperatingSystem:
      return "cudaErrorOperatingSystem";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "cudaErrorOther";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "of the simulated GPU"; }
cudaError_t cudaGetLastError() {
  const cudaError_t failed = gpu().of[current_device].failed.load();
  if (failed != cudaSuccess) return failed;
  return std::exchange(last_error, cudaSuccess);
}

// ---- memory ----

cudaError_t cudaMalloc(void** data, std::size_t size_bytes) {
  BEFORE();
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  if (size_bytes > free_bytes_of(current_device)) return ends_in(cudaErrorMemoryAllocation);
  const std::size_t mapped = base::align_up(size_bytes, 4096);
  void* const memory = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ends_in(cudaErrorMemoryAllocation);
  // What real memory holds at first is anything.
  (void)::mprotect(memory, mapped, PROT_READ | PROT_WRITE);
  std::memset(memory, 0xa5, mapped);
  protect_ends(memory, mapped, PROT_NONE);
  g.allocations[reinterpret_cast<std::uintptr_t>(memory)] = {mapped, current_device};
  g.counters.allocated_bytes += mapped;
  g.counters.allocated_bytes_max =
      std::max(g.counters.allocated_bytes_max, g.counters.allocated_bytes);
  *data = memory;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  gpu().queues->synchronize_gpu(current_device);
  return ends_in(gpu().of[current_device].failed.load());
}
// Waits for all that is queued, as the real one does.
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  Gpu& g = gpu();
  for (int ordinal = 0; ordinal < g.options.gpus; ++ordinal) g.queues->synchronize_gpu(ordinal);
  const std::lock_guard lock(g.mutex);
  const auto found = g.allocations.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == g.allocations.end()) return ends_in(cudaErrorInvalidValue);
  const auto [bytes, ordinal] = found->second;
  g.counters.allocated_bytes -= bytes;
  (void)::munmap(data, bytes);
  g.allocations.erase(found);
  return ends_in(g.of[ordinal].failed.load());
}
cudaError_t cudaHostRegister(void* data, std::size_t size_bytes, unsigned) {
  BEFORE();
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  if (shares_a_page(data, size_bytes)) return ends_in(cudaErrorHostMemoryAlreadyRegistered);
  if (g.counters.registered_bytes + size_bytes > g.options.registered_bytes_max)
    return ends_in(g.options.registration_refused_by);
  g.registrations[reinterpret_cast<std::uintptr_t>(data)] = size_bytes;
  g.counters.registered_bytes += size_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  const auto found = g.registrations.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == g.registrations.end()) return ends_in(cudaErrorHostMemoryNotRegistered);
  g.counters.registered_bytes -= found->second;
  g.registrations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  if (side_of(host, 1) != Side::kRegistered) return ends_in(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  std::memset(attributes, 0, sizeof(*attributes));
  const Side side = side_of(data, 1);
  attributes->type = side == Side::kDevice       ? cudaMemoryTypeDevice
                     : side == Side::kRegistered ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  BEFORE();
  {
    const std::lock_guard lock(gpu().mutex);
    if (side_of(data, bytes) == Side::kStraddling) return ends_in(cudaErrorInvalidValue);
  }
  return launch(reinterpret_cast<std::uintptr_t>(stream), [=] { std::memset(data, value, bytes); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  BEFORE();
  Gpu& g = gpu();
  const std::uintptr_t queue = queue_of(stream);
  if (const cudaError_t refused = refused_by(queue, Touches::kAllMemory); refused != cudaSuccess)
    return refused;
  Side to_side, from_side;
  {
    const std::lock_guard lock(g.mutex);
    to_side = side_of(to, bytes);
    from_side = side_of(from, bytes);
    if (to_side == Side::kStraddling || from_side == Side::kStraddling)
      return ends_in(cudaErrorInvalidValue);
    if (to_side == Side::kDevice && from_side != Side::kDevice) g.counters.to_gpu_bytes += bytes;
    if (to_side != Side::kDevice && from_side == Side::kDevice) g.counters.to_host_bytes += bytes;
    const bool pageable = to_side == Side::kPageable || from_side == Side::kPageable;
    g.counters.unregistered_copies += pageable && bytes != 0 ? 1 : 0;
  }
  if (from_side == Side::kPageable) {  // taken before the call returns
    if (g.options.pageable_copies_wait) g.queues->synchronize(queue);
    const auto* begin = static_cast<const unsigned char*>(from);
    queue_work(queue, Touches::kAllMemory,
               [to, taken = std::vector<unsigned char>(begin, begin + bytes)] {
                 std::memmove(to, taken.data(), taken.size());
               });
    return cudaSuccess;
  }
  queue_work(queue, Touches::kAllMemory, [=] { std::memmove(to, from, bytes); });
  if (to_side == Side::kPageable) g.queues->synchronize(queue);
  return cudaSuccess;
}

// ---- streams ----

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  BEFORE();
  *least = 0;
  *greatest = kUrgent;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  BEFORE();
  const std::uintptr_t made = gpu().queues->create_stream(current_device);
  const std::lock_guard lock(gpu().mutex);
  gpu().streams[made] = priority;
  ++gpu().counters.streams;
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::uintptr_t queue = reinterpret_cast<std::uintptr_t>(stream);
  if (gpu().queues->gpu_of(queue) < 0) return ends_in(cudaErrorInvalidResourceHandle);
  gpu().queues->destroy_stream(queue);
  const std::lock_guard lock(gpu().mutex);
  gpu().streams.erase(queue);
  --gpu().counters.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BEFORE();
  const int ordinal = gpu().queues->gpu_of(queue_of(stream));
  if (ordinal < 0) return ends_in(cudaErrorInvalidResourceHandle);
  count_spinning_wait();
  gpu().queues->synchronize(queue_of(stream));
  return ends_in(gpu().of[ordinal].failed.load());
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  BEFORE();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  BEFORE();
  const std::uintptr_t queue = queue_of(stream);
  if (const cudaError_t refused = refused_by(queue, Touches::kAllMemory); refused != cudaSuccess)
    return refused;
  gpu().queues->wait(queue, of(event).passed);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  BEFORE();
  const std::uintptr_t queue = queue_of(stream);
  if (const cudaError_t refused = refused_by(queue, Touches::kOwnMemory); refused != cudaSuccess)
    return refused;
  gpu().queues->run(queue, Queues::By::kHost, [ordinal = current_device, function, data] {
    if (gpu().of[ordinal].failed.load() == cudaSuccess) call_host_function(function, data);
  });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  gpu().capturing.insert(queue_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  gpu().capturing.erase(queue_of(stream));
  *graph = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  BEFORE();
  const std::lock_guard lock(gpu().mutex);
  *status = gpu().capturing.contains(queue_of(stream)) ? cudaStreamCaptureStatusActive
                                                       : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BEFORE();
  auto* const made = new SimulatedEvent;
  made->blocking_sync = (flags & cudaEventBlockingSync) != 0;
  *event = reinterpret_cast<cudaEvent_t>(made);
  const std::lock_guard lock(gpu().mutex);
  ++gpu().counters.events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);
  const std::lock_guard lock(gpu().mutex);
  --gpu().counters.events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BEFORE();
  const std::uintptr_t queue = queue_of(stream);
  if (const cudaError_t refused = refused_by(queue, Touches::kAllMemory); refused != cudaSuccess)
    return refused;
  if (gpu().queues->gpu_of(queue) != of(event).gpu) return ends_in(cudaErrorInvalidResourceHandle);
  of(event).passed = gpu().queues->record(queue);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEFORE();
  return of(event).passed->load() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEFORE();
  if (!of(event).blocking_sync) count_spinning_wait();
  gpu().queues->synchronize(of(event).passed);
  return ends_in(gpu().of[of(event).gpu].failed.load());
}
}  // extern "C"
}  // namespace headrace::device::simulated_cuda
