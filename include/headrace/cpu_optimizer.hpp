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
// The arithmetic is the engine's (headrace/optimizer.hpp). The same input gives the same bits,
// whatever the instruction set, the number of threads and the thread pool are, and however the
// parameters are divided among calls. There is one exception: the norm, and with it the clip
// factor, depends on which parameters a call receives, and in which order.
//
// Memory:  belongs to the caller. Arrays must be aligned for their elements, and must not overlap.
// Threads: one call at a time; a second call at the same time throws kWrongState. A call uses all
//          threads, including the caller's, and returns when all work is done.
// Errors:  headrace::Error naming the parameter and the array. A call checks all of its arguments
//          before it writes anything. Nothing can fail after these checks, so a step happens as a
//          whole or not at all.
// Process: threads are named headrace-updN, block signals, and end with the object. A forked child
//          has no such threads: if the parent had started any, calls in the child throw
//          kWrongState.
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
// The caller's thread pool. It must call run(context, unit) once for each unit in [0, units), on
// any threads and in any order, and return when all these calls have returned. `run` does not
// throw, and the pool must not call it after returning. If the pool returns or throws before it has
// run every unit, the calling thread runs the rest. If the pool runs a unit twice, the unit's work
// is done only once.
using RunUnits = std::function<void(std::uint64_t units,
                                    void (*run)(void* context, std::uint64_t unit), void* context)>;

struct CpuOptimizerOptions {
  OptimizerRule rule = OptimizerRule::kAdamW;
  MomentCodec moments = MomentCodec::kF32;
  std::uint64_t rounding_seed = 0;  // for moments that are stochastically rounded
  // The response to gradients with NaN or infinity. kStop: step() throws kNotFinite and names the
  // first parameter with such a gradient. kSkip: step() sets CpuStepResult::skipped. Neither
  // updates anything.
  NonFinite non_finite = NonFinite::kStop;
  // false: values that are not finite enter the state, so kSkip is refused with this setting.
  // max_norm then clips as torch does: the factor is 0 for an infinite norm, and NaN for a NaN
  // norm. Without max_norm, gradients are then read once, not twice.
  bool check_gradients = true;
  // 0: as many as affinity, cgroup quota and Slurm allow; at most 1024. HEADRACE_NUM_THREADS
  // overrides this value.
  std::uint32_t threads = 0;
  RunUnits run_units = nullptr;  // replaces the optimizer's own threads
  Simd simd = Simd::kBest;
};

// The size in bytes of each array of a parameter's state. 0: the parameter has no such array.
struct StateBytes {
  std::uint64_t master = 0;
  std::uint64_t moment[2] = {};
  std::uint64_t moment_scale[2] = {};  // for 8-bit moments: one per 256 elements
  std::uint64_t total() const noexcept {
    return master + moment[0] + moment[1] + moment_scale[0] + moment_scale[1];
  }
};

// One parameter's arrays, each of exactly the size that state_bytes() gives; an array that the
// parameter does not have is empty. These are views: the arrays must outlive the call that they are
// passed to.
//
// For kSplit, where `bits` are the bits of the f32 master, modulo 2^32:
//   weight   = (bits + 0x8000) >> 16
//   residual = bits - (weight << 16), its lower 16 bits
//   bits     = (weight << 16) + int16(residual)
struct ParameterState {
  std::string_view name = {};  // for messages; if empty, they give the index in the call
  // Selects the random bits that round the parameter's moments. The number must be unique to the
  // parameter, and the same in every step. With f32 moments, it may have any value.
  std::uint64_t number = 0;
  std::uint64_t elements = 0;
  DType dtype = DType::kBf16;
  MasterLayout layout = MasterLayout::kSplit;  // for bf16; fp16 has an f32 master, f32 has none
  std::span<std::byte> weight = {};            // elements of dtype
  std::span<std::byte> master = {};            // u16 residuals (kSplit) or f32
  std::span<std::byte> moment[2] = {};         // exp_avg, exp_avg_sq; or the rule's only moment
  std::span<std::byte> moment_scale[2] = {};   // for 8-bit moments
};

