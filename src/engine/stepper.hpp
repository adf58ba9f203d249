// SPDX-License-Identifier: Apache-2.0
// stepper.hpp: the step: computes the global norm and the constants of each parameter, then has
// every tile updated (tiles/updates.hpp). The step waits for that, or later calls do.
#pragma once
#include <cstdint>

#include "engine/calls.hpp"
#include "engine/epochs.hpp"
#include "engine/leases.hpp"
#include "engine/value_states.hpp"
#include "engine/values.hpp"
#include "ranks/gradients.hpp"

namespace headrace::engine {
// For one trainer thread at a time; add_gradient() for several at once.
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
    Epochs* epochs;              // null: not durable
    base::TraceRecorder* trace;  // null: none
  };
  explicit Stepper(const Parts& parts) : p_(parts) {}

  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream);
  void lend_gradient(ParameterId id, const void* gradient, DType dtype);
  StepResult step(const StepOptions& options);
  // If a step failed here after the ranks had agreed on it, and changed nothing, this rank alone
  // repeats it. (A failed engine informs the other ranks.) Throws kWrongState if `call` would
  // change data that the others used.
  void refuse_change_before_repeat(const char* call) const;
  void set_step_count(ParameterId id, std::uint64_t steps);

 private:
  // `lends`: the way in which a gradient comes. Its parameter is trained, its group takes such
  // gradients, and the pointer is not null; or throws.
  const partition::RegisteredParameter& require_taken(const char* call, ParameterId id,
                                                      const void* gradient, DType dtype,
                                                      bool lends) const;
  // Throws kWrongState if gradients were rounded for the count. May wait: Gradients::leave_order().
  void refuse_change_of_rounding(const partition::RegisteredParameter& parameter);
  void warn_of_unused_clipping(const StepOptions& options);
  void warn_of_no_gradients(const StepResult& result);
  // Handles a gradient that is not finite, as the setting says.
  StepResult skip_or_refuse(const ranks::GradientTotals& totals);
  void prepare_steps(const StepOptions& options, double factor, StepResult& result);
  // After an update that began and failed with `error`. If the store has the state before it, that
  // is taken from there, and the error thrown says that the step may be repeated. Returns if not.
  void undo_update(const std::exception& error);
  void count_step();
  bool holds_commits() const noexcept { return p_.epochs != nullptr && p_.epochs->pinned(); }
  async::Task<> update_now();
  async::Task<> defer_update();

  const Parts p_;
  bool told_of_clipping_ = false, told_of_no_gradients_ = false;
};
}  // namespace headrace::engine
