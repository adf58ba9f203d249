// SPDX-License-Identifier: Apache-2.0
// thread_ranks.hpp: collectives of ranks that are threads of the test.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "headrace/transport.hpp"

namespace headrace::collective {
// result[r] is rank r's, over transports[r] and on devices[r]. They warn of nobody.
inline std::vector<std::shared_ptr<Collective>> make_collectives(
    const std::vector<std::shared_ptr<Transport>>& transports,
    const std::vector<std::shared_ptr<Device>>& devices, std::chrono::milliseconds deadline) {
  std::vector<std::shared_ptr<Collective>> ranks;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    ranks.push_back(make_collective({.transport = transports[r],
                                     .device = devices[r],
                                     .deadline = deadline,
                                     .warn = [](const std::string&) {}}));
  }
  return ranks;
}

inline std::vector<std::shared_ptr<Collective>> make_collective_threads(
    const std::vector<std::shared_ptr<Device>>& devices, std::chrono::milliseconds deadline) {
  return make_collectives(make_thread_transports(static_cast<std::uint32_t>(devices.size())),
                          devices, deadline);
}
}  // namespace headrace::collective
