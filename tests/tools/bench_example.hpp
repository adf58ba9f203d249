// SPDX-License-Identifier: Apache-2.0
// bench_example.hpp: measurements for the tests of the reports, made up.
#pragma once
#include <initializer_list>
#include <utility>

#include "bench/measurement.hpp"

namespace headrace::tools::bench_example {
constexpr std::uint64_t kMi = 1 << 20;

// A second of `gb_per_second`, half of it written where the pattern is mixed; latencies around what
// the depth makes of that rate.
inline TimedSample sample_of(const Workload& workload, double gb_per_second, std::uint32_t round) {
  TimedSample sample;
  sample.round = round;
  sample.seconds = 1;
  sample.cpu_seconds = 0.01 * gb_per_second;
  const double rate = gb_per_second * 1e9;
  const auto requests =
      static_cast<std::uint64_t>(rate / static_cast<double>(workload.block_bytes));
  const bool both = workload.pattern == Pattern::kMixed;
  if (reads(workload.pattern)) sample.reads = both ? requests / 2 : requests;
  if (writes(workload.pattern)) sample.writes = both ? requests / 2 : requests;
  sample.read_bytes = sample.reads * workload.block_bytes;
  sample.written_bytes = sample.writes * workload.block_bytes;
  const auto usual = static_cast<std::uint64_t>(
      1e9 * static_cast<double>(workload.block_bytes * workload.depth) / rate);
  for (std::uint64_t i = 0; i < sample.reads; ++i)
    sample.read_latency.add(usual + usual * (i % 100 == 99 ? 4 : 0));
  for (std::uint64_t i = 0; i < sample.writes; ++i)
    sample.write_latency.add(usual + usual * (i % 50 == 49 ? 6 : 0));
  return sample;
}

inline Cell cell_of(Workload workload, std::initializer_list<double> gb_per_second) {
  Cell cell;
  cell.workload = std::move(workload);
  cell.queue = cell.workload.mover == Mover::kFio ? cell.workload.fio_engine : "uring";
  std::uint32_t round = 0;
  for (const double rate : gb_per_second) cell.add(sample_of(cell.workload, rate, round++));
  return cell;
}

// Reading at 1 and 4 MiB and depths of 1, 4 and 16; writing and both at one of them, beside fio.
inline Measurement example() {
  Measurement m;
  m.command = "headrace bench --compare fio /mnt/nvme0";
  m.date = "2026-01-02T03:04:05Z";
  m.machine = {{"cpu", "Some CPU"}, {"kernel", "Linux 6.1"}};
  m.build = {{"headrace", "0.1.0"}};
  m.drives.push_back({.path = "/mnt/nvme0",
                      .file_system = "ext4",
                      .model = "ACME 990",
                      .direct = true,
                      .file_bytes = 4ull << 30});
  double rate = 2.0;
  for (const std::uint64_t block : {kMi, 4 * kMi}) {
    for (const std::uint32_t depth : {1u, 4u, 16u}) {
      m.cells.push_back(
          cell_of({.block_bytes = block, .depth = depth},
                  {rate, rate + 0.01, rate + 0.02, rate + 0.03, rate + 0.04, rate + 0.05}));
      rate += 0.7;
    }
  }
  const Workload write{.pattern = Pattern::kWrite, .block_bytes = 4 * kMi, .depth = 4};
  const Workload mixed{.pattern = Pattern::kMixed, .block_bytes = 4 * kMi, .depth = 4};
  Workload fio = mixed;
  fio.mover = Mover::kFio;
  fio.fio_engine = "io_uring";
  m.cells.push_back(cell_of(write, {3.1, 3.2, 3.3}));
  m.cells.push_back(cell_of(mixed, {4.1, 4.2, 4.3, 4.4, 4.5, 4.6}));
  m.cells.push_back(cell_of(fio, {4.2, 4.3, 4.4, 4.5, 4.6, 4.7}));
  const std::size_t ours = 7, theirs = 8;
  m.comparisons.push_back({.ours = ours,
                           .theirs = theirs,
                           .ratio = median_ratio(m.cells[ours].rates(), m.cells[theirs].rates()),
                           .cpu_ratio = median_interval({0.5, 0.5, 0.5, 0.5, 0.5, 0.5}),
                           .resolved = true});
  m.verification = {.pages = 1234567, .stamps = 89, .mismatches = 0, .first_mismatch = ""};
  m.written_bytes = 8ull << 30;
  m.seconds = 42;
  m.rounds = 6;
  m.fio_version = "fio-3.33";
  return m;
}
}  // namespace headrace::tools::bench_example
