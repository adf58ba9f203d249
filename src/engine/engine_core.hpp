// SPDX-License-Identifier: Apache-2.0
// engine_core.hpp: the engine behind headrace::Engine: its three phases, and who may call when.
//
// What each call promises is in headrace/engine.hpp. engine.cpp hands it to the part that keeps the
// promise: leases.hpp gather, values.hpp load, store and hashes, stepper.hpp gradients and the
// step. running.hpp lists all parts, startup.hpp makes them.
#pragma once
#include <memory>
#include <string>

#include "engine/failure.hpp"
#include "engine/inputs.hpp"
#include "engine/running.hpp"
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
  // Every call of the trainer starts here: the phase is right, nothing failed, nobody interrupted.
  engine::Running& ready(const char* call);
  // For what is asked of the plan alone, failed or not.
  const engine::Running& frozen(const char* call) const;
  void interrupt() noexcept { failure_.interrupt(); }

  // ---- always ----
  const PlanReport& plan() const;
  Stats stats() const;
  Trace take_trace();
  void close();
  // A holder may still read the bytes, and will release them.
  bool has_open_lease() const noexcept;
  void complain_of_lease() const noexcept;

 private:
  enum class Phase { kRegistering, kRunning, kClosed };
  void reclaim_after_dead_ranks() const;

  engine::Inputs inputs_;
  partition::Registry registry_;
  engine::Failure failure_;
  Phase phase_ = Phase::kRegistering;
  std::unique_ptr<engine::Running> running_;
  PlanReport plan_report_;
  Stats last_stats_;  // after close
  int owner_pid_ = 0;
};
}  // namespace headrace
