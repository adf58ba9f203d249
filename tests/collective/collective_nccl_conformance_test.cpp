// SPDX-License-Identifier: Apache-2.0
// collective_nccl_conformance_test.cpp: the suite, on the collective over NCCL.
#include "collective/collective_conformance.hpp"
#include "collective/nccl_world.hpp"

namespace headrace::collective {
namespace {
std::vector<WorldMaker> worlds() {
  std::vector<WorldMaker> all;
  for (const auto& [flavour, name] :
       {std::pair{NcclFlavour::kPrompt, "Prompt"}, std::pair{NcclFlavour::kLate, "Late"},
        std::pair{NcclFlavour::kParallel, "Parallel"}}) {
    for (const std::uint32_t world_size : {1u, 2u, 3u}) {
      all.push_back({"Nccl" + std::to_string(world_size) + name, world_size,
                     [=](std::chrono::milliseconds deadline) {
                       return nccl_world(world_size, flavour, deadline).ranks;
                     }});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveConformance, testing::ValuesIn(worlds()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveOfSeveral, testing::ValuesIn(of_several(worlds())),
                         [](const auto& info) { return info.param.name; });
}  // namespace
}  // namespace headrace::collective
