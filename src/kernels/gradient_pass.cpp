// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_pass.hpp"

#include "kernels/kernels.hpp"

namespace headrace::kernels {
void accumulate_on_host(const Accumulation& work) noexcept {
  static const AccumulateFunction accumulate = kernels_of(usable_instruction_set()).accumulate;
  accumulate(work);
}

double tree_sum(std::span<const GradientPiece> pieces) noexcept {
  if (pieces.empty()) return 0;
  if (pieces.size() == 1) return pieces[0].sum_squares;
  const std::size_t half = (pieces.size() + 1) / 2;
  return tree_sum(pieces.first(half)) + tree_sum(pieces.subspan(half));
}
}  // namespace headrace::kernels
