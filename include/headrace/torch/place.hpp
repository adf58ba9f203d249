// SPDX-License-Identifier: Apache-2.0
// headrace/torch/place.hpp: where offloaded parameters are bound: torch's CPU, or a torch device
// that has its own streams and memory.
//
// This file uses torch's own device interface, so it needs no CUDA header.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <vector>

#include "headrace/device.hpp"
#include "headrace/error.hpp"

namespace headrace::torch::detail {
class Place {
 public:
  Place() = default;
  // Throws kUnsupported if this torch has no such device.
  explicit Place(at::Device device) : device_(device) {
    if (is_cpu()) return;
    if (!c10::impl::hasDeviceGuardImpl(device.type())) {
      throw Error(Code::kUnsupported,
                  "torch has no " + device.str() +
                      " here: parameters cannot be bound there. Link LibTorch's part for it "
                      "(libtorch_cuda), or bind them on torch::kCPU.");
    }
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::DeviceIndex count = guard.deviceCount();
    if (device.index() < 0) device_ = count > 0 ? guard.getDevice() : device;
    if (device_.index() < 0 || device_.index() >= count) {
      throw Error(Code::kUnsupported, "torch sees " + std::to_string(count) + " devices of kind " +
                                          c10::DeviceTypeName(device.type(), true) + ", and not " +
                                          device.str() +
                                          ": parameters cannot be bound there. Name one that it "
                                          "sees, or bind them on torch::kCPU.");
    }
  }

  bool is_cpu() const noexcept { return device_.is_cpu(); }
  at::Device device() const noexcept { return device_; }
  bool has(const at::Tensor& tensor) const { return tensor.device() == device_; }
  c10::DispatchKeySet keys(at::ScalarType type) const {
    return c10::DispatchKeySet(c10::computeDispatchKey(type, at::kStrided, device_));
  }

  // The stream that this thread's operators run on; in backward, autograd has set it.
  c10::Stream torch_stream() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }
  // The same stream for the engine. Torch's CPU operators run on no stream.
  Stream stream() const {
    if (is_cpu()) return {};
    return {reinterpret_cast<std::uintptr_t>(torch_stream().native_handle())};
  }
  // Keeps torch from reusing the tensor's memory before this thread's stream has passed this point.
  void keep_until_read(const at::Tensor& tensor) const {
    if (!is_cpu()) tensor.record_stream(torch_stream());
  }

  // torch's generator for the CPU, and its generator for the device.
  std::vector<at::Generator> generators() const {
    std::vector<at::Generator> all{at::globalContext().defaultGenerator(at::kCPU)};
    if (!is_cpu()) all.push_back(at::globalContext().defaultGenerator(device_));
    return all;
  }
  std::vector<at::DeviceType> device_types() const {
    std::vector<at::DeviceType> all{at::kCPU};
    if (!is_cpu()) all.push_back(device_.type());
    return all;
  }

 private:
  at::Device device_ = at::Device(at::kCPU);
};
}  // namespace headrace::torch::detail
