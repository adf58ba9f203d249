// SPDX-License-Identifier: Apache-2.0
// ceiling.hpp: measures the memory bandwidth of a pass in place over the streams of an update.
#pragma once
#include <string>
#include <vector>

#include "bench_optimizer/memory_targets.hpp"
#include "bench_optimizer/state.hpp"

namespace headrace::tools {
struct CeilingKind {
  std::string name;  // "xor avx512, abreast"
  MemoryLoops::Pass pass = nullptr;
  bool abreast = false;  // 256 elements of each stream at a time, as an update goes; else one
                         // stream of a chunk after the other
};
// Those of the two best instruction sets of this CPU.
std::vector<CeilingKind> ceiling_kinds();

// Reads and writes each byte of `streams` once. Seconds.
double run_in_place(const CeilingKind& kind, const std::vector<Stream>& streams,
                    const StateMemory& memory, Gang& gang, std::uint32_t threads);
}  // namespace headrace::tools
