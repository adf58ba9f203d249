// SPDX-License-Identifier: Apache-2.0
// rank_engines.hpp: worlds of ranks that are threads, each with a device and an engine of its own.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collective/nccl_world.hpp"
#include "engine/parts.hpp"
#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::rank_engines {
using collective::NcclFlavour;
using device::ComputingDevice;
using device::HostFlavour;

// Runs `body` once per rank, each on a thread with a device and an engine of its own. Returns what
// each rank threw, if it did.
struct Rank {
  std::uint32_t number;
  ComputingDevice& device;
  Engine& engine;
};
struct World {
  std::vector<std::shared_ptr<ComputingDevice>> hosts;
  std::vector<std::shared_ptr<Collective>> ranks;
};
inline World over_threads(std::uint32_t world, HostFlavour flavour) {
  World made;
  for (std::uint32_t r = 0; r < world; ++r) {
    made.hosts.push_back(device::make_computing_host(
        {.flavour = flavour, .seed = r + 1, .late_microseconds_max = 30}));
  }
  made.ranks = collective::make_collective_threads({made.hosts.begin(), made.hosts.end()},
                                                   std::chrono::seconds(60));
  return made;
}
inline World over_nccl(const collective::NcclWorld& of_nccl) {
  World made{{}, collective::nccl_collectives(of_nccl, std::chrono::seconds(60))};
  for (const auto& rank : of_nccl.ranks) made.hosts.push_back(rank.device);
  return made;
}

inline World over_nccl(std::uint32_t world, NcclFlavour flavour) {
  return over_nccl(collective::nccl_world(world, flavour));
}

inline std::vector<std::string> run_ranks(
    World world, const std::function<Settings(std::uint32_t rank)>& settings,
    const std::function<void(Rank&)>& body, const std::vector<engine::EngineParts>& parts = {}) {
  auto& [hosts, ranks] = world;
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        Engine engine(engine::engine_with_parts(
            settings(r), EngineOptions{.device = hosts[r], .collective = ranks[r]},
            parts.empty() ? engine::EngineParts{} : parts[r]));
        Rank rank{r, *hosts[r], engine};
        body(rank);
        engine.close();
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      ranks[r].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
inline std::vector<std::string> run_ranks(
    std::uint32_t world, HostFlavour flavour,
    const std::function<Settings(std::uint32_t rank)>& settings,
    const std::function<void(Rank&)>& body, const std::vector<engine::EngineParts>& parts = {}) {
  return run_ranks(over_threads(world, flavour), settings, body, parts);
}
inline Settings plain(std::uint32_t) { return {}; }

inline void load_all(Engine& engine) {
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load({g}, [](ParameterId, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3c});  // 0.0115 in both dtypes
    });
  }
}

// A model that several tests train.
constexpr std::uint32_t kGroups = 3, kSteps = 3;
constexpr ParameterId kFrozen = {5};
inline void register_model(Engine& engine) {
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {300, 300}, {}},
                                                {"b", DType::kF32, {300}, {}},
                                                {"s", DType::kBf16, {700}, {}}});
  }
  engine.set_frozen(kFrozen, true);
}
inline Settings accumulating(std::uint32_t passes) {
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kCpu;
  settings.offload_parameters = OffloadDevice::kCpu;
  settings.prefetch_groups = 1;
  settings.gradient_accumulation_steps = passes;
  return settings;
}
}  // namespace headrace::rank_engines
