// SPDX-License-Identifier: Apache-2.0
#include "torch/simulated_gpu.hpp"
#include "support/computing_host.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace headrace_test {
namespace {
using headrace::Event;
struct Gpu {
  std::shared_ptr<headrace::device::ComputingDevice> device;
  std::mutex mutex;
  struct Block {
    std::size_t size_bytes;
    std::uintptr_t stream;                // that it was allocated on
    std::vector<std::uintptr_t> read_on;  // record_stream()
  };
  std::map<void*, Block> blocks;
  std::vector<std::pair<void*, std::size_t>> dead;  // overwritten, to be given back
};
Gpu& gpu() {
  static auto* const the_gpu = new Gpu;  // torch frees tensors of its own after main()
  return *the_gpu;
}
thread_local std::uintptr_t current_stream = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::CUDA;
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return simulated_gpu(); }
  c10::Device getDevice() const override { return simulated_gpu(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream stream(std::uintptr_t handle) {
    return c10::Stream(c10::Stream::UNSAFE, simulated_gpu(), static_cast<c10::StreamId>(handle));
  }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current_stream, static_cast<std::uintptr_t>(to.id())));
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(gpu().device->create_stream().handle);
  }
  void* getStreamNativeHandle(const c10::Stream of) const override {
    return reinterpret_cast<void*>(of.id());
  }
  // Events are the device's, by number.
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    const Event made = gpu().device->record({static_cast<std::uintptr_t>(on.id())});
    *event = reinterpret_cast<void*>(made.id);
  }
  void block(void* event, const c10::Stream& on) const override {
    gpu().device->wait({static_cast<std::uintptr_t>(on.id())},
                       Event{reinterpret_cast<std::uint64_t>(event)});
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryEvent(void*) const override { return false; }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& of) const override {
    gpu().device->synchronize({static_cast<std::uintptr_t>(of.id())});
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    const std::lock_guard lock(gpu().mutex);
    const auto block = gpu().blocks.find(data.get());
    if (block != gpu().blocks.end())
      block->second.read_on.push_back(static_cast<std::uintptr_t>(on.id()));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

void free_block(void* data) {
  if (data == nullptr) return;
  Gpu& g = gpu();
  Gpu::Block block;
  {
    const std::lock_guard lock(g.mutex);
    block = g.blocks.at(data);
    g.blocks.erase(data);
  }
  for (const std::uintptr_t stream : block.read_on)
    g.device->wait({block.stream}, g.device->record({stream}));
  g.device->launch({block.stream}, [data, size = block.size_bytes] {
    std::memset(data, headrace::device::kPoison, size);
    const std::lock_guard lock(gpu().mutex);
    gpu().dead.emplace_back(data, size);
  });
}
// Not on the device's own thread, which this may wait for.
void give_dead_back() {
  std::vector<std::pair<void*, std::size_t>> dead;
  {
    const std::lock_guard lock(gpu().mutex);
    dead.swap(gpu().dead);
  }
  for (const auto& [data, size] : dead) gpu().device->deallocate(data, size);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size_bytes) override {
    Gpu& g = gpu();
    give_dead_back();
    void* data = size_bytes == 0 ? nullptr : g.device->allocate(size_bytes);
    if (data != nullptr) {
      const std::lock_guard lock(g.mutex);
      g.blocks[data] = {size_bytes, current_stream, {}};
    }
    return {data, data, &free_block, simulated_gpu()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    gpu().device->copy({current_stream}, to, from, bytes);
  }
};
Allocator allocator;

void wait_for_current() { gpu().device->synchronize({current_stream}); }

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  wait_for_current();
  at::native::cpu_fallback(op, stack);
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);
at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(type), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                           c10::dtype_or_default(type));
}
// The same memory as torch's CPU sees it.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  wait_for_current();
  if (to.numel() != 0) on_cpu(to).copy_(on_cpu(from));
  return to;
}
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * self.element_size();
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (storage.nbytes() < bytes) {  // for results alone: what was there is not wanted
    storage.set_data_ptr_noswap(allocator.allocate(bytes));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}
// Of results that the fallback has made on the CPU.
at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  at::Tensor target = to;
  return copy(target, from, false);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset.expect_int(),
                                      C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<std::int64_t>(offset->expect_int()) : std::nullopt);
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
void record_stream(at::Tensor& self, at::Stream on) {
  Guard().recordDataPtrOnStream(self.storage().data_ptr(), on);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("resize_", resize);
  m.impl("_copy_from_and_resize", copy_and_resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
}
// Attention by its formula: there is no fused kernel.
std::int64_t plain_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                             bool) {
  return static_cast<std::int64_t>(sdp::SDPBackend::math);
}
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_copy_from_and_resize", copy_and_resize); }

// The one generator, as torch asks for it; its numbers are the CPU's. Torch looks for this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator(7);
    return generator;
  }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace

void plug_in(const std::shared_ptr<headrace::device::ComputingDevice>& device) {
  static const bool once = [] {
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator);
    at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&plain_attention);
    return true;
  }();
  (void)once;
  if (gpu().device) give_dead_back();
  gpu().device = device;
}
}  // namespace headrace_test
