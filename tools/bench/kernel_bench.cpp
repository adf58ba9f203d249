// SPDX-License-Identifier: Apache-2.0
// kernel_bench.cpp: the loops of an update on one thread, beside what memory gives.
//
// GB/s counts every byte that a loop reads or writes. Before each benchmark an in-place multiply
// over as many bytes is timed: `ceiling` in GB/s, and `share` of it. Buffers are larger than
// caches.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "kernels/gradient_pass.hpp"
#include "optimizer_cpu/update.hpp"
#include "pinned/arena.hpp"
#include "program/machine.hpp"
#include "swap/record.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::tools {
namespace {
using optimizer_cpu::MasterKind;
using optimizer_cpu::UpdateSpan;
using optimizer_cpu::UpdateStep;

constexpr std::uint64_t kElements = 16 << 20;  // 192 MiB of weights and state
constexpr std::uint64_t kTileElements = 1 << 20;

UpdateStep some_step() {
  return optimizer_cpu::make_update_step(OptimizerRule::kAdamW, {}, 1e-4, 10, 1.0);
}

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

void adamw(benchmark::State& state, Simd set, MasterKind kind) {
  const std::uint64_t per_element = weight_bytes(kind) + master_bytes(kind) + 8;
  const pinned::Arena arena(kElements * (per_element + 2), 1);
  std::byte* at = arena.bytes().data();
  UpdateSpan span;
  span.elements = kElements;
  span.kind = kind;
  span.moment[0] = at;
  span.moment[1] = at + kElements * 4;
  span.weight = at + kElements * 8;
  span.master = at + kElements * (8 + weight_bytes(kind));
  std::byte* const gradient = at + kElements * per_element;
  std::memset(gradient, 0x3a, kElements * 2);
  span.gradient = gradient;
  const auto update = optimizer_cpu::update_function(set);
  const UpdateStep step = some_step();
  // f32 masters are read, their bf16 weights only written.
  const std::uint64_t read = per_element + 2 - (kind == MasterKind::kF32 ? 2 : 0);
  measure(state, kElements * (read + per_element), [&] { update(span, step); });
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

// A tile as the engine sees it between its read and its write.
struct Tile {
  tiles::TilePass pass;
  tiles::TileUpdate update;
  std::array<std::uint64_t, 3 * kTileElements / base::kChunkElements> checksums{};

  partition::Parameter parameter;

  Tile(std::byte* memory, const std::byte* gradient, const partition::Segment& segment,
       const std::uint8_t& received, const UpdateStep& step) {
    pass.tile.elements = kTileElements;
    pass.tile.has_state = true;
    pass.tile.moment[0] = memory;
    pass.tile.moment[1] = memory + kTileElements * 4;
    pass.tile.master = memory + kTileElements * 8;
    pass.tile.weight = memory + kTileElements * 10;
    std::uint64_t* checksum = checksums.data();
    const auto add = [&](std::byte* data, std::uint32_t bytes) {
      // One seed for both: what a pass seals the next one verifies.
      const auto per_block = static_cast<std::uint32_t>(bytes * base::kScaleElements);
      pass.streams[pass.stream_count++] = {data, per_block, checksum, true, true, 7, 7};
      checksum += pass.chunks();
    };
    add(pass.tile.master, 2);
    add(pass.tile.moment[0], 4);
    add(pass.tile.moment[1], 4);
    update.segments = {&segment, 1};
    update.received = &received;
    update.steps = &step;
    update.parameters = &parameter;
    update.gradient = gradient;
    update.update = kernels::kernels_of(kernels::choose_instruction_set()).update;
    pass.initial_weight = pass.tile.weight;
    run();
    pass.initial_weight = nullptr;
    pass.update = &update;
  }
  void run() {
    for (std::uint64_t chunk = 0; chunk < pass.chunks(); ++chunk) {
      tiles::TilePass::run_chunk(&pass, chunk);
    }
  }
};

void tile_pass(benchmark::State& state, bool checksums) {
  constexpr std::uint64_t kTiles = kElements / kTileElements;
  const pinned::Arena arena(kElements * 14, 1);
  std::byte* const gradient = arena.bytes().data() + kElements * 12;
  std::memset(gradient, 0x3a, kElements * 2);
  const partition::Segment segment{.parameter = 0, .first_element = 0, .elements = kTileElements};
  const std::uint8_t received = 1;
  const UpdateStep step = some_step();
  std::vector<std::unique_ptr<Tile>> tiles;
  for (std::uint64_t t = 0; t < kTiles; ++t) {
    tiles.push_back(std::make_unique<Tile>(arena.bytes().data() + t * kTileElements * 12,
                                           gradient + t * kTileElements * 2, segment, received,
                                           step));
    for (tiles::PassStream& stream : tiles.back()->pass.streams) {
      stream.verify = stream.seal = checksums && stream.data != nullptr;
    }
  }
  measure(state, kElements * 26, [&] {
    for (auto& tile : tiles) tile->run();
  });
  for (auto& tile : tiles) {
    if (tile->pass.fault.load() != 0) state.SkipWithError("a checksum did not match");
  }
}

// `seconds`: of each benchmark, unless --benchmark_min_time has them.
void register_all(std::optional<double> seconds) {
  const auto add = [&](const std::string& name, std::function<void(benchmark::State&)> body) {
    auto* const added = benchmark::RegisterBenchmark(name.c_str(), std::move(body));
    added->UseManualTime()->Unit(benchmark::kMillisecond);
    if (seconds) added->MinTime(*seconds);
  };
  for (const Simd set : {Simd::kScalar, Simd::kAvx2, Simd::kAvx512}) {
    if (!kernels::runs_here(set)) continue;
    const std::string name = std::string("adamw/") + name_of(set);
    add(name + "/split", [set](auto& s) { adamw(s, set, MasterKind::kSplitResidual); });
    add(name + "/f32_master", [set](auto& s) { adamw(s, set, MasterKind::kF32); });
    add(name + "/f32_weight", [set](auto& s) { adamw(s, set, MasterKind::kWeightItself); });
  }
  add("accumulate/bf16/first", [](auto& s) { accumulate(s, DType::kBf16, true); });
  add("accumulate/f32/first", [](auto& s) { accumulate(s, DType::kF32, true); });
  add("accumulate/f32/add", [](auto& s) { accumulate(s, DType::kF32, false); });
  for (const Simd set : {Simd::kScalar, Simd::kAvx2}) {
    if (!kernels::runs_here(set)) continue;
    add(std::string("xxh3/") + name_of(set),
        [set](auto& s) { xxh3(s, kernels::hash_kernels_of(set)); });
  }
  add("tile_pass/update", [](auto& s) { tile_pass(s, false); });
  add("tile_pass/verify_update_seal", [](auto& s) { tile_pass(s, true); });
}
}  // namespace
}  // namespace headrace::tools

