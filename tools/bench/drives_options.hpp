// SPDX-License-Identifier: Apache-2.0
// drives_options.hpp: the command line of drives_bench.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::tools {
struct DrivesOptions {
  std::uint64_t parameters = 30'000'000;
  std::uint32_t rounds = 5;
  std::vector<double> throttle_bytes_per_second = {};  // per folder; empty: as the drives are
  std::string json = {};                               // file for the report; "-": stdout
  std::optional<double> require_sum = {};
  Settings settings = {};  // of the engine over all folders
};

struct ParsedDrivesOptions {
  std::optional<DrivesOptions> options;  // unset: print `text` and end
  std::string text = {};
  int exit_code = 0;
  std::string json = {};
};
ParsedDrivesOptions parse_drives_options(int argc, const char* const* argv);
}  // namespace headrace::tools
