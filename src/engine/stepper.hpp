// SPDX-License-Identifier: Apache-2.0
// stepper.hpp: the step: the global norm, and what it means for each parameter; then the update of
// every tile (tiles/updates.hpp), which a step waits for, or the calls after it.
#pragma once
#include <cstdint>

#include "engine/calls.hpp"
#include "engine/leases.hpp"
#include "engine/value_states.hpp"
#include "engine/values.hpp"
#include "ranks/gradients.hpp"

namespace headrace::engine {
// Trainer threads, one at a time, but for add_gradient() and until_passed().
class Stepper {
 public:
  struct Parts {
    const partition::Registry& registry;
    const Settings& settings;
    const LogSink& log;
    const partition::Partition& partition;
    const residency::Plan& plan;
    Failure& failure;
    Calls& calls;
    const Leases& leases;
    const ValueStates& states;
    Values& values;
    Counts& counts;
    ranks::Gradients& gradients;
    tiles::GatherSlots& gather_slots;
    tiles::PendingUpdates& pending;
    tiles::Updates& updates;
    base::TraceRecorder* trace;  // null: none
  };
  explicit Stepper(const Parts& parts) : p_(parts) {}

  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream);
  StepResult step(const StepOptions& options);
  // A step that failed here after the ranks had agreed on it, with nothing changed, is repeated on
  // this rank alone. (A failed engine tells the other ranks.) Throws kWrongState where `call` would
  // change what the others used.
  void refuse_change_before_repeat(const char* call) const;
  void set_step_count(ParameterId id, std::uint64_t steps);
  std::uint64_t skipped() const noexcept { return skipped_; }

 private:
  void warn_of_unused_clipping(const StepOptions& options);
  void warn_of_no_gradients(const StepResult& result);
  // A gradient is not finite: by the setting.
  StepResult skip_or_refuse(const ranks::GradientTotals& totals);
  void prepare_steps(const StepOptions& options, double factor, StepResult& result);
  void count_step();
  async::Task<> update_now();
  async::Task<> defer_update();

  const Parts p_;
  std::uint64_t steps_ = 0, skipped_ = 0;
  bool told_of_clipping_ = false, told_of_no_gradients_ = false;
};
}  // namespace headrace::engine
