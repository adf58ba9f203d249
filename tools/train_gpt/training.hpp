// SPDX-License-Identifier: Apache-2.0
// training.hpp: the model as the training loop sees it. Two exist: offloaded (the engine holds its
// bytes) and plain (torch holds them); the tests bring a third.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "batches.hpp"
#include "headrace/engine.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/result.hpp"
#include "headrace/settings.hpp"
#include "headrace/stats.hpp"
#include "headrace/trace.hpp"
#include "options.hpp"
#include "recipe.hpp"
#include "safetensors.hpp"
#include "world.hpp"

namespace train_gpt {
class Progress;

// A checkpoint that is written beside training.
struct SaveUnderWay {
  std::function<bool()> done;
  std::function<void()> wait;  // until it is there; throws what ended it
};

// Threads: one at a time but for interrupt().
// Errors:  headrace::Error.
class Training {
 public:
  virtual ~Training() = default;

  // Mean loss in nats per byte; keeps what backward() needs.
  virtual double forward(const Batch& batch) = 0;
  // Of the last forward(), times `loss_scale`; gradients add up until update().
  virtual void backward(double loss_scale) = 0;
  virtual double evaluate(const Batch& batch) = 0;
  virtual headrace::StepResult update(const headrace::StepOptions& options) = 0;
  // From the next update on.
  virtual void set_betas(float beta1, float beta2) = 0;
  // Returns when what update() has deferred is done.
  virtual void finish_update() {}
  // Where a store (headrace.durable) lets the training go on; no value: at the beginning.
  virtual std::optional<headrace::Resumed> resumed() const { return std::nullopt; }
  // What the checkpoint of --load kept beside the values, which are in place; no value: none was
  // loaded.
  virtual std::optional<std::vector<std::byte>> loaded() const { return std::nullopt; }
  // Writes all values and `state` to the new folder, which becomes the latest.
  virtual void save_checkpoint(const std::string& folder, std::span<const std::byte> state) {
    (void)folder, (void)state;
  }
  // The same while training goes on, where a store makes that possible.
  virtual SaveUnderWay save_in_background(const std::string& folder,
                                          std::span<const std::byte> state) {
    save_checkpoint(folder, state);
    return {[] { return true; }, [] {}};
  }
  // Takes the state that goes into the store with the next update.
  virtual void keep(std::span<const std::byte> state) { (void)state; }

  virtual headrace::Stats stats() const { return {}; }
  virtual headrace::Trace take_trace() { return {}; }
  virtual std::string group_name(std::uint32_t) const { return {}; }
  virtual const headrace::PlanReport* plan() const { return nullptr; }
  virtual std::string hash_parameters() { return {}; }
  virtual std::string hash_optimizer_state() { return {}; }
  // The bytes of one parameter's weight that this rank has, in order, from `first_byte` on.
  virtual void store(
      const std::string& full_name,
      const std::function<void(std::uint64_t first_byte, std::span<const std::byte>)>& sink) = 0;
  // Makes the call that waits end soon. From any thread and from a signal handler.
  virtual void interrupt() noexcept {}
  virtual void close() {}
};

struct TrainingSetup {
  const Options& options;
  const Recipe& recipe;
  const headrace::Settings& settings;
  const InitialWeights* initial = nullptr;  // null: random
  Progress& progress;
  World& world;
};

// Loads torch and runs a tiny model once where the training will, so that its code and threads are
// there; sets torch's threads (0: leaves them). Throws MissingDevice.
TorchFacts warm_up_torch(const Options& options);
// The most that was taken of the device's memory at once; 0 on the CPU.
std::uint64_t device_peak(const Options& options);
// LibTorch's version if `error` is an exception of its own, else empty.
std::string torch_that_threw(const std::exception& error);
std::unique_ptr<Training> make_offloaded(const TrainingSetup& setup);
std::unique_ptr<Training> make_plain(const TrainingSetup& setup);
}  // namespace train_gpt
