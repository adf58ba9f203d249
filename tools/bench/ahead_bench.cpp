// SPDX-License-Identifier: Apache-2.0
// ahead_bench.cpp: steps of several ranks that join and reduce ahead of their trainers, against
// steps that meet at each call, over the link that the launcher's ranks have.
//
// The model's groups have the same size. A trainer's computation is a pause of a given time per
// group, forward and twice as long backward, as a GPU's would be: the CPU is the transport's. Each
// round runs every row once, with an engine of its own; its first two steps do not count. The time
// on the wire is that in collective calls, of a row without computation that meets at each call.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "bench_program.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/engine.hpp"
#include "headrace/launch.hpp"
#include "headrace/transport.hpp"
#include "measure/statistics.hpp"
#include "program/output.hpp"
#include "program/run_program.hpp"
#include "program/signals.hpp"
#include "ranks/joining.hpp"

namespace headrace::tools {
namespace {
using command_line::add_number;
using Clock = std::chrono::steady_clock;

constexpr const char* kDescription =
    "Compares steps of several ranks that join and reduce ahead of their trainers with steps that "
    "meet at\neach call. A launcher starts the ranks (mpirun, torchrun); rank 0 prints. "
    "Computation is a pause.\n";
constexpr const char* kFooter =
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 128 + n ended by signal "
    "n.\n";

struct Options {
  std::uint32_t groups = 16, rounds = 7, steps = 3;
  std::uint64_t elements = 524'288;  // of a group
  double wire_of_compute = 0.8;
  std::string nvme = {}, json = {};
};

struct Row {
  const char* name;
  RankOrder order;
  std::uint32_t ahead;
  bool computes;
};
// The first measures the wire, from which the computation of the others follows.
constexpr std::array kRows = {
    Row{"wire alone", RankOrder::kEach, 0, false}, Row{"at each call", RankOrder::kEach, 0, true},
    Row{"0 ahead", RankOrder::kTrace, 0, true}, Row{"1 ahead", RankOrder::kTrace, 1, true},
    Row{"2 ahead", RankOrder::kTrace, 2, true}};

struct Cost {
  double seconds = 0, wire = 0;  // of a step, of the slowest rank
  std::uint64_t sent_bytes = 0;
  double meetings = 0;
};

class Bench {
 public:
  Bench(const Options& options, std::shared_ptr<Collective> collective)
      : options_(options),
        collective_(std::move(collective)),
        gradient_(options.elements, 0x3c00) {}

  // `pause`: of a group's forward pass.
  Cost run(const Row& row, std::chrono::duration<double> pause) {
    Settings settings;
    settings.rank_agreement = row.order;
    settings.ranks_ahead = row.ahead;
    settings.prefetch_groups = 3;
    if (!options_.nvme.empty()) {
      settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
      settings.nvme_paths = {options_.nvme};
    }
    Engine engine(settings, {.collective = collective_, .log = [](LogLevel, std::string_view) {}});
    for (std::uint32_t g = 0; g < options_.groups; ++g)
      engine.add_group("h." + std::to_string(g),
                       {{"w", DType::kBf16, {static_cast<std::int64_t>(options_.elements)}, {}}});
    engine.freeze();
    for (std::uint32_t g = 0; g < options_.groups; ++g) {
      engine.load({g}, [](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, std::byte{0x3c});
      });
    }
    for (int warm = 0; warm < 2; ++warm) step(engine, row, pause);
    const Stats before = engine.stats();
    const auto begin = Clock::now();
    for (std::uint32_t s = 0; s < options_.steps; ++s) step(engine, row, pause);
    const double seconds =
        std::chrono::duration<double>(Clock::now() - begin).count() / options_.steps;
    const Stats after = engine.stats();
    Cost cost;
    cost.seconds = slowest(engine, seconds);
    cost.wire =
        slowest(engine, (after.collective_seconds - before.collective_seconds) / options_.steps);
    cost.sent_bytes = (after.collective_sent_bytes - before.collective_sent_bytes) / options_.steps;
    cost.meetings = static_cast<double>(after.rank_meetings - before.rank_meetings) /
                    static_cast<double>(options_.steps);
    engine.close();
    return cost;
  }

 private:
  void step(Engine& engine, const Row& row, std::chrono::duration<double> pause) {
    if (signal_received() != 0) throw Error(Code::kInterrupted, "a signal ended the measurement");
    const auto compute = [&](double times) {
      if (row.computes) std::this_thread::sleep_for(pause * times);
    };
    for (std::uint32_t g = 0; g < options_.groups; ++g) {
      const Gathered weights = engine.gather({g});
      compute(1);
    }
    for (std::uint32_t g = options_.groups; g-- > 0;) {
      const Gathered weights = engine.gather({g});
      compute(2);
      for (const ParameterId id : engine.parameters({g}))
        engine.add_gradient(id, gradient_.data(), DType::kBf16);
    }
    engine.step({.learning_rate = 1e-3f});
  }

  double slowest(Engine& engine, double mine) const {
    std::vector<double> all(collective_->world_size());
    engine.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return *std::ranges::max_element(all);
  }

