// SPDX-License-Identifier: Apache-2.0
// nccl_world.hpp: ranks over NCCL, with the simulated library in NCCL's place.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
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

// A function of the simulated library, which tests load as the transport does.
template <class Function>
Function* simulated_nccl(Function*, const char* name) {
  void* const library = ::dlopen(HEADRACE_SIMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
#define SIMULATED_NCCL(name) \
  ::headrace::collective::simulated_nccl(static_cast<decltype(&name)>(nullptr), #name)

struct NcclRank {
  std::shared_ptr<device::ComputingDevice> device;
  std::shared_ptr<Transport> transport;
};
struct NcclWorld {
  NcclId id;
  std::vector<NcclRank> ranks;
};

using ChangeNccl = std::function<void(std::uint32_t rank, NcclOptions& options)>;

// Every rank makes its own, all at the same time, as processes would. `may_block`: see
// simulated_nccl.hpp. `change` changes what a rank asks for.
inline NcclWorld nccl_world(const std::vector<std::shared_ptr<Transport>>& messages,
                            const std::vector<std::shared_ptr<device::ComputingDevice>>& devices,
                            bool may_block, const ChangeNccl& change = {}) {
  NcclWorld world{nccl_unique_id(HEADRACE_SIMULATED_NCCL), {}};
  for (const auto& device : devices) world.ranks.push_back({device, nullptr});
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < messages.size(); ++r) {
    threads.emplace_back([&, r] {
      auto& [device, transport] = world.ranks[r];
      SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), may_block);
      try {
        NcclOptions options = {.id = world.id,
                               .messages = messages[r],
                               .device = device,
                               .library = HEADRACE_SIMULATED_NCCL};
        if (change) change(static_cast<std::uint32_t>(r), options);
        transport = make_nccl_transport(options);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world;
}
inline NcclWorld nccl_world(const std::vector<std::shared_ptr<Transport>>& messages,
                            NcclFlavour flavour) {
  std::vector<std::shared_ptr<device::ComputingDevice>> devices;
  for (std::size_t r = 0; r < messages.size(); ++r) devices.push_back(nccl_device(flavour, r + 1));
  return nccl_world(messages, devices, flavour == NcclFlavour::kParallel);
}
inline NcclWorld nccl_world(std::uint32_t world_size, NcclFlavour flavour) {
  return nccl_world(make_thread_transports(world_size), flavour);
}
inline std::vector<std::shared_ptr<Transport>> transports_of(const NcclWorld& world) {
  std::vector<std::shared_ptr<Transport>> transports;
  for (const NcclRank& rank : world.ranks) transports.push_back(rank.transport);
  return transports;
}

// result[r] is rank r's. They warn of nobody.
inline std::vector<std::shared_ptr<Collective>> nccl_collectives(
    const NcclWorld& world, std::chrono::milliseconds deadline) {
  std::vector<std::shared_ptr<Collective>> collectives;
  for (const auto& [device, transport] : world.ranks) {
    collectives.push_back(make_collective({.transport = transport,
                                           .device = device,
                                           .deadline = deadline,
                                           .warn = [](const std::string&) {}}));
  }
  return collectives;
}

inline std::vector<Rank> nccl_ranks(std::uint32_t world_size, NcclFlavour flavour,
                                    std::chrono::milliseconds deadline = std::chrono::minutes(2)) {
  const NcclWorld world = nccl_world(world_size, flavour);
  const auto collectives = nccl_collectives(world, deadline);
  std::vector<Rank> ranks;
  for (std::uint32_t r = 0; r < world_size; ++r)
    ranks.push_back({world.ranks[r].device, collectives[r]});
  return ranks;
}
}  // namespace headrace::collective
