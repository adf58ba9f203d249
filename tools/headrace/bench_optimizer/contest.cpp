// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/contest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "measure/rounds.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
std::uint32_t most_threads(const std::vector<Case>& cases) {
  return std::ranges::max(cases, {}, &Case::threads).threads;
}

class Rounds {
 public:
  Rounds(const ContestOptions& options, const ContestProgress& progress)
      : options_(options),
        progress_(progress),
        memory_(streams_of(options.cases), options.elements, gang_, most_threads(options.cases)) {
    contest_.elements = options.elements;
    contest_.kinds = ceiling_kinds();
    for (const Case& of : options.cases) add(of);
    turn_seconds_.assign(contest_.footprints.size(), std::numeric_limits<double>::infinity());
  }

  UpdateContest run() {
    for (std::size_t i = 0; i < contest_.footprints.size() && !time_is_over(); ++i) warm_up(i);
    const double left = options_.most_seconds - watch_.seconds();
    sample_seconds_ = std::clamp(
        left / static_cast<double>(options_.rounds * std::max<std::size_t>(samples(), 1)) / 2, 0.0,
        options_.sample_seconds);
    while (contest_.rounds < options_.rounds && one_round()) ++contest_.rounds;
    contest_.seconds = watch_.seconds();
    return std::move(contest_);
  }

 private:
  void add(const Case& of) {
    std::vector<Stream> streams = streams_of(of);
    auto& all = contest_.footprints;
    auto found = std::ranges::find_if(all, [&](const Footprint& footprint) {
      return footprint.streams == streams && footprint.threads == of.threads;
    });
    if (found == all.end()) {
      all.push_back({.streams = std::move(streams), .threads = of.threads});
      all.back().seconds.resize(contest_.kinds.size());
      found = all.end() - 1;
    }
    found->rows.push_back(contest_.rows.size());
    contest_.rows.push_back({.of = of, .footprint = static_cast<std::size_t>(found - all.begin())});
    passes_.push_back(std::make_unique<UpdatePass>(of, memory_));
  }

  std::size_t samples() const {
    return contest_.rows.size() + contest_.footprints.size() * contest_.kinds.size();
  }
  bool time_is_over() const { return watch_.seconds() >= options_.most_seconds; }

  void show(const std::string& round, const std::string& what) const {
    progress_(round + ", " + what, watch_.seconds() / options_.most_seconds);
  }

  // Once each, looked at, and how long a turn takes.
  void warm_up(std::size_t index) {
    const Footprint& footprint = contest_.footprints[index];
    const Stopwatch turn;
    for (const CeilingKind& kind : contest_.kinds) {
      check_signal();
      run_in_place(kind, footprint.streams, memory_, gang_, footprint.threads);
    }
    for (const std::size_t row : footprint.rows) {
      check_signal();
      show("warming up", text_of(contest_.rows[row].of));
      passes_[row]->prepare(gang_);
      passes_[row]->run_checked(gang_);
    }
    turn_seconds_[index] = turn.seconds();
  }

  // One pass after the other for as long as a sample is: seconds per pass.
  template <class Pass>
  double sample(const Pass& pass) const {
    check_signal();
    double seconds = 0;
    std::uint32_t passes = 0;
    do {
      seconds += pass();
      ++passes;
    } while (seconds < sample_seconds_);
    return seconds / passes;
  }

  void one_turn(std::size_t index, std::uint32_t round) {
    Footprint& footprint = contest_.footprints[index];
    const std::size_t kinds = contest_.kinds.size(), all = kinds + footprint.rows.size();
    for (std::size_t i = 0; i < all; ++i) {
      const std::size_t which = in_turn(i, all, round);
      if (which < kinds) {
        footprint.seconds[which].push_back(sample([&] {
          return run_in_place(contest_.kinds[which], footprint.streams, memory_, gang_,
                              footprint.threads);
        }));
        continue;
      }
      UpdateRow& row = contest_.rows[footprint.rows[which - kinds]];
      UpdatePass& pass = *passes_[footprint.rows[which - kinds]];
      show(fmt::format("round {}", round + 1), text_of(row.of));
      pass.prepare(gang_);
      row.seconds.push_back(sample([&] { return pass.run(gang_); }));
    }
  }

  // False where the time was over before all had their turn.
  bool one_round() {
    const std::size_t count = contest_.footprints.size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = in_turn(i, count, contest_.rounds);
      const Stopwatch turn;
      if (watch_.seconds() + turn_seconds_[index] > options_.most_seconds) return false;
      one_turn(index, contest_.rounds);
      turn_seconds_[index] = turn.seconds();
    }
    return true;
  }

  const ContestOptions& options_;
  const ContestProgress& progress_;
  const Stopwatch watch_;
  Gang gang_;
  const StateMemory memory_;
  UpdateContest contest_;
  std::vector<std::unique_ptr<UpdatePass>> passes_;  // per row
  std::vector<double> turn_seconds_;                 // per footprint, the last time
  double sample_seconds_ = 0;
};
}  // namespace

double Footprint::bytes_per_parameter() const {
  double sum = 0;
  for (const Stream& stream : streams) sum += stream.bytes_per_scale;
  return sum / static_cast<double>(base::kScaleElements);
}

MedianInterval UpdateContest::ns_per_parameter(const UpdateRow& row) const {
  std::vector<double> values = row.seconds;
  for (double& value : values) value *= 1e9 / static_cast<double>(elements);
  return median_interval(std::move(values));
}

MedianInterval UpdateContest::bytes_per_second(const UpdateRow& row) const {
  std::vector<double> values = row.seconds;
  const double bytes = moved_per_parameter(row.of).all() * static_cast<double>(elements);
  for (double& value : values) value = bytes / value;
  return median_interval(std::move(values));
}

MedianInterval UpdateContest::bytes_per_second(const Footprint& footprint, std::size_t kind) const {
  std::vector<double> values = footprint.seconds[kind];
  const double bytes = 2 * footprint.bytes_per_parameter() * static_cast<double>(elements);
  for (double& value : values) value = bytes / value;
  return median_interval(std::move(values));
}

std::size_t UpdateContest::best_kind(const Footprint& footprint) const {
  std::size_t best = 0;
  for (std::size_t kind = 1; kind < kinds.size(); ++kind) {
    if (bytes_per_second(footprint, kind).median > bytes_per_second(footprint, best).median)
      best = kind;
  }
  return best;
}

MedianInterval UpdateContest::share(const UpdateRow& row) const {
  const Footprint& footprint = footprints[row.footprint];
  std::vector<double> ceiling = footprint.seconds[best_kind(footprint)];
  const double bytes = moved_per_parameter(row.of).all() / (2 * footprint.bytes_per_parameter());
  for (double& value : ceiling) value *= bytes;
  return median_ratio(ceiling, row.seconds);
}

std::optional<MedianInterval> UpdateContest::checksum_cost(const UpdateRow& row) const {
  Case twin = row.of;
  twin.checksums = false;
  const auto found = std::ranges::find(rows, twin, &UpdateRow::of);
  if (!row.of.checksums || found == rows.end() || row.seconds.empty()) return std::nullopt;
  return median_ratio(row.seconds, found->seconds);
}

UpdateContest measure(const ContestOptions& options, const ContestProgress& progress) {
  return Rounds(options, progress).run();
}
}  // namespace headrace::tools
