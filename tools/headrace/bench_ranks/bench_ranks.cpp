// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/bench_ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "bench_ranks/options.hpp"
#include "bench_ranks/rank_report.hpp"
#include "bench_ranks/raw_threads.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "headrace/transport.hpp"
#include "measure/measured_on.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/report_parts.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"
#include "ranks/joining.hpp"
#include "ranks/local_ranks.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kDescription =
    "Measures all_gather, all_to_all and exchange between ranks beside the same calls of MPI or "
    "torch, made\nraw; and what a rank's threads take of a core while no call is pending. Rounds "
    "are interleaved, and the\nfirst call of each row is compared. A launcher starts the ranks; "
    "rank 0 prints.\n";
constexpr std::chrono::seconds kDeadline(60);

// One rank's, gone before MPI is left.
struct RankSeat {
  std::unique_ptr<RawCalls> raw;
  std::shared_ptr<Collective> collective;
  RankWorld world;
};

CollectiveOptions collective_options() {
  CollectiveOptions options;
  options.deadline = kDeadline;
  options.interrupted = [] { return signal_received() != 0; };
  return options;
}

RankSeat seat_of(const std::shared_ptr<Transport>& transport, std::unique_ptr<RawCalls> raw,
                 const std::string& launcher) {
  RankSeat seat;
  seat.raw = std::move(raw);
  CollectiveOptions collective = collective_options();
  collective.transport = transport;
  seat.collective = make_collective(collective);
  seat.world.world_size = transport->world_size();
  seat.world.launcher = launcher;
  seat.world.transport = transport->name();
  return seat;
}

// Default sizes that do not fit become fewer, which is a warning; those asked for are refused.
void fit_to_memory(std::uint32_t world_size, const platform::Limit& left, RankBenchOptions& options,
                   std::vector<std::string>& warnings) {
  RankContestOptions& contest = options.contest;
  const auto needed = [&] { return contest.ranks_of_process * contest.buffer_bytes(world_size); };
  const auto fits = [&] { return needed() <= left.value - left.value / 8; };
  if (fits()) return;
  const std::string why = fmt::format(
      "pieces of {} take {} of memory, and {} leaves {}", base::format_bytes(contest.sizes.back()),
      base::format_bytes(needed()), left.source, base::format_bytes(left.value));
  while (!options.sizes_given && !fits() && contest.sizes.size() > 1) contest.sizes.pop_back();
  if (!fits()) {
    throw Error(Code::kOutOfBudget,
                why + "; nothing was measured. Free memory, or give smaller --sizes.");
  }
  warnings.push_back(fmt::format("{}; {} are the largest; free some for more", why,
                                 base::format_bytes(contest.sizes.back())));
}

// The others end with the cause where this one fails.
RankContest measured(const RankSeat& seat, const RankContestOptions& options,
                     const RankProgress& progress) {
  try {
    return measure_ranks(*seat.collective, *seat.raw, options, progress);
  } catch (const std::exception& error) {
    const int signal = signal_received();
    seat.collective->abort(signal == 0 ? std::string(error.what())
                                       : fmt::format("ended by SIG{}", ::sigabbrev_np(signal)));
    throw;
  }
}

// Of threads of this process, of which this one is rank 0.
RankContest measured_by_threads(const RankContestOptions& options, std::vector<RankSeat> seats,
                                const RankProgress& progress) {
  std::vector<std::optional<RankContest>> contests(seats.size());
  std::vector<std::exception_ptr> failed(seats.size());
  const auto sit = [&](std::size_t rank, const RankProgress& show) {
    const RankSeat seat = std::move(seats[rank]);  // gone once it has measured, or failed
    try {
      contests[rank] = measured(seat, options, show);
    } catch (...) {
      failed[rank] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < seats.size(); ++rank)
    threads.emplace_back(sit, rank, [](const std::string&, double) {});
  sit(0, progress);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& one : failed) {
    if (one) std::rethrow_exception(one);
  }
  return std::move(*contests[0]);
}

RankContest shown(const RankContestOptions& options, std::vector<RankSeat> seats) {
  if (seats[0].collective->rank() != 0)
    return measured(seats[0], options, [](const std::string&, double) {});
  ProgressLine line;
  const RankProgress progress = [&](const std::string& what, double share) {
    line.show(fmt::format("{:3.0f} %  {}", 100 * share, what));
  };
  if (seats.size() == 1) return measured(seats[0], options, progress);
  return measured_by_threads(options, std::move(seats), progress);
}

