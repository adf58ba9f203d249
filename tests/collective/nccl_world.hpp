// SPDX-License-Identifier: Apache-2.0
// nccl_world.hpp: ranks on the collective over NCCL, with the simulated library in NCCL's place.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "collective/parallel_streams_device.hpp"
#include "collective/ranks.hpp"
#include "collective/simulated_nccl.hpp"
#include "headrace/nccl.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
enum class NcclFlavour { kPrompt, kLate, kParallel };

inline std::shared_ptr<device::ComputingDevice> nccl_device(NcclFlavour flavour,
                                                            std::uint64_t seed) {
  using device::HostFlavour;
  if (flavour == NcclFlavour::kParallel) return std::make_shared<ParallelStreamsDevice>();
  return device::make_computing_host(
      {.flavour = flavour == NcclFlavour::kLate ? HostFlavour::kLate : HostFlavour::kPrompt,
       .seed = seed,
       .late_microseconds_max = 50});
}

// A function of the simulated library, which tests load as the collective does.
template <class Function>
Function* simulated_nccl(Function*, const char* name) {
  void* const library = ::dlopen(HEADRACE_SIMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
#define SIMULATED_NCCL(name) \
  ::headrace::collective::simulated_nccl(static_cast<decltype(&name)>(nullptr), #name)

// Every rank makes its own, all at the same time, as processes would.
inline std::vector<std::shared_ptr<Collective>> make_nccl_ranks(
    const std::vector<std::shared_ptr<device::ComputingDevice>>& devices, bool may_block,
    NcclOptions options) {
  std::vector<std::shared_ptr<Collective>> ranks(devices.size());
  std::vector<std::thread> threads;
  options.library = HEADRACE_SIMULATED_NCCL;
  options.world_size = static_cast<std::uint32_t>(devices.size());
  for (std::uint32_t r = 0; r < devices.size(); ++r) {
    threads.emplace_back([&, r, own = options]() mutable {
      SIMULATED_NCCL(simulated_nccl_set_device)(devices[r].get(), may_block);
      own.rank = r;
      own.device = devices[r];
      try {
        ranks[r] = make_nccl_collective(own);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

struct NcclWorld {
  NcclId id;
  std::vector<Rank> ranks;

  // Ranks wait for each other at their end, so that each needs a thread.
  ~NcclWorld() { end(ranks); }
  static void end(std::vector<Rank>& ranks) {
    on_every_rank(ranks, [](std::uint32_t, Rank& rank) { rank.collective.reset(); });
  }
};

inline NcclWorld nccl_world(std::uint32_t world_size, NcclFlavour flavour,
                            std::chrono::milliseconds deadline = std::chrono::minutes(2)) {
  std::vector<std::shared_ptr<device::ComputingDevice>> devices;
  for (std::uint32_t r = 0; r < world_size; ++r) devices.push_back(nccl_device(flavour, r + 1));
  NcclWorld world{nccl_unique_id(HEADRACE_SIMULATED_NCCL), {}};
  const auto collectives = make_nccl_ranks(devices, flavour == NcclFlavour::kParallel,
                                           {.id = world.id, .deadline = deadline});
  for (std::uint32_t r = 0; r < world_size; ++r)
    world.ranks.push_back({devices[r], collectives[r]});
  return world;
}
}  // namespace headrace::collective
