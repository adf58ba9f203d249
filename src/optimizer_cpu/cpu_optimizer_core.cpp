// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/cpu_optimizer_core.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error_text.hpp"
#include "base/sizes.hpp"
#include "base/units.hpp"
#include "kernels/float_mode.hpp"
#include "kernels/gradient_pass.hpp"
#include "optimizer_cpu/clipping.hpp"
#include "optimizer_cpu/hyperparameter_checks.hpp"
#include "optimizer_cpu/masters.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "platform/machine.hpp"
#include "settings/environment.hpp"

namespace headrace {
using optimizer_cpu::UnitPiece;

namespace {
constexpr std::uint32_t kMaxThreads = 1024;

[[noreturn]] void refuse(const std::string& cause, const std::string& help) {
  throw Error(Code::kInvalidArgument,
              "CpuOptimizerOptions: " + cause + ": no optimizer was made; " + help);
}

void check_options(const CpuOptimizerOptions& o) {
  if (o.rule > OptimizerRule::kSgdMomentum) refuse("rule is none", "take an OptimizerRule");
  if (o.moments > MomentCodec::kBlock8) refuse("moments is no codec", "take a MomentCodec");
  if (o.non_finite > NonFinite::kSkip) refuse("non_finite is none", "take a NonFinite");
  if (o.non_finite == NonFinite::kSkip && !o.check_gradients) {
    refuse("non_finite = kSkip beside check_gradients = false, which looks at none",
           "take one of them back");
  }
  if (o.simd > Simd::kAvx512) refuse("simd is no instruction set", "take a Simd");
  if (o.threads > kMaxThreads) {
    refuse("threads = " + std::to_string(o.threads),
           "at most " + std::to_string(kMaxThreads) + "; 0 takes what the limits leave");
  }
  if (o.run_units && o.threads != 0) {
    refuse("threads = " + std::to_string(o.threads) + " beside a pool of the caller's",
           "leave threads 0, or run_units empty");
  }
}

Simd choose(Simd simd) {
  if (const auto forced = kernels::forced_instruction_set()) return *forced;
  if (simd == Simd::kBest) return kernels::choose_instruction_set();
  if (kernels::runs_here(simd)) return simd;
  throw Error(Code::kUnsupported, std::string("CpuOptimizerOptions: simd asks for ") +
                                      name_of(simd) +
                                      ", which this CPU lacks: no optimizer was made; take "
                                      "Simd::kBest");
}

std::unique_ptr<async::ThreadTeam> make_pool(const CpuOptimizerOptions& options) {
  if (options.run_units) return nullptr;
  Settings settings;
  settings.update_threads = options.threads;
  const std::uint32_t wanted = settings::update_threads(settings);
  const std::uint64_t threads = wanted > 0 ? wanted : platform::usable_cpus().value;
  try {
    return std::make_unique<async::ThreadTeam>(
        static_cast<std::uint32_t>(std::min<std::uint64_t>(threads, kMaxThreads)),
        async::ThreadTeam::Options{.nodes = platform::usable_cpus_by_node()});
  } catch (const Error& error) {
    throw Error(error.code(),
                "no thread could be started: " + base::errno_text(error.sys_errno()) + ": of " +
                    std::to_string(threads) +
                    " threads of an optimizer one is missing, and none was made; raise the limit "
                    "on tasks (ulimit -u, the cgroup's pids.max), or lower "
                    "CpuOptimizerOptions::threads",
                error.sys_errno());
  }
}
}  // namespace

CpuOptimizerCore::CpuOptimizerCore(CpuOptimizerOptions options)
    : options_((check_options(options), std::move(options))),
      simd_(choose(options_.simd)),
      caller_pool_(options_.run_units
                       ? std::make_unique<optimizer_cpu::CallerPool>(options_.run_units)
                       : nullptr),
      pool_(make_pool(options_)),
      checks_(options_.rule, options_.moments) {}

CpuOptimizerCore::~CpuOptimizerCore() {
  // A forked child has none of the threads; its parent joins them.
  if (pool_ != nullptr && pool_->in_forked_child()) static_cast<void>(pool_.release());
}

CpuOptimizerCore::Call::Call(CpuOptimizerCore& core, const char* name) : core_(core) {
  if (core.pool_ != nullptr && core.pool_->in_forked_child()) {
    throw Error(Code::kWrongState,
                std::string("CpuOptimizer::") + name +
                    ": called in a forked child, which has none of the optimizer's threads: "
                    "nothing was done; make an optimizer in the child");
  }
  if (core.under_way_.exchange(true, std::memory_order_acquire)) {
    throw Error(Code::kWrongState,
                std::string("CpuOptimizer::") + name +
                    ": another call is under way: nothing was done by this one; call from one "
                    "thread at a time, or make an optimizer for each");
  }
  core.units_left_by_pool_ = 0;
}

void CpuOptimizerCore::run(Function function) {
  if (pool_ != nullptr) {
    pool_->run(list_.units(), function, this);
  } else {
    units_left_by_pool_ += caller_pool_->run(list_.units(), function, this);
  }
}

void CpuOptimizerCore::check(std::span<const ParameterUpdate> parameters) {
  checks_.begin("nothing was updated");
  list_.clear();
  for (const ParameterUpdate& update : parameters) {
    checks_.update(update);
    list_.add(update.state.elements);
  }
  checks_.all();
  updates_ = parameters;
}

// ---- first values ----

void CpuOptimizerCore::initialize(std::span<const ParameterState> parameters) {
  const Call call(*this, "initialize");
  checks_.begin("nothing was written");
  list_.clear();
  for (const ParameterState& state : parameters) {
    checks_.state(state, optimizer_cpu::ParameterChecks::Weights::kRead);
    list_.add(state.elements);
  }
  checks_.all();
  states_ = parameters;
  run(&initialize_unit);
}

void CpuOptimizerCore::initialize_unit(void* self, std::uint64_t unit) noexcept {
  const CpuOptimizerCore& core = *static_cast<CpuOptimizerCore*>(self);
  for (const UnitPiece& piece : core.list_.unit(unit)) {
    optimizer_cpu::reset_state(optimizer_cpu::arithmetic_of(core.options_.rule),
                               core.span_of(core.states_[piece.parameter], piece));
  }
}

optimizer_cpu::UpdateSpan CpuOptimizerCore::span_of(const ParameterState& state,
                                                    const UnitPiece& piece) const {
  const auto data = [](std::span<std::byte> array) {
    return array.empty() ? nullptr : array.data();
  };
  optimizer_cpu::UpdateSpan whole;
  whole.kind = optimizer_cpu::master_kind(state.dtype, state.layout);
  whole.codec = options_.moments;
  whole.weight = data(state.weight);
  whole.master = data(state.master);
  for (std::uint32_t k = 0; k < optimizer_cpu::kMaxMoments; ++k) {
    whole.moment[k] = data(state.moment[k]);
    whole.moment_scale[k] = reinterpret_cast<std::uint8_t*>(data(state.moment_scale[k]));
  }
  return optimizer_cpu::part_of(whole, piece.first_element, piece.elements);
}

// ---- the gradients' statistics ----

void CpuOptimizerCore::measure_unit(void* self, std::uint64_t unit) noexcept {
  CpuOptimizerCore& core = *static_cast<CpuOptimizerCore*>(self);
  const kernels::AccumulateFunction measure = kernels::kernels_of(core.simd_).accumulate;
  for (const UnitPiece& piece : core.list_.unit(unit)) {
    const ParameterUpdate& update = core.updates_[piece.parameter];
    Accumulation work;
    work.source = update.gradient.data() + piece.first_element * size_bytes(update.gradient_dtype);
    work.source_dtype = update.gradient_dtype;
    work.elements = piece.elements;
    work.pieces = &core.sums_[piece.first_block];
    work.piece_elements = base::kBlockElements;
    measure(work);
  }
}

GradientStatistics CpuOptimizerCore::measure() {
  sums_.assign(list_.blocks(), {});
  run(&measure_unit);
  GradientStatistics totals;
  {
    const kernels::DefaultFloatMode mode;
    totals.sum_squares = kernels::tree_sum(sums_);
  }
  for (const UnitPiece& piece : list_.all()) {
    const std::uint64_t before = totals.non_finite;
    for (std::uint64_t e = 0; e < piece.elements; e += base::kBlockElements)
      totals.non_finite += sums_[piece.first_block + e / base::kBlockElements].non_finite;
    if (before == 0 && totals.non_finite > 0) totals.first_non_finite = piece.parameter;
  }
  return totals;
}

GradientStatistics CpuOptimizerCore::statistics(std::span<const ParameterUpdate> parameters) {
  const Call call(*this, "gradient_statistics");
  check(parameters);
  return measure();
}

// ---- a step ----

namespace {
void check_statistics(const GradientStatistics& given) {
  const bool known = given.non_finite > 0;
  if (given.sum_squares >= 0 && (known || std::isfinite(given.sum_squares))) return;
  if (known && std::isnan(given.sum_squares)) return;
  throw Error(Code::kInvalidArgument,
              "step: sum_squares = " + base::format_number(given.sum_squares) +
                  (known ? "" : " with no value that is not finite") +
                  ": nothing was updated; give the sums of what gradient_statistics() returned");
}
}  // namespace

// `gradients` may be of other calls and ranks too, so it is looked for again among this call's.
void CpuOptimizerCore::stop_at(const GradientStatistics& gradients) {
  const std::size_t first = measure().first_non_finite;
  throw Error(
      Code::kNotFinite,
      (first < updates_.size()
           ? "the gradient of " + optimizer_cpu::name_or_place(updates_[first].state.name, first)
           : std::string("a gradient that was not given to this call")) +
          " holds NaN or infinity (" + std::to_string(gradients.non_finite) +
          " values in all); nothing was updated. Go on with the next gradients, stop, or "
          "let NonFinite::kSkip pass over such steps.");
}

void CpuOptimizerCore::prepare_steps(const StepOptions& options, double factor) {
  steps_.clear();
  for (const ParameterUpdate& update : updates_) {
    steps_.push_back(optimizer_cpu::make_update_step(options_.rule, update.hyperparameters,
                                                     options.learning_rate, update.t, factor));
    optimizer_cpu::check_step_size(options, update.hyperparameters, steps_.back(),
                                   update.state.name);
    steps_.back().random_key =
        optimizer_cpu::random_key(options_.rounding_seed, update.state.number, update.t);
  }
}

void CpuOptimizerCore::update_unit(void* self, std::uint64_t unit) noexcept {
  const CpuOptimizerCore& core = *static_cast<CpuOptimizerCore*>(self);
  const optimizer_cpu::UpdateFunction function = optimizer_cpu::update_function(core.simd_);
  for (const UnitPiece& piece : core.list_.unit(unit)) {
    const ParameterUpdate& update = core.updates_[piece.parameter];
    optimizer_cpu::UpdateSpan span = core.span_of(update.state, piece);
    span.gradient_dtype = update.gradient_dtype;
    span.gradient =
        update.gradient.data() + piece.first_element * size_bytes(update.gradient_dtype);
    function(span, core.steps_[piece.parameter]);
  }
}

CpuStepResult CpuOptimizerCore::step(std::span<const ParameterUpdate> parameters,
                                     const StepOptions& options, const GradientStatistics* of_all) {
  const Call call(*this, "step");
  optimizer_cpu::check_step_options(options);
  if (of_all != nullptr) check_statistics(*of_all);
  check(parameters);
  CpuStepResult result;
  result.measured = of_all != nullptr || options_.check_gradients || options.max_norm > 0;
  optimizer_cpu::Clipping clipping;
  if (result.measured) {
    result.gradients = of_all != nullptr ? *of_all : measure();
    clipping = optimizer_cpu::clipping_of(result.gradients.sum_squares, options);
    result.gradient_norm = clipping.norm;
  }
  if (options_.check_gradients && result.gradients.non_finite > 0) {
    if (options_.non_finite == NonFinite::kStop) stop_at(result.gradients);
    result.skipped = true;
    result.clip_factor = 0;
  } else {
    result.clip_factor = clipping.factor;
    prepare_steps(options, static_cast<double>(options.gradient_scale) * result.clip_factor);
    run(&update_unit);
  }
  result.units_left_by_pool = units_left_by_pool_;
  return result;
}

}  // namespace headrace
