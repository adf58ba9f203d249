// SPDX-License-Identifier: Apache-2.0
#include "base/hash_loops.hpp"

namespace headrace::base {
const HashTarget& hash_avx2() noexcept { return kHashTarget; }
}  // namespace headrace::base