namespace headrace::tools {
namespace {
using command_line::Fault;

const std::vector<std::string> kFlags = {"--help",
                                         "--version",
                                         "--v",
                                         "--benchmark_list_tests",
                                         "--benchmark_filter",
                                         "--benchmark_min_time",
                                         "--benchmark_repetitions",
                                         "--benchmark_enable_random_interleaving",
                                         "--benchmark_report_aggregates_only",
                                         "--benchmark_display_aggregates_only",
                                         "--benchmark_format",
                                         "--benchmark_out",
                                         "--benchmark_out_format",
                                         "--benchmark_color",
                                         "--benchmark_counters_tabular",
                                         "--benchmark_context",
                                         "--benchmark_time_unit"};

// Google Benchmark takes numbers as they come: it repeats -1 times, and measures for NaN seconds.
void check_numbers(int argc, const char* const* argv) {
  const auto given = [&](const std::string& name) {
    return command_line::value_of(name, argc, argv);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string name = word.substr(0, word.find('='));
    if (name != "--benchmark_min_time" && name != "--benchmark_repetitions") continue;
    if (name == word || word.ends_with('='))
      throw Fault{name + " has no value", "Give " + name + "=N"};
  }
  if (std::string time = given("--benchmark_min_time"); !time.empty()) {
    if (time.ends_with('s')) time.pop_back();  // newer versions have a unit
    if (!time.ends_with('x')) command_line::to_real("--benchmark_min_time", time, {0, 3600});
  }
  if (const std::string count = given("--benchmark_repetitions"); !count.empty())
    command_line::to_whole("--benchmark_repetitions", count, {1, 1000});
}

int kernel_bench(int argc, char** argv) {
  try {
    check_numbers(argc, argv);
    const bool timed = !command_line::value_of("--benchmark_min_time", argc, argv).empty();
    for (const auto& facts : {machine_facts(), build_facts()}) {
      for (const Fact& fact : facts) benchmark::AddCustomContext(fact.name, fact.value);
    }
    benchmark::Initialize(&argc, argv);
    if (argc > 1) {
      throw Fault{"'" + std::string(argv[1]) + "' is not an option",
                  command_line::nearest_option(argv[1], kFlags, "kernel_bench")};
    }
    register_all(timed ? std::nullopt : std::optional(0.2));
  } catch (const Fault& fault) {
    fmt::print(stderr, "kernel_bench: {}\n", command_line::text_of(fault, "nothing was measured"));
    return 2;
  }
  for (const std::string& line : doubts()) fmt::print(stderr, "WARNING: {}\n", line);
  // It says itself that a filter matched nothing.
  const bool measured = benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  return measured ? 0 : 2;
}
}  // namespace
}  // namespace headrace::tools

int main(int argc, char** argv) { return headrace::tools::kernel_bench(argc, argv); }
