// SPDX-License-Identifier: Apache-2.0
// computing_device.hpp: a device that tests compute on with functions of the host.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "device/device_host.hpp"

namespace headrace::device {
// All but launch() is the device's own.
class ComputingDevice final : public DeviceHost {
 public:
  using Launch = std::function<void(Stream, std::function<void()> kernel)>;
  ComputingDevice(std::shared_ptr<Device> device, Launch launch)
      : cuda_(std::move(device)), launch_(std::move(launch)) {}
  const char* name() const noexcept override { return cuda_->name(); }
  bool shares_host_memory() const noexcept override { return cuda_->shares_host_memory(); }
  void* allocate(std::size_t bytes) noexcept override { return cuda_->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    cuda_->deallocate(data, bytes);
  }
  DeviceOverhead overhead() const noexcept override { return cuda_->overhead(); }
  void pin(void* data, std::size_t bytes) override { cuda_->pin(data, bytes); }
  void unpin(void* data, std::size_t bytes) noexcept override { cuda_->unpin(data, bytes); }
  Stream create_stream() override { return cuda_->create_stream(); }
  void destroy_stream(Stream stream) noexcept override { cuda_->destroy_stream(stream); }
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
    cuda_->copy(stream, to, from, bytes);
  }
  void fill_zero(Stream stream, void* to, std::size_t bytes) override {
    cuda_->fill_zero(stream, to, bytes);
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    cuda_->accumulate(stream, work);
  }
  void notify(Stream stream, void (*function)(void*) noexcept, void* context) override {
    cuda_->notify(stream, function, context);
  }
  Event record(Stream stream) override { return cuda_->record(stream); }
  void wait(Stream stream, Event event) override { cuda_->wait(stream, event); }
  void synchronize(Stream stream) override { cuda_->synchronize(stream); }
  void launch(Stream stream, std::function<void()> kernel) override {
    launch_(stream, std::move(kernel));
  }

 private:
  std::shared_ptr<Device> cuda_;
  Launch launch_;
};
}  // namespace headrace::device
