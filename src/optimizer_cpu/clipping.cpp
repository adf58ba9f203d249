// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/clipping.hpp"

#include <cmath>

#include "kernels/float_mode.hpp"

namespace headrace::optimizer_cpu {
namespace {
[[gnu::noinline]] void find_clipping(Clipping& out, double sum_squares, const StepOptions& o) {
  out.norm = std::sqrt(sum_squares) * static_cast<double>(o.gradient_scale);
  if (!(o.max_norm > 0)) return;
  const double factor = static_cast<double>(o.max_norm) / (out.norm + 1e-6);
  out.factor = factor > 1 ? 1 : factor;
}
}  // namespace

Clipping clipping_of(double sum_squares, const StepOptions& options) noexcept {
  const kernels::DefaultFloatMode mode;
  Clipping clipping;
  find_clipping(clipping, sum_squares, options);
  return clipping;
}
}  // namespace headrace::optimizer_cpu
