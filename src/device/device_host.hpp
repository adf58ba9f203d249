// SPDX-License-Identifier: Apache-2.0
// device_host.hpp: the CPU as a device, in two flavours.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "headrace/device.hpp"

namespace headrace::device {
enum class HostFlavour {
  kPrompt,  // shares host memory; work is done when the call returns
  kLate,  // memory of its own as far as anyone can see; work is done later, on threads of its own,
          // streams overtaking each other as the seed says, so that a missing wait gives wrong
          // results in tests
};
struct HostOptions {
  HostFlavour flavour = HostFlavour::kPrompt;
  std::uint64_t seed = 1;
  std::uint32_t late_microseconds_max = 200;
};

class DeviceHost : public Device {
 public:
  // Queues `kernel` on `stream`: how tests compute on the late flavour.
  virtual void launch(Stream stream, std::function<void()> kernel) = 0;
  // Freed memory is filled with this byte, so that a use after free shows.
  static constexpr unsigned char kPoison = 0xdb;
};
std::shared_ptr<DeviceHost> make_device_host(const HostOptions& options = {});
}  // namespace headrace::device
