// SPDX-License-Identifier: Apache-2.0
// collective_conformance_test.cpp: the suite, on the collectives that come with the library.
#include "collective/collective_conformance.hpp"
#include "collective/threads_world.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
namespace {
using device::HostFlavour;

std::vector<WorldMaker> worlds() {
  std::vector<WorldMaker> all;
  for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
    const std::string suffix = flavour == HostFlavour::kPrompt ? "Prompt" : "Late";
    all.push_back({"Self" + suffix, 1, [flavour] {
                     return std::vector<Rank>{{host_device(flavour, 1), make_collective_self()}};
                   }});
    for (const std::uint32_t world_size : {1u, 2u, 3u}) {
      all.push_back({"Threads" + std::to_string(world_size) + suffix, world_size,
                     [=] { return threads_world(world_size, flavour); }});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveConformance, testing::ValuesIn(worlds()),
                         [](const auto& info) { return info.param.name; });
}  // namespace
}  // namespace headrace::collective
