// SPDX-License-Identifier: Apache-2.0
// threads_world.hpp: ranks that are threads, each with a device_host of its own.
#pragma once
#include <chrono>

#include "collective/ranks.hpp"
#include "support/computing_host.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::collective {
inline std::shared_ptr<Device> host_device(device::HostFlavour flavour, std::uint64_t seed) {
  return device::make_computing_host(
      {.flavour = flavour, .seed = seed, .late_microseconds_max = 50});
}

inline std::vector<Rank> threads_world(
    std::uint32_t world_size, device::HostFlavour flavour,
    std::chrono::milliseconds deadline = std::chrono::minutes(2)) {
  std::vector<std::shared_ptr<Device>> devices;
  for (std::uint32_t r = 0; r < world_size; ++r) devices.push_back(host_device(flavour, r + 1));
  const auto collectives = make_collective_threads(devices, deadline);
  std::vector<Rank> ranks;
  for (std::uint32_t r = 0; r < world_size; ++r) ranks.push_back({devices[r], collectives[r]});
  return ranks;
}
}  // namespace headrace::collective
