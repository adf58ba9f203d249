// SPDX-License-Identifier: Apache-2.0
// update_options.hpp: the command line of update_bench.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "headrace/settings.hpp"

namespace headrace::tools {
struct UpdateOptions {
  std::uint64_t parameters = 100'000'000;
  std::uint32_t rounds = 9;
  bool parameters_on_nvme = false;
  bool in_memory = true;  // measure the same step in memory, too
  std::string folder = ".";
  std::string json = {};  // file for the report; "-": stdout
  std::optional<double> require_ratio = {};
  Settings settings = {};  // of the engine whose state is on NVMe
};

// Calls `run` with what the words say. Returns its exit code, or that of a refusal.
int run_with_update_options(int argc, const char* const* argv,
                            const std::function<int(const UpdateOptions&)>& run);
}  // namespace headrace::tools