struct ParameterUpdate {
  ParameterState state = {};
  DType gradient_dtype = DType::kBf16;
  std::span<const std::byte> gradient = {};  // as many elements as the weight has
  std::uint64_t t = 0;  // number of updates of this parameter, including this one: 1, 2, ...
  Hyperparameters hyperparameters = {};
};

// Statistics of the gradients as given, before scaling. To combine the statistics of several ranks
// or calls, add up sum_squares and non_finite.
struct GradientStatistics {
  // Summed in double precision, over blocks of 65,536 elements of a parameter, in a fixed tree. So
  // the result is the same with any number of threads.
  double sum_squares = 0;
  std::uint64_t non_finite = 0;  // values that are NaN or infinite
  // The first parameter that has such a value, as an index into the given span.
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t first_non_finite = kNone;
};

struct CpuStepResult {
  // True: nothing was updated, because of `gradients.non_finite`. The norm is then not finite, and
  // clip_factor is 0.
  bool skipped = false;
  bool measured = false;  // false: the next two members were not computed
  GradientStatistics gradients;
  double gradient_norm = 0;  // of the scaled gradients, before clipping
  double clip_factor = 1;    // the factor that clipping applied
  // Above 0 only if a caller's pool did not run every unit that it was given.
  std::uint64_t units_left_by_pool = 0;
};

class CpuOptimizerCore;
class CpuOptimizer {
 public:
  // Starts the threads.
  // Throws  kInvalidArgument for options that contradict each other or have invalid values.
  //         kSettings or kUnsupported for an invalid HEADRACE_SIMD or HEADRACE_NUM_THREADS, and for
  //         options that this CPU or the limit on tasks does not allow.
  explicit CpuOptimizer(CpuOptimizerOptions options = {});
  ~CpuOptimizer();
  CpuOptimizer(CpuOptimizer&&) noexcept;
  CpuOptimizer& operator=(CpuOptimizer&&) noexcept;

  // Throws kInvalidArgument: no such dtype or layout, or more than 2^48 elements.
  StateBytes state_bytes(DType weight, MasterLayout layout, std::uint64_t elements) const;
  std::uint32_t threads() const noexcept;  // 0: a caller's pool is used
  Simd simd() const noexcept;              // never kBest

  // Sets moments to zero, and masters from the weights. A program that has values of its own, such
  // as those of a checkpoint, writes them afterwards. Memory that was never touched before is
  // placed near the thread that initialises it. If step() later gets the same parameters in the
  // same order, each thread starts with the parameters that it initialised. On a machine with
  // several NUMA nodes, each of the optimizer's own threads stays on one node.
  // If this throws kInvalidArgument, nothing was written.
  void initialize(std::span<const ParameterState> parameters);

  // Computes the norm, clips, and updates all of these parameters once.
  // Cost:   two passes over the gradients, or one if neither check_gradients nor max_norm is set;
  //         one pass over all other arrays. A unit is 131,072 elements, of several parameters if
  //         they are small. The checks sort the arrays by address.
  // Throws  kNotFinite with NonFinite::kStop. kInvalidArgument, naming the parameter and the array,
  //         for
  //         - a wrong length, a null pointer or a wrong alignment,
  //         - arrays that overlap, if one of them is written,
  //         - t = 0, invalid hyperparameters or options, or a step size that overflows,
  //         - a `number` that two parameters share, if moments are rounded.
  //         In all of these cases, nothing was updated. If the caller's pool throws, the call
  //         passes the exception on. If that was in the first pass, nothing was updated; if it was
  //         in the second, everything was.
  CpuStepResult step(std::span<const ParameterUpdate> parameters, const StepOptions& options);
  // Like step() above, but uses the statistics `of_all`, which the caller has computed over all
  // gradients. Use it if several ranks or calls share one norm. Values that are not finite stop or
  // skip the step as above. Also throws kInvalidArgument if sum_squares is negative, or if it is
  // not finite although `non_finite` is 0.
  CpuStepResult step(std::span<const ParameterUpdate> parameters, const StepOptions& options,
                     const GradientStatistics& of_all);
  // Makes only the first pass of step(), with the same checks.
  GradientStatistics gradient_statistics(std::span<const ParameterUpdate> parameters);

 private:
  std::unique_ptr<CpuOptimizerCore> core_;
};
}  // namespace headrace
