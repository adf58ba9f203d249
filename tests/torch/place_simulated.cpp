// SPDX-License-Identifier: Apache-2.0
#include "support/computing_host.hpp"
#include "torch/place_under_test.hpp"
#include "torch/simulated_gpu.hpp"

namespace headrace_test {
// One device carries out the engine's work and torch's.
std::shared_ptr<headrace::Device> make_place_device(std::uint64_t seed, Late late) {
  constexpr std::uint32_t kMicroseconds[] = {0, 30, 2000};
  const auto device = headrace::device::make_computing_host(
      {.flavour = headrace::device::HostFlavour::kLate,
       .seed = seed,
       .late_microseconds_max = kMicroseconds[static_cast<int>(late)]});
  plug_in(device);
  return device;
}
void fall_behind(Late) {}
}  // namespace headrace_test
