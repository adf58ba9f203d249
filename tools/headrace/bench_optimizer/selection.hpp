// SPDX-License-Identifier: Apache-2.0
// selection.hpp: selects the cases to measure.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench_optimizer/cases.hpp"

namespace headrace::tools {
inline const std::vector<std::pair<std::string, Simd>> kInstructionSets = {
    {"scalar", Simd::kScalar}, {"avx2", Simd::kAvx2}, {"avx512", Simd::kAvx512}};

// As given; an empty list: not.
struct CaseAxes {
  std::vector<OptimizerRule> rules = {};
  std::vector<MomentCodec> moments = {};
  std::vector<MasterKind> weights = {};
  std::vector<DType> gradients = {};
  std::vector<Simd> simd = {};
  std::vector<std::uint32_t> threads = {};
  bool all = false;        // a list that is not given is everything
  bool checksums = false;  // each case also with them
};
// Each once, grouped by instruction set, threads and checksums. Throws headrace::Error kUnsupported
// for an instruction set that this CPU lacks.
std::vector<Case> cases_of(CaseAxes axes, std::uint32_t usable_cpus);
}  // namespace headrace::tools
