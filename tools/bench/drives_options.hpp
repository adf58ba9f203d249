// SPDX-License-Identifier: Apache-2.0
// drives_options.hpp: the command line of drives_bench.
#pragma once
#include <cstdint>
#include <functional>
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

// Calls `run` with what the words say. Returns its exit code, or that of a refusal.
int run_with_drives_options(int argc, const char* const* argv,
                            const std::function<int(const DrivesOptions&)>& run);
}  // namespace headrace::tools
