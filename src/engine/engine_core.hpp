// SPDX-License-Identifier: Apache-2.0
// engine_core.hpp: the engine behind headrace::Engine: its three phases, and the order of calls.
//
// headrace/engine.hpp specifies each call. engine.cpp passes it to the part that implements it:
// leases.hpp gather; values.hpp load, store and hashes; stepper.hpp gradients and the step.
// running.hpp lists all parts, and startup.hpp creates them.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "engine/failure.hpp"
#include "engine/inputs.hpp"
#include "engine/running.hpp"
#include "engine/sleep.hpp"
#include "headrace/engine.hpp"
#include "partition/registry.hpp"

namespace headrace {
class EngineCore {
 public:
  EngineCore(Settings settings, EngineOptions options, engine::EngineParts parts = {});
  ~EngineCore();

  // ---- registering ----
  partition::Registry& registry_before_freeze(const char* call);
  const partition::Registry& registry() const noexcept { return registry_; }
  void set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values);
  void freeze();

  // ---- running ----
  // Every call of the trainer begins with this: it checks the phase, failures and interruptions.
  engine::Running& ready(const char* call);
  // The same for wake().
  engine::Running& running(const char* call);
  // For calls that only read the plan, which work on a failed engine too.
  const engine::Running& frozen(const char* call) const;
  void interrupt() noexcept { failure_.interrupt(); }
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all);
  void sleep(const std::string& directory);
  void wake();

  // ---- always ----
  const Settings& settings() const noexcept { return inputs_.settings; }
  const LogSink& log() const noexcept { return inputs_.log; }
  // Whether only close() works. Any thread.
  bool ended() const noexcept { return failure_.ended(); }
  // Whether the collective has failed or was ended. Any thread.
  bool ranks_ended() const noexcept { return inputs_.collective->ended(); }
  const PlanReport& plan() const;
  Stats stats() const;
  Trace take_trace();
  void close();
  // Whether a holder may still read the bytes, and will release them.
  bool has_open_lease() const noexcept;
  void complain_of_lease() const noexcept;

 private:
  enum class Phase { kRegistering, kRunning, kClosed };
  void reclaim_after_dead_ranks() const;
  void remove_image();
  void await_removal() noexcept;

  engine::Inputs inputs_;
  partition::Registry registry_;
  engine::Failure failure_;
  Phase phase_ = Phase::kRegistering;
  std::unique_ptr<engine::Running> running_;
  std::unique_ptr<engine::Sleep> asleep_;  // null: awake
  std::thread removal_;                    // of the files of a sleep that has ended
  PlanReport plan_report_;
  Stats last_stats_;  // after close
  int owner_pid_ = 0;
};

namespace engine {
// For calls that other rooms make of an engine.
EngineCore& core_of(Engine& engine) noexcept;
}  // namespace engine
}  // namespace headrace
