// SPDX-License-Identifier: Apache-2.0
// headrace/cpu_optimizer.hpp: updates a program's own arrays, without an engine, files or a
// framework.
//
//   headrace::CpuOptimizer optimizer({.rule = OptimizerRule::kAdamW});
//   const StateBytes bytes = optimizer.state_bytes(DType::kBf16, MasterLayout::kSplit, elements);
//   ParameterState w = {.name = "w", .elements = elements, .weight = ..., .master = ...};
//   optimizer.initialize({&w, 1});                     // moments 0, master from the weight
//   const ParameterUpdate update = {.state = w, .gradient = ..., .t = 1};
//   CpuStepResult r = optimizer.step({&update, 1}, {.learning_rate = 1e-3f, .max_norm = 1});
//
// The arithmetic is the engine's (headrace/optimizer.hpp). The same input gives the same bits with
// every instruction set, number of threads and pool, and however the parameters are divided among
// calls. Only the norm, and with it the clip factor, depends on which parameters one call gets, and
// in which order.
//
// Memory:  belongs to the caller. Arrays have the alignment of their elements, and do not overlap.
// Threads: one call at a time; a second call meanwhile throws kWrongState. A call works on all
//          threads, including the caller's, and returns when all work is done.
// Errors:  headrace::Error naming parameter and array. A call checks all of its arguments before it
//          writes a byte. After that nothing can fail, so a step happens as a whole or not at all.
// Process: threads are named headrace-updN, block signals, and end with the object. A forked child
//          has no such threads: if any were started, calls there throw kWrongState.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "headrace/error.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/settings.hpp"
#include "headrace/tensor.hpp"

namespace headrace {
// A caller's pool: calls run(context, unit) once for each unit in [0, units), on any threads, in
// any order, and returns when all have returned. `run` does not throw; the pool must not call it
// after returning. The calling thread does the units that a pool leaves out when it returns or
// throws; a unit that it calls twice is done once.
using RunUnits = std::function<void(std::uint64_t units,
                                    void (*run)(void* context, std::uint64_t unit), void* context)>;

struct CpuOptimizerOptions {
  OptimizerRule rule = OptimizerRule::kAdamW;
  MomentCodec moments = MomentCodec::kF32;
  std::uint64_t rounding_seed = 0;  // for moments that are stochastically rounded
  // For gradients with NaN or infinity. kStop: step() throws kNotFinite and names the first such
  // parameter. kSkip: step() sets CpuStepResult::skipped. Neither updates anything.
  NonFinite non_finite = NonFinite::kStop;
  // false: values that are not finite enter the state, so kSkip is refused with it. max_norm then
  // clips as torch does: the factor is 0 for an infinite norm, and NaN for NaN. Without max_norm,
  // gradients are then read once, not twice.
  bool check_gradients = true;
  // 0: what affinity, cgroup quota and Slurm allow; at most 1024. HEADRACE_NUM_THREADS overrides
  // it.
  std::uint32_t threads = 0;
  RunUnits run_units = nullptr;  // instead of threads of its own
  Simd simd = Simd::kBest;
};

// The size of each array of a parameter's state; 0: the parameter has no such array.
struct StateBytes {
  std::uint64_t master = 0;
  std::uint64_t moment[2] = {};
  std::uint64_t moment_scale[2] = {};  // one per 256 elements, of 8-bit moments
  std::uint64_t total() const noexcept {
    return master + moment[0] + moment[1] + moment_scale[0] + moment_scale[1];
  }
};

// One parameter's arrays, each of exactly the size that state_bytes() gives; an array that the
// parameter does not have is empty. These are views: the arrays must outlive the call that takes
// them.
//
// For kSplit, with `bits` the bits of the f32 master, modulo 2^32:
//   weight   = (bits + 0x8000) >> 16
//   residual = bits - (weight << 16), its lower 16 bits
//   bits     = (weight << 16) + int16(residual)
struct ParameterState {
  std::string_view name = {};  // for messages; empty: they use its index in the call
  // Selects the random bits that round its moments. It must be unique to the parameter, and the
  // same in every step. With f32 moments it may have any value.
  std::uint64_t number = 0;
  std::uint64_t elements = 0;
  DType dtype = DType::kBf16;
  MasterLayout layout = MasterLayout::kSplit;  // of bf16; fp16 has an f32 master, f32 none
  std::span<std::byte> weight = {};            // elements of dtype
  std::span<std::byte> master = {};            // u16 residuals (kSplit) or f32
  std::span<std::byte> moment[2] = {};         // exp_avg, exp_avg_sq; or the rule's only one
  std::span<std::byte> moment_scale[2] = {};   // of 8-bit moments
};

struct ParameterUpdate {
  ParameterState state = {};
  DType gradient_dtype = DType::kBf16;
  std::span<const std::byte> gradient = {};  // as many elements as the weight
  std::uint64_t t = 0;  // updates of this parameter, this one included: 1, 2, ...
  Hyperparameters hyperparameters = {};
};

// Statistics of the gradients as given, before scaling. Several ranks or calls can be combined by
// adding up both numbers.
struct GradientStatistics {
  // In double, over blocks of 65,536 elements of a parameter, added in a fixed tree: the same on
  // any number of threads.
  double sum_squares = 0;
  std::uint64_t non_finite = 0;  // values that are NaN or infinite
  // The first parameter that has such a value, as an index into the span given.
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t first_non_finite = kNone;
};

struct CpuStepResult {
  // Because of `gradients.non_finite`, nothing was updated. The norm is then not finite, and
  // clip_factor is 0.
  bool skipped = false;
  bool measured = false;  // false: the next two were not computed
  GradientStatistics gradients;
  double gradient_norm = 0;  // of the scaled gradients, before clipping
  double clip_factor = 1;    // what they were multiplied by
  // Above 0 only where a caller's pool did not run every unit it was given.
  std::uint64_t units_left_by_pool = 0;
};

class CpuOptimizerCore;
class CpuOptimizer {
 public:
  // Starts threads.
  // Throws  kInvalidArgument for options that contradict each other or have invalid values.
  //         kSettings or kUnsupported for HEADRACE_SIMD and HEADRACE_NUM_THREADS, and for options
  //         that this CPU or the limit on tasks does not allow.
  explicit CpuOptimizer(CpuOptimizerOptions options = {});
  ~CpuOptimizer();
  CpuOptimizer(CpuOptimizer&&) noexcept;
  CpuOptimizer& operator=(CpuOptimizer&&) noexcept;

