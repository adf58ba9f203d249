// SPDX-License-Identifier: Apache-2.0
// cpu_optimizer.cpp: the public face of cpu_optimizer_core.hpp.
#include "headrace/cpu_optimizer.hpp"

#include <utility>

#include "optimizer_cpu/cpu_optimizer_core.hpp"

namespace headrace {
CpuOptimizer::CpuOptimizer(CpuOptimizerOptions options)
    : core_(std::make_unique<CpuOptimizerCore>(std::move(options))) {}
CpuOptimizer::~CpuOptimizer() = default;
CpuOptimizer::CpuOptimizer(CpuOptimizer&&) noexcept = default;
CpuOptimizer& CpuOptimizer::operator=(CpuOptimizer&&) noexcept = default;

StateBytes CpuOptimizer::state_bytes(DType weight, MasterLayout layout,
                                     std::uint64_t elements) const {
  const CpuOptimizerOptions& o = core_->options();
  optimizer_cpu::check_shape({}, weight, layout, elements, "its bytes were not counted");
  return optimizer_cpu::state_bytes(o.rule, o.moments, weight, layout, elements);
}
std::uint32_t CpuOptimizer::threads() const noexcept { return core_->threads(); }
Simd CpuOptimizer::simd() const noexcept { return core_->simd(); }

void CpuOptimizer::initialize(std::span<const ParameterState> parameters) {
  core_->initialize(parameters);
}
CpuStepResult CpuOptimizer::step(std::span<const ParameterUpdate> parameters,
                                 const StepOptions& options) {
  return core_->step(parameters, options, nullptr);
}
CpuStepResult CpuOptimizer::step(std::span<const ParameterUpdate> parameters,
                                 const StepOptions& options, const GradientStatistics& of_all) {
  return core_->step(parameters, options, &of_all);
}
GradientStatistics CpuOptimizer::gradient_statistics(std::span<const ParameterUpdate> parameters) {
  return core_->statistics(parameters);
}
}  // namespace headrace
