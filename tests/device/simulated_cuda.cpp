// SPDX-License-Identifier: Apache-2.0
#include "device/simulated_cuda.hpp"

#include <sys/mman.h>

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
  const auto planned = g.failing_calls.find(function);
  if (planned != g.failing_calls.end() && planned->second.calls-- == 0) {
    const cudaError_t error = planned->second.error;
    g.failing_calls.erase(planned);
    if (loses_the_context(error)) g.failed = error;
    return ends_in(error);
  }
  return ends_in(g.failed.load());
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

void run_on_gpu(const std::function<void()>& work) {
  Gpu& g = gpu();
  if (g.failed.load() != cudaSuccess) return;
  std::vector<std::pair<void*, std::size_t>> memory;
  {
    const std::lock_guard lock(g.mutex);
    for (const auto& [begin, bytes] : g.allocations)
      memory.emplace_back(reinterpret_cast<void*>(begin), bytes);
  }
  for (const auto& [begin, bytes] : memory) protect_ends(begin, bytes, PROT_READ | PROT_WRITE);
  work();
  for (const auto& [begin, bytes] : memory) protect_ends(begin, bytes, PROT_NONE);
}

void launch(std::uintptr_t stream, std::function<void()> kernel) {
  gpu().queues->launch({stream}, [kernel = std::move(kernel)] { run_on_gpu(kernel); });
}

void plug_in(const GpuOptions& options) {
  Gpu& g = gpu();
  g.queues.reset();
  const std::lock_guard lock(g.mutex);
  for (const auto& [begin, bytes] : g.allocations)
    (void)::munmap(reinterpret_cast<void*>(begin), bytes);
  g.allocations.clear();
  g.registrations.clear();
  g.streams.clear();
  g.failing_calls.clear();
  g.failed = cudaSuccess;
  g.counters = {};
  g.options = options;
  g.queues = make_device_host({.flavour = HostFlavour::kLate,
                               .seed = options.seed,
                               .late_microseconds_max = options.late_microseconds_max});
}

void fail_call(const char* name, cudaError_t error, std::uint64_t calls) {
  const std::lock_guard lock(gpu().mutex);
  gpu().failing_calls[name] = {error, calls};
}
void fail_gpu(std::uintptr_t stream, cudaError_t error) {
  gpu().queues->launch({stream}, [error] { gpu().failed = error; });
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
// The begin and end of the range of `ranges` that holds `address`; nulls where none does.
std::pair<std::uintptr_t, std::uintptr_t> range_of(
    const std::map<std::uintptr_t, std::size_t>& ranges, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return {};
  const auto& [begin, bytes] = *std::prev(next);
  return at < begin + bytes ? std::pair{begin, begin + bytes}
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
  Event event;
  bool blocking_sync = false;
  std::shared_ptr<std::atomic<bool>> passed = std::make_shared<std::atomic<bool>>(true);
};
SimulatedEvent& of(cudaEvent_t event) { return *reinterpret_cast<SimulatedEvent*>(event); }
void count_spinning_wait() {
  const std::lock_guard lock(gpu().mutex);
  ++gpu().counters.spinning_waits;
}
Stream of(cudaStream_t stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }

}  // namespace

extern "C" {
#define BEFORE() \
  if (const cudaError_t refused = before(__func__); refused != cudaSuccess) return refused

cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpu().options.missing == cudaSuccess ? 1 : 0;
  return ends_in(gpu().options.missing);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device != 0) return ends_in(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  *function = nullptr;
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
  *free_bytes = gpu().options.memory_bytes - gpu().counters.allocated_bytes;
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
    default:
      return "cudaErrorOther";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "of the simulated GPU"; }
cudaError_t cudaGetLastError() {
  if (gpu().failed.load() != cudaSuccess) return gpu().failed.load();
  return std::exchange(last_error, cudaSuccess);
}

// ---- memory ----

