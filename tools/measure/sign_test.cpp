// SPDX-License-Identifier: Apache-2.0
#include "measure/sign_test.hpp"

#include <cmath>

namespace headrace::tools {
std::size_t sign_test_rank(std::size_t n, double chance) {
  const double count = static_cast<double>(n);
  double fewer = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const double i = static_cast<double>(k);
    const double ways = std::lgamma(count + 1) - std::lgamma(i + 1) - std::lgamma(count - i + 1);
    fewer += std::exp(ways - count * std::log(2.0));
    if (fewer > chance) return k;
  }
  return n;
}
}  // namespace headrace::tools
