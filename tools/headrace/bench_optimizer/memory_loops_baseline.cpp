// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/memory_loops.hpp"

namespace headrace::tools {
const MemoryLoops& memory_loops_baseline() noexcept { return kLoops; }
}  // namespace headrace::tools
