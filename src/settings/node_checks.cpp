// SPDX-License-Identifier: Apache-2.0
// Checks of the settings that divide the ranks into nodes.
#include <cmath>
#include <cstdint>
#include <string>

#include "settings/given.hpp"

namespace headrace::settings {
namespace {
constexpr const char* kNodes = "zero_optimization.zero_hpz_partition_size";
constexpr const char* kGroups = "zero_optimization.mics_shard_size";

// 0: not given, off, left to the trainer, or reported already.
std::uint32_t ranks_of(const GivenValue* given) {
  constexpr double kMost = 65536;  // as keys.txt has it
  if (given == nullptr || !given->value->is_number()) return 0;
  const double ranks = given->value->get<double>();
  return ranks >= 1 && ranks <= kMost && std::trunc(ranks) == ranks
             ? static_cast<std::uint32_t>(ranks)
             : 0;
}

// MiCS shards everything within groups of ranks, and repeats it in each group. A node's copy gives
// what it is for: gathers that stay within the group. All ranks share optimizer state.
void follow_shard_groups(const Given& given, Report& report, Settings& settings) {
  const GivenValue* groups = given.find(kGroups);
  const std::uint32_t ranks = ranks_of(groups), nodes = ranks_of(given.find(kNodes));
  if (ranks == 0) return;
  const std::string number = std::to_string(ranks);
  if (nodes > 1 && nodes != ranks) {
    return report.fault(groups->path, number + " ranks make a group, but " + std::to_string(nodes) +
                                          " in " + kNodes +
                                          "; give the same number in both, or remove one");
  }
  if (ranks == 1) {
    return report.warn(groups->path,
                       "no effect: all ranks share the parameters, where DeepSpeed would keep all "
                       "of them on each; with zero_optimization.stage 2, they are joined once per "
                       "step");
  }
  report.warn(groups->path, "taken as " + std::string(kNodes) + " " + number + ": each group of " +
                                number +
                                " ranks holds the parameters, and all ranks share optimizer state; "
                                "-1 switches it off");
  settings.zero_hpz_partition_size = ranks;
}

// A copy serves the later gathers of a step, which only stage 3 makes.
void warn_of_copies(const Given& given, Report& report, const Settings& settings) {
  if (settings.zero_stage >= 3) return;
  for (const char* key : {kNodes, kGroups}) {
    const GivenValue* found = given.find(key);
    if (ranks_of(found) <= 1) continue;
    report.warn(found->path, "no effect at stage " + std::to_string(settings.zero_stage) +
                                 ": parameters are joined once per step, so nodes keep no copy");
  }
}

// Gradients that the ranks of a node add to each other first.
void check_hierarchical_reduce(const Given& given, Report& report, const Settings& settings) {
  const std::uint32_t ranks = settings.hierarchical_reduce_ranks;
  const GivenValue* found = given.find("headrace.hierarchical_reduce_ranks");
  if (ranks <= 1 || found == nullptr) return;
  if (settings.zero_quantized_gradients) {
    report.fault(found->path,
                 "sums of a node are sent as f32, but zero_optimization.zero_quantized_gradients "
                 "asks for 4 bits; set one of them to its default");
  }
  const std::uint32_t keeps = settings.zero_hpz_partition_size;
  if (keeps > 1 && keeps != ranks) {
    report.fault(found->path,
                 std::to_string(ranks) + " ranks make a node, but " + std::to_string(keeps) +
                     " in zero_optimization.zero_hpz_partition_size; give the same number in both");
  }
}

}  // namespace

void check_nodes(const Given& given, Report& report, Settings& settings) {
  follow_shard_groups(given, report, settings);
  warn_of_copies(given, report, settings);
  check_hierarchical_reduce(given, report, settings);
}
}  // namespace headrace::settings
