// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/rank_contest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstring>
#include <span>
#include <thread>

#include "base/units.hpp"
#include "bench_ranks/rank_side.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "measure/rounds.hpp"
#include "program/machine.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint64_t kMostCalls = 1 << 20;

// The messages of the ranks between measurements. A signal to one of them ends all at the same
// place.
class RankAgreement {
 public:
  explicit RankAgreement(Collective& collective) : collective_(collective) {}

  std::vector<double> of_all(double mine) {
    const Said said = {mine, signal_received(), 0};
    std::vector<Said> all(collective_.world_size());
    collective_.exchange({sequence_++, "bench ranks: agreement"},
                         std::as_bytes(std::span(&said, 1)),
                         std::as_writable_bytes(std::span(all)));
    check_signal_of(all);
    std::vector<double> values;
    for (const Said& one : all) values.push_back(one.value);
    return values;
  }
  double most(double mine) { return std::ranges::max(of_all(mine)); }

 private:
  struct Said {
    double value = 0;
    std::int32_t signal = 0, padding = 0;
  };
  void check_signal_of(const std::vector<Said>& all) const {
    if (all[collective_.rank()].signal != 0) check_signal();
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].signal == 0) continue;
      throw Error(Code::kPeerLost,
                  fmt::format("rank {} was ended by SIG{}; the rounds so far are lost. Start the "
                              "ranks again",
                              r, ::sigabbrev_np(all[r].signal)));
    }
  }
  Collective& collective_;
  std::uint64_t sequence_ = 0;
};

std::string text_of(const RankRow& row) {
  return fmt::format("{} of {}", name_of(row.call), base::format_bytes(row.piece_bytes));
}

class RankRounds {
 public:
  RankRounds(Collective& collective, RawCalls& raw, const RankContestOptions& options,
             const RankProgress& progress)
      : options_(options),
        progress_(progress),
        agreement_(collective),
        memory_(collective, raw, options.sizes.back()) {
    contest_.raw_names = raw.names();
    contest_.world_size = collective.world_size();
    for (const RankCall call : kRankCalls) {
      for (const std::uint64_t size : options.sizes)
        contest_.rows.push_back({.call = call, .piece_bytes = size});
    }
  }

  RankContest run() {
    agree_on_options();
    for (RankRow& row : contest_.rows) warm_up(row);
    const std::size_t count = contest_.rows.size();
    for (; contest_.rounds < options_.rounds; ++contest_.rounds) {
      for (std::size_t i = 0; i < count; ++i) {
        RankRow& row = contest_.rows[in_turn(i, count, contest_.rounds)];
        show(fmt::format("round {}", contest_.rounds + 1), row);
        // One right after the other, each first as often.
        const bool raw_first = (contest_.rounds + i) % 2 == 1;
        if (raw_first) row.raw.push_back(seconds_of(row, RankSide::kRaw));
        const double before = cpu_seconds();
        row.ours.push_back(seconds_of(row, RankSide::kOurs));
        row.cpu.push_back(agreement_.most(cpu_seconds() - before) /
                          static_cast<double>(row.count * options_.ranks_of_process));
        if (!raw_first) row.raw.push_back(seconds_of(row, RankSide::kRaw));
      }
    }
    measure_idle();
    contest_.seconds = watch_.seconds();
    return std::move(contest_);
  }

 private:
  void show(const std::string& round, const RankRow& row) {
    const auto all = static_cast<double>(contest_.rows.size() * (options_.rounds + 1));
    progress_(round + ", " + text_of(row), static_cast<double>(begun_++) / all);
  }

