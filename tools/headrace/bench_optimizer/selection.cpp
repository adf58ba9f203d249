// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/selection.hpp"

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
template <class T>
std::vector<T> meanings(const std::vector<std::pair<std::string, T>>& words) {
  std::vector<T> all;
  for (const auto& [word, value] : words) all.push_back(value);
  return all;
}

// The usual cases: AdamW with every precision of its moments, the other rules once.
std::vector<Case> usual() {
  std::vector<Case> cases;
  for (const MomentCodec moments : meanings(kMomentCodecs)) {
    for (const MasterKind weight : {MasterKind::kSplitResidual, MasterKind::kF32})
      cases.push_back({.rule = OptimizerRule::kAdamW, .moments = moments, .weight = weight});
  }
  for (const OptimizerRule rule : {OptimizerRule::kLion, OptimizerRule::kAdagrad,
                                   OptimizerRule::kSgdMomentum, OptimizerRule::kSgd})
    cases.push_back({.rule = rule});
  return cases;
}

template <class T>
void fill(std::vector<T>& list, bool all, const std::vector<std::pair<std::string, T>>& words,
          T otherwise) {
  if (list.empty()) list = all ? meanings(words) : std::vector<T>{otherwise};
}

std::vector<Case> combinations(CaseAxes& axes) {
  fill(axes.rules, axes.all, kRules, OptimizerRule::kAdamW);
  fill(axes.moments, axes.all, kMomentCodecs, MomentCodec::kF32);
  fill(axes.weights, axes.all, kWeights, MasterKind::kSplitResidual);
  fill(axes.gradients, axes.all, kGradients, DType::kBf16);
  std::vector<Case> cases;
  for (const OptimizerRule rule : axes.rules) {
    for (const MomentCodec moments : axes.moments) {
      for (const MasterKind weight : axes.weights) {
        for (const DType gradient : axes.gradients) {
          Case one{.rule = rule, .moments = moments, .weight = weight, .gradient = gradient};
          if (!one.has_moments()) one.moments = MomentCodec::kF32;
          if (std::ranges::find(cases, one) == cases.end()) cases.push_back(one);
        }
      }
    }
  }
  return cases;
}

void fill_sets(CaseAxes& axes) {
  if (axes.simd.empty() && !axes.all) axes.simd = {kernels::choose_instruction_set()};
  if (axes.simd.empty()) {
    for (const Simd set : meanings(kInstructionSets)) {
      if (kernels::runs_here(set)) axes.simd.push_back(set);
    }
  }
  for (const Simd set : axes.simd) {
    if (kernels::runs_here(set)) continue;
    throw Error(Code::kUnsupported, "--simd asks for " + word_of(kInstructionSets, set) +
                                        ", which this CPU lacks; nothing was measured. Leave it "
                                        "out to measure the best one this CPU has.");
  }
}

// 1, 2, 4 and so on, and all.
void fill_threads(CaseAxes& axes, std::uint32_t usable_cpus) {
  if (!axes.threads.empty()) return;
  for (std::uint32_t threads = 1; axes.all && threads < usable_cpus; threads *= 2)
    axes.threads.push_back(threads);
  axes.threads.push_back(usable_cpus);
}
}  // namespace

std::vector<Case> cases_of(CaseAxes axes, std::uint32_t usable_cpus) {
  const bool listed = !axes.rules.empty() || !axes.moments.empty() || !axes.weights.empty() ||
                      !axes.gradients.empty();
  const std::vector<Case> kinds = listed || axes.all ? combinations(axes) : usual();
  fill_sets(axes);
  fill_threads(axes, usable_cpus);
  std::vector<Case> cases;
  for (const Simd set : axes.simd) {
    for (const std::uint32_t threads : axes.threads) {
      for (const bool checksums : {false, true}) {
        if (checksums && !axes.checksums) continue;
        for (Case one : kinds) {
          one.simd = set;
          one.threads = threads;
          one.checksums = checksums;
          cases.push_back(one);
        }
      }
    }
  }
  return cases;
}
}  // namespace headrace::tools
