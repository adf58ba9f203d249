// SPDX-License-Identifier: Apache-2.0
#include "tune/drive_gauge.hpp"

namespace headrace::tools {
Evaluation DriveGauge::take(const Candidate& candidate, const Amount& amount, std::uint32_t turn) {
  Evaluation evaluation;
  double cpu_seconds = 0, bytes = 0;
  const auto measure = [&](Pattern pattern, std::uint64_t wanted) {
    if (wanted == 0) return 0.0;
    const Sample sample =
        runner_.take(workload_of(candidate, pattern), {.bytes = wanted, .turn = turn});
    cpu_seconds += sample.cpu_seconds;
    bytes += static_cast<double>(sample.bytes());
    return sample.bytes_per_second();
  };
  evaluation.read_rate = measure(Pattern::kRead, amount.read_bytes);
  evaluation.mixed_rate = measure(Pattern::kMixed, amount.mixed_bytes);
  evaluation.cpu_per_gb = cpu_seconds / (bytes / 1e9);
  evaluation.queue = runner_.queue_text();
  return evaluation;
}
}  // namespace headrace::tools