int report(const RankBenchOptions& options, MeasuredOn about, const RankWorld& world,
           const RankContest& contest) {
  for (std::string& doubt : rank_doubts(contest)) about.warnings.push_back(std::move(doubt));
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  print_to(out, "{}", ranks_text(contest));
  for (const std::string& warning : about.warnings) print_to(out, "WARNING: {}\n", warning);
  const int exit_code = contest.mismatch.empty() ? kDone : kFailed;
  Json json = document(kBenchRanksName, about);
  json["exit_code"] = exit_code;
  json.update(world_json(world));
  json.update(ranks_json(contest));
  json["warnings"] = about.warnings;
  command_line::write_report(options.json, dump(json));
  if (exit_code == kDone) return kDone;
  tell(
      "{}: after {} a rank had other bytes than were given; do not train over this transport "
      "before that is found.\n",
      kBenchRanksName, contest.mismatch);
  return exit_code;
}

// Ranks of several machines drop the same sizes.
std::uint64_t least_of_all(Collective& collective, std::uint64_t mine) {
  std::vector<std::uint64_t> all(collective.world_size());
  collective.exchange({0, "bench ranks: memory"}, std::as_bytes(std::span(&mine, 1)),
                      std::as_writable_bytes(std::span(all)));
  return std::ranges::min(all);
}

// Those of this process: one for each of its threads, or one of a launch.
std::vector<RankSeat> seats_of(RankBenchOptions& options, const Launch& launch,
                               std::vector<std::string>& warnings) {
  std::vector<RankSeat> seats;
  if (options.threads == 0) {
    const auto transport = join_ranks(launch, collective_options());
    seats.push_back(seat_of(transport, make_raw_calls(launch), launch.launcher));
    ranks::LocalRanks local = ranks::find_local_ranks(*seats[0].collective);
    local.memory_left.value = least_of_all(*seats[0].collective, local.memory_left.value);
    seats[0].world.of_machine = local.of_machine;
    seats[0].world.sharing_cpus = local.sharing_cpus;
    fit_to_memory(transport->world_size(), local.memory_left, options, warnings);
    return seats;
  }
  const auto transports = make_thread_transports(options.threads);
  auto raw = make_raw_thread_calls(options.threads);
  for (std::uint32_t r = 0; r < options.threads; ++r)
    seats.push_back(seat_of(transports[r], std::move(raw[r]), "threads of one process"));
  seats[0].world.of_machine = seats[0].world.sharing_cpus = options.threads;
  fit_to_memory(options.threads, platform::memory_left(), options, warnings);
  return seats;
}

int run(RankBenchOptions options, const Launch& launch, MeasuredOn about) {
  std::vector<RankSeat> seats = seats_of(options, launch, about.warnings);
  const RankWorld world = seats[0].world;
  const bool speaks = seats[0].collective->rank() == 0;
  if (speaks) {
    print_to(options.json == "-" ? stderr : stdout, "{}{}{}", fact_lines("machine", about.machine),
             fact_lines("build", about.build), fact_lines("world", world_lines(world)));
    tell("This takes about {:.0f} s and {} of memory on each rank.\n",
         options.contest.about_seconds(),
         base::format_bytes(options.contest.buffer_bytes(world.world_size)));
  }
  const RankContest contest = shown(options.contest, std::move(seats));
  if (speaks) return report(options, std::move(about), world, contest);
  return contest.mismatch.empty() ? kDone : kFailed;
}

// Before the line is parsed: whose words stand in front of an error.
std::uint32_t rank_of_environment() {
  try {
    return find_launch().rank;
  } catch (const Error&) {  // said once the options are known
    return 0;
  }
}
}  // namespace

int bench_ranks(int argc, const char* const* argv) {
  RankBenchOptions options;
  RankBenchWords words;
  Launch launch;
  CLI::App app(kDescription, kBenchRanksName);
  add_rank_options(app, options, words);
  const std::uint32_t rank = rank_of_environment();
  const std::string name =
      rank == 0 ? kBenchRanksName : fmt::format("{} [rank {}]", kBenchRanksName, rank);
  const int exit_code = run_subcommand(
      {.program = name.c_str(),
       .nothing_done = "nothing was measured",
       .app = app,
       .json = options.json,
       .check =
           [&] {
             finish_rank_options(options, words);
             launch = launch_of(options);
             if (launch.rank > 0) options.json.clear();
             command_line::check_report_target(options.json);
           },
       .run = [&] { return run(options, launch, begin_measurement(kBenchRanksName, argc, argv)); },
       .lost = "the rounds so far are lost"},
      argc, argv);
  leave_launch(exit_code);
  return exit_code;
}
}  // namespace headrace::tools
