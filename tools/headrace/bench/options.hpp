// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of `headrace bench`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/sample_thread.hpp"
#include "bench/workload.hpp"

namespace headrace::tools {
inline constexpr const char* kBenchName = "headrace bench";  // in usage, errors and reports

struct BenchOptions {
  std::vector<std::string> paths;   // one per drive; default: the current directory
  std::vector<Workload> workloads;  // of Mover::kQueue, each once
  std::uint64_t file_bytes = 0;     // per drive
  bool file_bytes_given = false;
  double most_seconds = 60;                       // of all of it
  std::uint64_t most_written_bytes = 8ull << 30;  // per drive, the file's layout included
  std::uint32_t rounds = 6;                       // at least six bound a median with 95 %
  std::optional<double> until;  // ... or until every interval's half-width is within this
  bool compare_fio = false;
  Verify verify = Verify::kStamps;
  std::string json;     // target; "": none
  bool as_fio = false;  // print fio's commands and measure nothing
};

// `headrace bench compare` is no more: says what took its place. Returns the exit code.
int refuse_compare(int argc, const char* const* argv);

// Calls `run` with what the words say. Returns its exit code, or that of a refusal.
int run_with_bench_options(int argc, const char* const* argv,
                           const std::function<int(const BenchOptions&)>& run);
}  // namespace headrace::tools
