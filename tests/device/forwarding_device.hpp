// SPDX-License-Identifier: Apache-2.0
// forwarding_device.hpp: a device that hands every call on to another: what a test changes of it,
// it overrides.
#pragma once
#include <memory>
#include <utility>

#include "device/packing.hpp"
#include "device/span_updates.hpp"

namespace headrace::device {
// `Base`: Device, or a class of devices that asks for more, which the test brings.
template <class Base>
class ForwardingDevice : public Base, public SpanUpdates, public ValuePacking {
 public:
  explicit ForwardingDevice(std::shared_ptr<Device> to) : to_(std::move(to)) {}

  const char* name() const noexcept override { return to_->name(); }
  bool shares_host_memory() const noexcept override { return to_->shares_host_memory(); }
  bool host_reads_memory() const noexcept override { return to_->host_reads_memory(); }
  void* allocate(std::size_t bytes) noexcept override { return to_->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override { to_->deallocate(data, bytes); }
  DeviceOverhead overhead() const noexcept override { return to_->overhead(); }
  void pin(void* data, std::size_t bytes) override { to_->pin(data, bytes); }
  void unpin(void* data, std::size_t bytes) noexcept override { to_->unpin(data, bytes); }
  int cuda_ordinal() const noexcept override { return to_->cuda_ordinal(); }
  Stream create_stream() override { return to_->create_stream(); }
  Stream create_urgent_stream() override { return to_->create_urgent_stream(); }
  void destroy_stream(Stream stream) noexcept override { to_->destroy_stream(stream); }
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
    to_->copy(stream, to, from, bytes);
  }
  void fill_zero(Stream stream, void* to, std::size_t bytes) override {
    to_->fill_zero(stream, to, bytes);
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    to_->accumulate(stream, work);
  }
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override {
    to_->notify(stream, function, context);
  }
  void update(Stream stream, const UpdateSpan& span, const UpdateStep& step) override {
    updates_of(*to_)->update(stream, span, step);
  }
  void pack(Stream stream, const PackWork& work) override { packing_of(*to_)->pack(stream, work); }
  void unpack(Stream stream, const PackWork& work) override {
    packing_of(*to_)->unpack(stream, work);
  }
  Event record(Stream stream) override { return to_->record(stream); }
  void wait(Stream stream, Event event) override { to_->wait(stream, event); }
  void synchronize(Stream stream) override { to_->synchronize(stream); }
  void throw_if_failed() override { to_->throw_if_failed(); }

 private:
  SpanUpdates* served() noexcept override { return updates_of(*to_); }
  ValuePacking* packs() noexcept override { return packing_of(*to_); }

  std::shared_ptr<Device> to_;
};
}  // namespace headrace::device
