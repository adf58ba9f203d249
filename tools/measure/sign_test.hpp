// SPDX-License-Identifier: Apache-2.0
// sign_test.hpp: picks the measurements that bound the median of several, whatever their
// distribution.
#pragma once
#include <cstddef>

namespace headrace::tools {
// The largest k for which fewer than k of `n` fair coins fall on one side with a probability of at
// most `chance`; 0 where none is. So the true median lies below the k-th smallest of `n` values,
// and above the k-th largest, as rarely.
std::size_t sign_test_rank(std::size_t n, double chance);
}  // namespace headrace::tools