cudaError_t cudaMalloc(void** data, std::size_t size_bytes) {
  BEFORE();
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  if (size_bytes > g.options.memory_bytes - g.counters.allocated_bytes)
    return ends_in(cudaErrorMemoryAllocation);
  const std::size_t mapped = base::align_up(size_bytes, 4096);
  void* const memory = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ends_in(cudaErrorMemoryAllocation);
  // What real memory holds at first is anything.
  (void)::mprotect(memory, mapped, PROT_READ | PROT_WRITE);
  std::memset(memory, 0xa5, mapped);
  protect_ends(memory, mapped, PROT_NONE);
  g.allocations[reinterpret_cast<std::uintptr_t>(memory)] = mapped;
  g.counters.allocated_bytes += mapped;
  g.counters.allocated_bytes_max =
      std::max(g.counters.allocated_bytes_max, g.counters.allocated_bytes);
  *data = memory;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Gpu& g = gpu();
  std::vector<std::uintptr_t> streams;
  {
    const std::lock_guard lock(g.mutex);
    for (const auto& [stream, priority] : g.streams) streams.push_back(stream);
  }
  for (const std::uintptr_t stream : streams) g.queues->synchronize({stream});
  g.queues->synchronize({});
  return ends_in(g.failed.load());
}
// Waits for all that is queued, as the real one does.
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  Gpu& g = gpu();
  (void)cudaDeviceSynchronize();
  const std::lock_guard lock(g.mutex);
  const auto found = g.allocations.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == g.allocations.end()) return ends_in(cudaErrorInvalidValue);
  g.counters.allocated_bytes -= found->second;
  (void)::munmap(data, found->second);
  g.allocations.erase(found);
  return ends_in(g.failed.load());
}
cudaError_t cudaHostRegister(void* data, std::size_t size_bytes, unsigned) {
  BEFORE();
  Gpu& g = gpu();
  const std::lock_guard lock(g.mutex);
  if (side_of(data, size_bytes) != Side::kPageable)
    return ends_in(cudaErrorHostMemoryAlreadyRegistered);
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
  if (side_of(data, bytes) == Side::kStraddling) return ends_in(cudaErrorInvalidValue);
  launch(of(stream).handle, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  BEFORE();
  Gpu& g = gpu();
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
    const auto* begin = static_cast<const unsigned char*>(from);
    launch(of(stream).handle, [to, taken = std::vector<unsigned char>(begin, begin + bytes)] {
      std::memmove(to, taken.data(), taken.size());
    });
    return cudaSuccess;
  }
  launch(of(stream).handle, [=] { std::memmove(to, from, bytes); });
  if (to_side == Side::kPageable) g.queues->synchronize(of(stream));
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
  const Stream made = gpu().queues->create_stream();
  const std::lock_guard lock(gpu().mutex);
  gpu().streams[made.handle] = priority;
  ++gpu().counters.streams;
  *stream = reinterpret_cast<cudaStream_t>(made.handle);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  gpu().queues->destroy_stream(of(stream));
  const std::lock_guard lock(gpu().mutex);
  gpu().streams.erase(of(stream).handle);
  --gpu().counters.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BEFORE();
  count_spinning_wait();
  gpu().queues->synchronize(of(stream));
  return ends_in(gpu().failed.load());
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  BEFORE();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  BEFORE();
  if (of(event).event.id != 0) gpu().queues->wait(of(stream), of(event).event);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  BEFORE();
  gpu().queues->launch(of(stream), [=] {
    if (gpu().failed.load() != cudaSuccess) return;
    in_host_function = true;
    function(data);
    in_host_function = false;
  });
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
  SimulatedEvent& e = of(event);
  e.passed = std::make_shared<std::atomic<bool>>(false);
  gpu().queues->launch(of(stream), [passed = e.passed] { *passed = true; });
  e.event = gpu().queues->record(of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEFORE();
  return of(event).passed->load() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEFORE();
  if (!of(event).blocking_sync) count_spinning_wait();
  const Stream own = gpu().queues->create_stream();
  gpu().queues->wait(own, of(event).event);
  gpu().queues->synchronize(own);
  gpu().queues->destroy_stream(own);
  return ends_in(gpu().failed.load());
}
}  // extern "C"
}  // namespace headrace::device::simulated_cuda
