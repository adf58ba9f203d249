// SPDX-License-Identifier: Apache-2.0
// kernel_bench.cpp: gradients that arrive and checksums, on one thread, beside what memory gives;
// updates are the rows of `headrace bench optimizer`.
//
// GB/s counts every byte that a loop reads or writes. Before each benchmark an in-place multiply
// over as many bytes is timed: `ceiling` in GB/s, and `share` of it. Buffers are larger than
// caches.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <vector>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "kernels/gradient_pass.hpp"
#include "kernels/kernels.hpp"
#include "pinned/arena.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
namespace {

constexpr std::uint64_t kElements = 16 << 20;  // larger than caches

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// GB/s of a multiply in place, each byte read and written, the best of five; `moved_bytes` in all.
double memory_ceiling(std::uint64_t moved_bytes) {
  const std::uint64_t bytes = std::max<std::uint64_t>(96 * base::kMiB, moved_bytes / 2);
  const pinned::Arena arena(bytes, 1);
  auto* const values = reinterpret_cast<float*>(arena.bytes().data());
  const std::uint64_t count = bytes / sizeof(float);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double began = thread_seconds();
    for (std::uint64_t i = 0; i < count; ++i) values[i] *= 1.0001f;
    benchmark::DoNotOptimize(values[0]);
    benchmark::ClobberMemory();
    const double took = thread_seconds() - began;
    best = std::max(best, 1e-9 * static_cast<double>(2 * bytes) / took);
  }
  return best;
}

// Runs `body` for as long as Google Benchmark wants; each run moves `bytes`.
template <class Body>
void measure(benchmark::State& state, std::uint64_t bytes, Body body) {
  const double ceiling = memory_ceiling(bytes);
  double seconds = 0;
  for (auto _ : state) {
    const double began = thread_seconds();
    body();
    benchmark::ClobberMemory();
    const double took = thread_seconds() - began;
    seconds += took;
    state.SetIterationTime(took);
  }
  const double rate =
      1e-9 * static_cast<double>(bytes) * static_cast<double>(state.iterations()) / seconds;
  state.counters["GB/s"] = rate;
  state.counters["ceiling"] = ceiling;
  state.counters["share"] = rate / ceiling;
}

void accumulate(benchmark::State& state, DType sum, bool overwrite) {
  const pinned::Arena arena(kElements * 6, 1);
  std::byte* const source = arena.bytes().data() + kElements * 4;
  std::memset(source, 0x3a, kElements * 2);
  std::vector<GradientPiece> pieces(kElements / base::kBlockElements);
  Accumulation work;
  work.source = source;
  work.sum = arena.bytes().data();
  work.sum_dtype = sum;
  work.elements = kElements;
  work.overwrite = overwrite;
  work.pieces = pieces.data();
  work.first_piece_elements = work.piece_elements = base::kBlockElements;
  const std::uint64_t per_element = 2 + size_bytes(sum) * (overwrite ? 1 : 2);
  measure(state, kElements * per_element, [&] { kernels::accumulate_on_host(work); });
}

constexpr std::uint64_t kHashBytes = 256 * base::kKiB;

void xxh3(benchmark::State& state, const kernels::HashKernels& target) {
  const pinned::Arena arena(96 * base::kMiB, 1);
  std::uint64_t sum = 0;
  measure(state, arena.size_bytes(), [&] {
    for (std::uint64_t at = 0; at < arena.size_bytes(); at += kHashBytes) {
      sum += target.xxh3_64(arena.bytes().data() + at, kHashBytes, sum);
    }
    benchmark::DoNotOptimize(sum);
  });
}

// `seconds`: of each benchmark, unless --benchmark_min_time has them.
void register_all(std::optional<double> seconds) {
  const auto add = [&](const std::string& name, std::function<void(benchmark::State&)> body) {
    auto* const added = benchmark::RegisterBenchmark(name.c_str(), std::move(body));
    added->UseManualTime()->Unit(benchmark::kMillisecond);
    if (seconds) added->MinTime(*seconds);
  };
  add("accumulate/bf16/first", [](auto& s) { accumulate(s, DType::kBf16, true); });
  add("accumulate/f32/first", [](auto& s) { accumulate(s, DType::kF32, true); });
  add("accumulate/f32/add", [](auto& s) { accumulate(s, DType::kF32, false); });
  for (const Simd set : {Simd::kScalar, Simd::kAvx2}) {
    if (!kernels::runs_here(set)) continue;
    add(std::string("xxh3/") + name_of(set),
        [set](auto& s) { xxh3(s, kernels::hash_kernels_of(set)); });
  }
}

int kernel_bench(int argc, char** argv) {
  const bool timed = !command_line::value_of("--benchmark_min_time", argc, argv).empty();
  for (const auto& facts : {machine_facts(), build_facts()}) {
    for (const Fact& fact : facts) benchmark::AddCustomContext(fact.name, fact.value);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  register_all(timed ? std::nullopt : std::optional(0.2));
  for (const std::string& line : doubts()) fmt::print(stderr, "WARNING: {}\n", line);
  const bool measured = benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  if (measured) return 0;
  fmt::print(stderr,
             "kernel_bench: nothing was measured: updates (adamw, tile_pass) are the rows of "
             "`headrace bench optimizer`\n");
  return 2;
}
}  // namespace
}  // namespace headrace::tools

int main(int argc, char** argv) { return headrace::tools::kernel_bench(argc, argv); }
