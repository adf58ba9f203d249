// SPDX-License-Identifier: Apache-2.0
// default_workloads.hpp: the workloads of a run: combinations of the lists given, else a default
// set.
#pragma once
#include <cstdint>
#include <vector>

#include "bench/workload.hpp"

namespace headrace::tools {
// The varied properties; an empty list was not given.
struct Axes {
  std::vector<Pattern> patterns;
  std::vector<std::uint64_t> blocks;
  std::vector<std::uint32_t> depths;
  std::vector<IoQueueKind> queues;
  std::vector<std::uint32_t> batches;
  IoQueueKind queue = IoQueueKind::kAuto;  // where none was given
  std::uint32_t jobs = 1;
  bool also_unregistered = false;
};

// With a list given: all combinations, those not given at the engine's defaults. Else reads over
// block sizes and depths, which wear nothing, and writes and rw at a few of them. More than 128 MiB
// in flight per drive is left out of the default set.
std::vector<Workload> workloads_of(const Axes& axes, bool quick);
}  // namespace headrace::tools
