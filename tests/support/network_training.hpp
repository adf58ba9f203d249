// SPDX-License-Identifier: Apache-2.0
// network_training.hpp: an engine with the network of mlp.hpp, which tests train, save, load and
// compare.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::testing {
class NetworkTraining {
 public:
  explicit NetworkTraining(const MlpOptions& network, std::shared_ptr<Collective> ranks,
                           std::shared_ptr<device::ComputingDevice> device)
      : options_(network), ranks_(std::move(ranks)), device_(std::move(device)) {}
  // Makes the engine and its network; called again, other ones in their place.
  void begin(const Settings& settings) {
    network_.reset();
    engine_ =
        std::make_unique<Engine>(settings, EngineOptions{.device = device_, .collective = ranks_});
    network_ = std::make_unique<Mlp>(*engine_, *device_, options_);
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) network_->train_step();
  }
  Engine& engine() { return *engine_; }
  std::string hashes() { return engine_->hash_parameters() + engine_->hash_optimizer_state(); }
  // Of its own, on a drive.
  std::string directory() const { return directory_.string(); }

 private:
  const MlpOptions options_;
  TemporaryDirectory directory_;
  std::shared_ptr<Collective> ranks_;
  std::shared_ptr<device::ComputingDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Mlp> network_;
};
}  // namespace headrace::testing
