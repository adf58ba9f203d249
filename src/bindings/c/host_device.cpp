// SPDX-License-Identifier: Apache-2.0
// host_device.cpp: a Device whose every call goes to a host's function.
#include <string>
#include <utility>

#include "bindings/c/calls.hpp"
#include "bindings/c/host_tables.hpp"

namespace headrace::bindings {
namespace {
static_assert(sizeof(GradientPiece) == sizeof(headrace_gradient_piece));
static_assert(offsetof(GradientPiece, non_finite) == offsetof(headrace_gradient_piece, non_finite));

class HostDevice final : public Device {
 public:
  explicit HostDevice(const headrace_device& table) : table_(table), name_(table.name) {}

  const char* name() const noexcept override { return name_.c_str(); }
  bool shares_host_memory() const noexcept override { return table_.shares_host_memory != 0; }
  void* allocate(std::size_t size_bytes) noexcept override {
    void* const data = table_.allocate(table_.context, size_bytes);
    if (reinterpret_cast<std::uintptr_t>(data) % 256 == 0) return data;
    table_.deallocate(table_.context, data, size_bytes);  // aligned loads would fault on it
    return nullptr;
  }
  void deallocate(void* data, std::size_t size_bytes) noexcept override {
    table_.deallocate(table_.context, data, size_bytes);
  }
  Stream create_stream() override {
    Stream stream;
    answer(table_.create_stream(table_.context, &stream.handle), "create_stream");
    return stream;
  }
  void destroy_stream(Stream stream) noexcept override {
    table_.destroy_stream(table_.context, stream.handle);
  }
  void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) override {
    answer(table_.copy(table_.context, stream.handle, target, source, size_bytes), "copy");
  }
  void fill_zero(Stream stream, void* target, std::size_t size_bytes) override {
    answer(table_.fill_zero(table_.context, stream.handle, target, size_bytes), "fill_zero");
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    const headrace_accumulation c_work = to_c(work);
    answer(table_.accumulate(table_.context, stream.handle, &c_work), "accumulate");
  }
  void notify(Stream stream, void (*function)(void*) noexcept, void* context) override {
    answer(table_.notify(table_.context, stream.handle, function, context), "notify");
  }
  Event record(Stream stream) override {
    Event event;
    answer(table_.record(table_.context, stream.handle, &event.id), "record");
    return event;
  }
  void wait(Stream stream, Event event) override {
    answer(table_.wait(table_.context, stream.handle, event.id), "wait");
  }
  void synchronize(Stream stream) override {
    answer(table_.synchronize(table_.context, stream.handle), "synchronize");
  }

 private:
  void answer(headrace_code code, const char* call) const {
    if (code != HEADRACE_OK) check_answer(code, "device '" + name_ + "': " + call);
  }
  const headrace_device table_;
  const std::string name_;
};
}  // namespace

DType dtype_from_c(headrace_dtype dtype) {
  if (dtype == HEADRACE_F32) return DType::kF32;
  if (dtype == HEADRACE_BF16) return DType::kBf16;
  if (dtype == HEADRACE_F16) return DType::kF16;
  if (dtype == HEADRACE_U8) return DType::kU8;
  refuse("dtype " + std::to_string(dtype) +
         " is not known; 0 is F32, 1 is BF16, 2 is F16, 3 is U8");
}

headrace_dtype dtype_to_c(DType dtype) noexcept {
  constexpr headrace_dtype kOfC[] = {HEADRACE_F32, HEADRACE_BF16, HEADRACE_F16, HEADRACE_U8};
  return kOfC[static_cast<unsigned>(dtype)];
}

headrace_accumulation to_c(const Accumulation& work) noexcept {
  return {.struct_size = sizeof(headrace_accumulation),
          .source_dtype = dtype_to_c(work.source_dtype),
          .source = work.source,
          .sum_dtype = dtype_to_c(work.sum_dtype),
          .overwrite = work.overwrite ? 1 : 0,
          .sum = work.sum,
          .elements = work.elements,
          .pieces = reinterpret_cast<headrace_gradient_piece*>(work.pieces),
          .first_piece_elements = work.first_piece_elements,
          .piece_elements = work.piece_elements};
}

Accumulation from_c(const headrace_accumulation& work) {
  return {.source = work.source,
          .source_dtype = dtype_from_c(work.source_dtype),
          .sum = work.sum,
          .sum_dtype = dtype_from_c(work.sum_dtype),
          .elements = work.elements,
          .overwrite = work.overwrite != 0,
          .pieces = reinterpret_cast<GradientPiece*>(work.pieces),
          .first_piece_elements = work.first_piece_elements,
          .piece_elements = work.piece_elements};
}

std::shared_ptr<Device> make_host_device(const headrace_device* from) {
  const headrace_device table = taken(from, headrace_device{}, "device");
  require(table.name, "device.name");
  const auto needed = [](auto* function, const char* name) {
    if (function == nullptr) refuse(std::string("device.") + name + " is NULL; it is required");
  };
  needed(table.allocate, "allocate");
  needed(table.deallocate, "deallocate");
  needed(table.create_stream, "create_stream");
  needed(table.destroy_stream, "destroy_stream");
  needed(table.copy, "copy");
  needed(table.fill_zero, "fill_zero");
  needed(table.accumulate, "accumulate");
  needed(table.notify, "notify");
  needed(table.record, "record");
  needed(table.wait, "wait");
  needed(table.synchronize, "synchronize");
  return std::make_shared<HostDevice>(table);
}
}  // namespace headrace::bindings
