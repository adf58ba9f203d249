// SPDX-License-Identifier: Apache-2.0
// computing_host.hpp: the CPU as a device that tests compute on, in two flavours.
#pragma once
#include <cstdint>
#include <memory>

#include "device/computing_device.hpp"

namespace headrace::device {
enum class HostFlavour {
  kPrompt,  // the library's own
  kLate,  // memory of its own as far as anyone can see; work is done later, on a thread of its own,
          // streams overtaking each other as the seed says, so that a missing wait gives wrong
          // results
};
struct HostOptions {
  HostFlavour flavour = HostFlavour::kPrompt;
  std::uint64_t seed = 1;
  std::uint32_t late_microseconds_max = 200;
};
// Where devices of tests fill what is freed with this byte, a use after free shows.
inline constexpr unsigned char kPoison = 0xdb;

std::shared_ptr<ComputingDevice> make_computing_host(const HostOptions& options = {});
}  // namespace headrace::device
