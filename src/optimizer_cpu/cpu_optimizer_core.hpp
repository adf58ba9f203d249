// SPDX-License-Identifier: Apache-2.0
// cpu_optimizer_core.hpp: CpuOptimizer's calls: checks each, divides it into units and runs them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "async/thread_team.hpp"
#include "headrace/cpu_optimizer.hpp"
#include "headrace/device.hpp"
#include "kernels/instruction_set.hpp"
#include "optimizer_cpu/caller_pool.hpp"
#include "optimizer_cpu/parameter_checks.hpp"
#include "optimizer_cpu/unit_list.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace {
class CpuOptimizerCore {
 public:
  explicit CpuOptimizerCore(CpuOptimizerOptions options);
  ~CpuOptimizerCore();

  void initialize(std::span<const ParameterState> parameters);
  GradientStatistics statistics(std::span<const ParameterUpdate> parameters);
  CpuStepResult step(std::span<const ParameterUpdate> parameters, const StepOptions& options,
                     const GradientStatistics* of_all);

  const CpuOptimizerOptions& options() const noexcept { return options_; }
  std::uint32_t threads() const noexcept { return pool_ == nullptr ? 0 : pool_->threads(); }
  Simd simd() const noexcept { return simd_; }

 private:
  // Allows one call at a time. Rejects a second one, and one in a forked child.
  class Call {
   public:
    Call(CpuOptimizerCore& core, const char* name);
    ~Call() { core_.under_way_.store(false, std::memory_order_release); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CpuOptimizerCore& core_;
  };
  using Function = void (*)(void* core, std::uint64_t unit) noexcept;
  void check(std::span<const ParameterUpdate> parameters);
  void run(Function function);
  GradientStatistics measure();
  [[noreturn]] void stop_at(const GradientStatistics& gradients);
  void prepare_steps(const StepOptions& options, double factor);
  optimizer_cpu::UpdateSpan span_of(const ParameterState& state,
                                    const optimizer_cpu::UnitPiece& piece) const;
  static void initialize_unit(void* core, std::uint64_t unit) noexcept;
  static void measure_unit(void* core, std::uint64_t unit) noexcept;
  static void update_unit(void* core, std::uint64_t unit) noexcept;

  const CpuOptimizerOptions options_;
  const Simd simd_;
  const std::unique_ptr<optimizer_cpu::CallerPool> caller_pool_;
  std::unique_ptr<async::ThreadTeam> pool_;  // null: the caller's pool
  std::atomic<bool> under_way_{false};
  optimizer_cpu::ParameterChecks checks_;
  // For the current call; members only to reuse their memory.
  std::span<const ParameterState> states_;
  std::span<const ParameterUpdate> updates_;
  optimizer_cpu::UnitList list_;
  std::vector<optimizer_cpu::UpdateStep> steps_;
  std::vector<GradientPiece> sums_;
  std::uint64_t units_left_by_pool_ = 0;
};

}  // namespace headrace