  const Options& options_;
  std::shared_ptr<Collective> collective_;
  std::vector<std::uint16_t> gradient_;
};

struct Measured {
  std::vector<std::array<Cost, kRows.size()>> rounds;
  std::vector<double> compute_seconds;  // of a step, per round
};

std::vector<double> each_round(const Measured& measured,
                               const std::function<double(std::size_t round)>& value) {
  std::vector<double> values;
  for (std::size_t r = 0; r < measured.rounds.size(); ++r) values.push_back(value(r));
  return values;
}

Measured measure(const Options& options, Bench& bench) {
  Measured measured;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    std::array<Cost, kRows.size()>& costs = measured.rounds.emplace_back();
    costs[0] = bench.run(kRows[0], {});
    const double compute = costs[0].wire / options.wire_of_compute;
    measured.compute_seconds.push_back(compute);
    const std::chrono::duration<double> pause(compute / (3 * options.groups));
    for (std::size_t r = 1; r < kRows.size(); ++r) {
      const std::size_t row = 1 + (r + round) % (kRows.size() - 1);
      costs[row] = bench.run(kRows[row], pause);
    }
  }
  return measured;
}

std::string text_of(const MedianInterval& interval) {
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", interval.median, interval.least, interval.most);
}

Json report(const Options& options, const Measured& measured, std::FILE* out) {
  Json rows = Json::array();
  const auto wire = [&](std::size_t r) { return measured.rounds[r][0].wire; };
  print_to(out, "{:14} {:>22} {:>22} {:>22} {:>22} {:>8} {:>9}\n", "row", "seconds of a step",
           "of the longest lane", "wire exposed, share", "times each call's rate", "MB sent",
           "meetings");
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    const auto seconds = [&](std::size_t r) { return measured.rounds[r][row].seconds; };
    const MedianInterval step = median_interval(each_round(measured, seconds));
    const MedianInterval exposed = median_interval(each_round(measured, [&](std::size_t r) {
      const double compute = kRows[row].computes ? measured.compute_seconds[r] : 0;
      return (seconds(r) - compute) / wire(r);
    }));
    const MedianInterval of_longest = median_interval(each_round(measured, [&](std::size_t r) {
      const double compute = kRows[row].computes ? measured.compute_seconds[r] : 0;
      return seconds(r) / std::max(compute, wire(r));
    }));
    const MedianInterval faster = median_interval(each_round(
        measured, [&](std::size_t r) { return measured.rounds[r][1].seconds / seconds(r); }));
    const Cost& last = measured.rounds.back()[row];
    print_to(out, "{:14} {:>22} {:>22} {:>22} {:>22} {:>8.1f} {:>9.1f}\n", kRows[row].name,
             text_of(step), text_of(of_longest), text_of(exposed), text_of(faster),
             1e-6 * static_cast<double>(last.sent_bytes), last.meetings);
    rows.push_back({{"row", kRows[row].name},
                    {"seconds", step.median},
                    {"of_longest_lane", of_longest.median},
                    {"wire_exposed", exposed.median},
                    {"times_each", faster.median},
                    {"sent_bytes", last.sent_bytes},
                    {"meetings", last.meetings}});
  }
  const MedianInterval compute = median_interval(measured.compute_seconds);
  const MedianInterval wires = median_interval(each_round(measured, wire));
  print_to(out, "computation    {:>22}\nwire           {:>22}\n", text_of(compute), text_of(wires));
  return {{"rows", rows},
          {"compute_seconds", compute.median},
          {"wire_seconds", wires.median},
          {"rounds", options.rounds}};
}

int run(const Options& options) {
  CollectiveOptions ranks;
  ranks.deadline = std::chrono::seconds(60);
  ranks.interrupted = [] { return signal_received() != 0; };
  ranks.transport = join_ranks(find_launch(), ranks);
  const auto collective = make_collective(ranks);
  if (collective->world_size() == 1) {
    throw Error(Code::kUnsupported,
                "one rank has nobody to meet; nothing was measured. Start several, as in mpirun -n "
                "2 ahead_bench");
  }
  Bench bench(options, collective);
  const bool speaks = collective->rank() == 0;
  std::FILE* const out = out_beside(options.json);
  const std::vector<Fact> config = {
      {"world", fmt::format("{} ranks over {}", collective->world_size(), ranks.transport->name())},
      {"model", fmt::format("{} groups of {} bf16 parameters, {}", options.groups, options.elements,
                            options.nvme.empty() ? "in memory" : "on NVMe")},
      {"computation", fmt::format("the time on the wire / {}", options.wire_of_compute)}};
  if (speaks) print_to(out, "{}", head_text(config, {}));
  const Measured measured = measure(options, bench);
  if (!speaks) return kDone;
  Json json = head_json("ahead_bench", config, {});
  json.update(report(options, measured, out));
  command_line::write_report(options.json, dump(json));
  return kDone;
}
}  // namespace

int ahead_bench(int argc, const char* const* argv) {
  Options options;
  const int exit_code = run_bench_program(
      {.name = "ahead_bench",
       .description = kDescription,
       .footer = kFooter,
       .json = options.json,
       .add_options =
           [&](CLI::App& app) {
             add_number(app, "--groups", options.groups, {2, 1000}, "groups of the model [16]");
             add_number(app, "--elements", options.elements, {256, 1073741824},
                        "bf16 parameters of a group [524288]");
             add_number(app, "--rounds", options.rounds, {1, 1000},
                        "rounds, each of every row [7]");
             add_number(app, "--steps", options.steps, {1, 1000}, "steps of a row and round [3]");
             app.add_option("--wire", options.wire_of_compute,
                            "time on the wire as a share of the computation's [0.8]");
             app.add_option("--nvme", options.nvme,
                            "folder on a drive for weights and optimizer state [in memory]");
             app.add_option("--json", options.json, "write a report, - to stdout");
           },
       .check = [](const CLI::App&) {},
       .run = [&] { return run(options); }},
      argc, argv);
  leave_launch(exit_code);
  return exit_code;
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("ahead_bench", argc, argv, headrace::tools::ahead_bench);
}