  void agree_on_options() {
    std::string facts =
        fmt::format("{} {} {}", options_.rounds, options_.sample_seconds, options_.idle_seconds);
    for (const std::uint64_t size : options_.sizes) facts += fmt::format(" {}", size);
    // As many bits as a double holds exactly.
    const std::uint64_t hash = kernels::xxh3_64(std::as_bytes(std::span(facts)), 0) >> 12;
    const std::vector<double> all = agreement_.of_all(static_cast<double>(hash));
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      throw Error(Code::kInvalidArgument,
                  fmt::format("rank {} was started with other options than rank 0; nothing was "
                              "measured. Give every rank the same line",
                              r));
    }
  }

  void warm_up(RankRow& row) {
    show("warming up", row);
    for (const RankSide side : {RankSide::kOurs, RankSide::kRaw}) {
      memory_.fill(row.call, row.piece_bytes);
      (void)agreement_.most(0);  // another rank may still fill what it takes into
      memory_.call(row.call, side, row.piece_bytes);
      const bool arrived = memory_.has_arrived(row.call, row.piece_bytes);
      if (agreement_.most(arrived ? 0 : 1) > 0 && contest_.mismatch.empty())
        contest_.mismatch = text_of(row) + (side == RankSide::kRaw ? ", raw" : "");
    }
    for (row.count = 1; row.count < kMostCalls; row.count *= 4) {
      const double seconds = static_cast<double>(row.count) * seconds_of(row, RankSide::kRaw);
      if (seconds < options_.sample_seconds / 4) continue;
      const double wanted = options_.sample_seconds / seconds * static_cast<double>(row.count);
      row.count =
          static_cast<std::uint64_t>(std::clamp(wanted, 1.0, static_cast<double>(kMostCalls)));
      break;
    }
    (void)seconds_of(row, RankSide::kOurs);
  }

  // Of a call, on the slowest rank.
  double seconds_of(const RankRow& row, RankSide side) {
    (void)agreement_.most(0);
    const Stopwatch watch;
    for (std::uint64_t i = 0; i < row.count; ++i) memory_.call(row.call, side, row.piece_bytes);
    return agreement_.most(watch.seconds()) / static_cast<double>(row.count);
  }

  static void sleep(double seconds) {
    const Stopwatch watch;
    while (watch.seconds() < seconds && signal_received() == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  void measure_idle() {
    progress_("idle", 1);
    // Lets the last calls' remaining work end.
    const double settled = std::min(0.2, options_.idle_seconds);
    (void)agreement_.most(0);
    sleep(settled);
    const double before = cpu_seconds();
    const Stopwatch watch;
    sleep(options_.idle_seconds);
    const double share = (cpu_seconds() - before) / watch.seconds() / options_.ranks_of_process;
    contest_.idle_seconds = options_.idle_seconds;
    contest_.idle_shares = agreement_.of_all(share);
  }

  const RankContestOptions& options_;
  const RankProgress& progress_;
  const Stopwatch watch_;
  RankAgreement agreement_;
  RankMemory memory_;
  RankContest contest_;
  std::uint64_t begun_ = 0;  // rows, warm-up included
};
}  // namespace

const char* name_of(RankCall call) noexcept {
  return call == RankCall::kAllGather  ? "all_gather"
         : call == RankCall::kAllToAll ? "all_to_all"
                                       : "exchange";
}
const char* name_of(RankCall call, const RawCalls::Names& names) noexcept {
  return call == RankCall::kAllGather  ? names.all_gather
         : call == RankCall::kAllToAll ? names.all_to_all
                                       : names.exchange;
}

std::uint64_t RankContestOptions::buffer_bytes(std::uint32_t world_size) const {
  return (2 * std::uint64_t{world_size} - 1) * sizes.back();
}

double RankContestOptions::about_seconds() const {
  const auto rows = static_cast<double>(kRankCalls.size() * sizes.size());
  return rows * 2 * (rounds + 1) * sample_seconds + idle_seconds + 0.2;
}

RankContest measure_ranks(Collective& collective, RawCalls& raw, const RankContestOptions& options,
                          const RankProgress& progress) {
  return RankRounds(collective, raw, options, progress).run();
}
}  // namespace headrace::tools
