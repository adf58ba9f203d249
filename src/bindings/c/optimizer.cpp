// SPDX-License-Identifier: Apache-2.0
// optimizer.cpp: headrace/c.h, the optimizer alone.
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles.hpp"
#include "bindings/c/host_tables.hpp"
#include "bindings/c/updates.hpp"
#include "headrace/cpu_optimizer.hpp"

namespace headrace::bindings {
static_assert(HEADRACE_SGD_MOMENTUM == static_cast<int>(OptimizerRule::kSgdMomentum));
static_assert(HEADRACE_MOMENTS_8BIT == static_cast<int>(MomentCodec::kBlock8));
static_assert(HEADRACE_MASTER_F32 == static_cast<int>(MasterLayout::kF32));

namespace {
struct OptimizerOfC {
  CpuOptimizer optimizer;
  pid_t owner = getpid();
};
constinit HandleTable<OptimizerOfC, 256> optimizers(3, "optimizer", "destroy");

// The value of an enum whose last one is `last`.
template <class Enum>
Enum enum_of(std::int32_t number, Enum last, const char* name) {
  const auto most = static_cast<std::int32_t>(last);
  if (number >= 0 && number <= most) return static_cast<Enum>(number);
  refuse(std::string(name) + " is " + std::to_string(number) + "; the numbers from 0 to " +
         std::to_string(most) + " are known (headrace/c.h)");
}

MasterLayout layout_of(headrace_master_layout layout) {
  return enum_of(layout, MasterLayout::kF32, "layout");
}

CpuOptimizerOptions options_of(const headrace_optimizer_options* given) {
  const headrace_optimizer_options options =
      taken_or_defaults(given, headrace_optimizer_options_init, "options");
  return {.rule = enum_of(options.rule, OptimizerRule::kSgdMomentum, "options.rule"),
          .moments = enum_of(options.moments, MomentCodec::kBlock8, "options.moments"),
          .rounding_seed = options.rounding_seed,
          .non_finite = options.skip_non_finite != 0 ? NonFinite::kSkip : NonFinite::kStop,
          .check_gradients = options.check_gradients != 0,
          .threads = options.threads};
}

// C gives no lengths: they follow from the shape.
std::span<std::byte> array_of(void* data, std::uint64_t bytes) {
  return {static_cast<std::byte*>(data), data == nullptr ? 0 : bytes};
}

ParameterState state_of(const CpuOptimizer& optimizer, const headrace_parameter_state* given) {
  const headrace_parameter_state from = taken(given, headrace_parameter_state_init, "states");
  ParameterState state;
  if (from.name != nullptr) state.name = from.name;
  state.number = from.number;
  state.elements = from.elements;
  state.dtype = dtype_from_c(from.dtype);
  state.layout = layout_of(from.layout);
  const StateBytes bytes = optimizer.state_bytes(state.dtype, state.layout, state.elements);
  state.weight = array_of(from.weight, state.elements * size_bytes(state.dtype));
  state.master = array_of(from.master, bytes.master);
  for (int k = 0; k < 2; ++k) {
    state.moment[k] = array_of(from.moment[k], bytes.moment[k]);
    state.moment_scale[k] = array_of(from.moment_scale[k], bytes.moment_scale[k]);
  }
  return state;
}

std::vector<ParameterState> states_of(const CpuOptimizer& optimizer,
                                      const headrace_parameter_state* given, std::size_t count) {
  std::vector<ParameterState> states;
  for_each_struct(given, count, "states", "headrace_parameter_state_init()",
                  [&](const auto* one) { states.push_back(state_of(optimizer, one)); });
  return states;
}

ParameterUpdate update_of(const ParameterState& state, const headrace_parameter_update* given) {
  const headrace_parameter_update from = taken(given, headrace_parameter_update_init, "updates");
  ParameterUpdate update{.state = state, .gradient_dtype = dtype_from_c(from.gradient_dtype)};
  if (from.gradient != nullptr) {
    update.gradient = {static_cast<const std::byte*>(from.gradient),
                       state.elements * size_bytes(update.gradient_dtype)};
  }
  update.t = from.t;
  if (from.hyperparameters != nullptr)
    update.hyperparameters = hyperparameters_of(from.hyperparameters);
  return update;
}

std::vector<ParameterUpdate> updates_of(const CpuOptimizer& optimizer,
                                        const headrace_parameter_state* states,
                                        const headrace_parameter_update* given, std::size_t count) {
  const std::vector<ParameterState> of = states_of(optimizer, states, count);
  std::vector<ParameterUpdate> updates;
  for_each_struct(given, count, "updates", "headrace_parameter_update_init()",
                  [&](const auto* one) { updates.push_back(update_of(of[updates.size()], one)); });
  return updates;
}

GradientStatistics statistics_of(const headrace_gradient_statistics* given) {
  const headrace_gradient_statistics from =
      taken(given, headrace_gradient_statistics_init, "of_all");
  GradientStatistics statistics{.sum_squares = from.sum_squares, .non_finite = from.non_finite};
  if (from.first_non_finite != UINT64_MAX) statistics.first_non_finite = from.first_non_finite;
  return statistics;
}

headrace_gradient_statistics to_c(const GradientStatistics& from) {
  headrace_gradient_statistics statistics;
  headrace_gradient_statistics_init(&statistics);
  statistics.sum_squares = from.sum_squares;
  statistics.non_finite = from.non_finite;
  if (from.first_non_finite != GradientStatistics::kNone)
    statistics.first_non_finite = from.first_non_finite;
  return statistics;
}

headrace_update_result to_c(const CpuStepResult& from) {
  headrace_update_result result{};
  result.skipped = from.skipped ? 1 : 0;
  result.measured = from.measured ? 1 : 0;
  result.gradient_norm = from.gradient_norm;
  result.clip_factor = from.clip_factor;
  result.non_finite_gradients = from.gradients.non_finite;
  return result;
}

headrace_state_bytes to_c(const StateBytes& from) {
  headrace_state_bytes bytes;
  headrace_state_bytes_init(&bytes);
  bytes.master = from.master;
  for (int k = 0; k < 2; ++k) {
    bytes.moment[k] = from.moment[k];
    bytes.moment_scale[k] = from.moment_scale[k];
  }
  return bytes;
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_optimizer_create(const headrace_optimizer_options* options,
                                        headrace_optimizer** out_optimizer, headrace_error* error) {
  return guarded(error, [&] {
    require(out_optimizer, "out_optimizer");
    std::unique_ptr<OptimizerOfC> made(
        new OptimizerOfC{headrace::CpuOptimizer(options_of(options))});
    *out_optimizer = static_cast<headrace_optimizer*>(optimizers.add(std::move(made)));
  });
}
headrace_code headrace_optimizer_destroy(headrace_optimizer* optimizer, headrace_error* error) {
  return guarded(error, [&] {
    if (optimizer != nullptr)
      optimizers.remove(optimizer, [](OptimizerOfC& of) {
        refuse_in_child(of.owner, "optimizer", "the optimizer and its threads are");
      });
  });
}
headrace_code headrace_optimizer_state_bytes(headrace_optimizer* optimizer, headrace_dtype dtype,
                                             headrace_master_layout layout, uint64_t elements,
                                             headrace_state_bytes* out_bytes,
                                             headrace_error* error) {
  return guarded(error, [&] {
    const auto use = optimizers.use(optimizer);
    give(out_bytes,
         to_c(use->optimizer.state_bytes(dtype_from_c(dtype), layout_of(layout), elements)),
         "out_bytes");
  });
}
headrace_code headrace_optimizer_initialize(headrace_optimizer* optimizer,
                                            const headrace_parameter_state* states, size_t count,
                                            headrace_error* error) {
  return guarded(error, [&] {
    const auto use = optimizers.use(optimizer);
    use->optimizer.initialize(states_of(use->optimizer, states, count));
  });
}
headrace_code headrace_optimizer_step(headrace_optimizer* optimizer,
                                      const headrace_parameter_state* states,
                                      const headrace_parameter_update* updates, size_t count,
                                      const headrace_step_options* options,
                                      const headrace_gradient_statistics* of_all,
                                      headrace_update_result* out_result, headrace_error* error) {
  return guarded(error, [&] {
    const auto use = optimizers.use(optimizer);
    headrace::CpuOptimizer& with = use->optimizer;
    if (out_result != nullptr)
      check_struct_size(out_result->struct_size, sizeof *out_result, "out_result");
    const auto these = updates_of(with, states, updates, count);
    const headrace::StepOptions step = step_options_of(options);
    const headrace::CpuStepResult result =
        of_all == nullptr ? with.step(these, step) : with.step(these, step, statistics_of(of_all));
    if (out_result != nullptr) give(out_result, to_c(result), "out_result");
  });
}
headrace_code headrace_optimizer_gradient_statistics(headrace_optimizer* optimizer,
                                                     const headrace_parameter_state* states,
                                                     const headrace_parameter_update* updates,
                                                     size_t count,
                                                     headrace_gradient_statistics* out_statistics,
                                                     headrace_error* error) {
  return guarded(error, [&] {
    const auto use = optimizers.use(optimizer);
    const auto these = updates_of(use->optimizer, states, updates, count);
    give(out_statistics, to_c(use->optimizer.gradient_statistics(these)), "out_statistics");
  });
}
