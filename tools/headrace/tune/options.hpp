// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of `headrace tune`: the settings to tune, and limits.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headrace/settings.hpp"
#include "tune/goal.hpp"

namespace headrace::tools {
inline constexpr const char* kTuneName = "headrace tune";

struct TuneOptions {
  std::vector<std::string> paths;  // directories, one per drive; default: the current one
  Goal goal = Goal::kStep;
  IoQueueKind queue = IoQueueKind::kAuto;  // of HEADRACE_IO_QUEUE
  std::uint64_t file_bytes = 0;            // per drive
  bool file_bytes_given = false;
  double most_seconds = 0;               // of all of it
  std::uint64_t most_written_bytes = 0;  // per drive, the file's layout included
  bool quick = false;
  std::string json, write;  // targets; "": none
};

// Calls `run` with what the words say. Returns its exit code, or that of a refusal.
int run_with_tune_options(int argc, const char* const* argv,
                          const std::function<int(const TuneOptions&)>& run);
}  // namespace headrace::tools