  // Throws kInvalidArgument: no such dtype or layout, more than 2^48 elements.
  StateBytes state_bytes(DType weight, MasterLayout layout, std::uint64_t elements) const;
  std::uint32_t threads() const noexcept;  // 0: a caller's pool
  Simd simd() const noexcept;              // never kBest

  // Sets moments to zero, and masters from the weights. A program that has values of its own, such
  // as from a checkpoint, writes them afterwards. If step() later gets the same parameters in the
  // same order, each thread starts with those it initialised first, so memory that was never
  // touched is placed near it. On a machine with several NUMA nodes, each of the optimizer's own
  // threads stays on one node.
  // Throws kInvalidArgument, in which case nothing was written.
  void initialize(std::span<const ParameterState> parameters);

  // Computes the norm, clips, and updates all of these parameters once.
  // Cost:   two passes over the gradients, and one over all other arrays; without check_gradients
  //         and max_norm, only one pass over the gradients. Units are 131,072 elements, of several
  //         parameters where they are small. Checks sort the arrays by address.
  // Throws  kNotFinite with NonFinite::kStop. kInvalidArgument, naming parameter and array, for
  //         - a wrong length, a null pointer or a wrong alignment,
  //         - arrays that overlap, if one of them is written,
  //         - t = 0, invalid hyperparameters or options, or a step size that overflows,
  //         - a number that is given twice, if moments are rounded.
  //         Nothing was updated then. The call also passes on an exception of a caller's pool. If
  //         the pool threw in the first pass, nothing was updated; in the second, everything was.
  CpuStepResult step(std::span<const ParameterUpdate> parameters, const StepOptions& options);
  // The same, with statistics of all gradients that were taken before, for use if other ranks or
  // calls share the norm. Values that are not finite stop or skip the step as above. Also throws
  // kInvalidArgument for a sum that is negative, or not finite although `non_finite` is 0.
  CpuStepResult step(std::span<const ParameterUpdate> parameters, const StepOptions& options,
                     const GradientStatistics& of_all);
  // The first pass alone, with the checks of step().
  GradientStatistics gradient_statistics(std::span<const ParameterUpdate> parameters);

 private:
  std::unique_ptr<CpuOptimizerCore> core_;
};
}  // namespace headrace
