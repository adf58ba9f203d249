// SPDX-License-Identifier: Apache-2.0
// options.hpp: what `headrace tune` is asked to tune, within which limits.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/settings.hpp"
#include "tune/goal.hpp"

namespace headrace::tools {
struct TuneOptions {
  std::vector<std::string> paths;  // directories, one per drive; default: the current one
  Goal goal = Goal::kStep;
  IoQueueKind queue = IoQueueKind::kAuto;  // of HEADRACE_IO_QUEUE
  std::uint64_t file_bytes = 0;            // per drive
  bool file_bytes_given = false;
  double most_seconds = 0;               // of all of it
  std::uint64_t most_written_bytes = 0;  // per drive, the file's layout included
  bool quick = false;
  std::string json, write, write_deepspeed;  // targets; "": none
};

struct ParsedTuneOptions {
  std::optional<TuneOptions> options;  // none: `text` is to be printed
  std::string text;                    // help, or what is wrong
  int exit_code = 0;                   // 0 help, 2 refused
  std::string json;                    // --json, found even where the rest does not parse
};
ParsedTuneOptions parse_tune_options(int argc, const char* const* argv);
}  // namespace headrace::tools
