// SPDX-License-Identifier: Apache-2.0
// adapter_options.hpp: the command line of adapter_bench.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace headrace::tools {
struct AdapterOptions {
  std::uint32_t layers = 4;
  std::uint32_t hidden = 256;  // a multiple of 64, the width of a head
  std::uint32_t batch = 8;
  std::uint32_t sequence = 128;
  std::uint32_t rounds = 40;
  std::uint32_t threads = 0;  // torch's; 0: torch decides
  std::string json = {};      // file for the report; "-": stdout
  std::optional<double> at_most = {};
};

// Calls `run` with what the words say. Returns its exit code, or that of a refusal.
int run_with_adapter_options(int argc, const char* const* argv,
                             const std::function<int(const AdapterOptions&)>& run);
}  // namespace headrace::tools
