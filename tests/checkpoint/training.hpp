// SPDX-License-Identifier: Apache-2.0
// The network that the tests of checkpoints train, save and load.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"
#include "support/network_training.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::testing_checkpoints {
struct Place {
  bool on_nvme = false;
  MasterLayout master = MasterLayout::kSplit;
  std::uint32_t width = 300;
  OptimizerRule rule = OptimizerRule::kAdamW;
  MomentCodec moments = MomentCodec::kF32;
  DType dtype = DType::kBf16;
  UpdateMode mode = UpdateMode::kAuto;
};

inline Settings settings_of(const Place& place, const std::string& directory) {
  Settings settings;
  settings.tile_elements = 65536;
  settings.master = place.master;
  settings.optimizer = place.rule;
  settings.moments = place.moments;
  settings.update_mode = place.mode;
  if (place.on_nvme) {
    settings.nvme_paths = {directory};
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
  }
  return settings;
}

inline testing::MlpOptions network_of(const Place& place) {
  testing::MlpOptions options{.width = place.width, .dtype = place.dtype};
  if (place.rule == OptimizerRule::kSgdMomentum) options.hyperparameters.momentum = 0.9f;
  return options;
}

class Training : public testing::NetworkTraining {
 public:
  explicit Training(const Place& place = {}, std::shared_ptr<Collective> ranks = nullptr,
                    std::shared_ptr<device::ComputingDevice> device = nullptr)
      : NetworkTraining(network_of(place), std::move(ranks),
                        device ? std::move(device) : device::make_computing_host({.seed = 5})) {
    begin(settings_of(place, directory()));
  }
};

// body(rank, its collective, its device) on a thread for each rank.
template <class Body>
void on_rank_threads(std::uint32_t world, const Body& body) {
  std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
  for (std::uint32_t r = 0; r < world; ++r)
    hosts.push_back(device::make_computing_host({.seed = r + 1}));
  const auto ranks =
      collective::make_collective_threads({hosts.begin(), hosts.end()}, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r)
    threads.emplace_back([&, r] { body(r, ranks[r], hosts[r]); });
  for (std::thread& thread : threads) thread.join();
}

// body(training of a rank, rank) on a thread for each rank.
inline void on_ranks(std::uint32_t world, const Place& place,
                     const std::function<void(Training&, std::uint32_t)>& body) {
  on_rank_threads(world, [&](std::uint32_t r, const auto& ranks, const auto& host) {
    Training run(place, ranks, host);
    body(run, r);
  });
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(code_name(error.code())) + " " + error.what();
  }
  return "no error";
}
}  // namespace headrace::testing_checkpoints
