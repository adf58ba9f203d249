// SPDX-License-Identifier: Apache-2.0
// rounds.hpp: takes all samples of a run: a round of each workload to warm up and to find how much
// it moves in its time, then rounds of just as many bytes each, in an order that turns.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "bench/runner.hpp"

namespace headrace::tools {
// Of a comparison, half the interval's width as a share, where --until names none.
inline constexpr double kResolvedHalfWidth = 0.03;

struct RoundsOptions {
  std::uint32_t rounds = 6;
  std::optional<double> until;           // end once each interval's half-width is within this share
  double most_seconds = 60;              // for the rounds alone
  double other_seconds = 0;              // that --runtime is for besides
  std::uint64_t most_written_bytes = 0;  // per drive, by the rounds alone
  bool compare_fio = false;
};

// Told before each sample: the round (0: to warm up), what, and the share of the work done.
using RoundProgress =
    std::function<void(std::uint32_t round, const std::string& what, double share)>;

class Rounds {
 public:
  // Fills measurement.cells (one per workload; with fio a twin each), comparisons, rounds,
  // warnings. run() throws NothingMeasured where no round was possible, and what the runner throws.
  Rounds(Runner& runner, Measurement& measurement, const std::vector<Workload>& workloads,
         const RoundsOptions& options, RoundProgress progress);
  void run();

 private:
  // The amount that a cell moves per sample, found while warming up.
  struct Pace {
    std::uint64_t bytes = 0;  // per drive and direction
    std::size_t partner = 0;  // the raw queue's cell it is compared with; its own: none
    bool done = false;        // its interval is within `until`
    std::uint32_t seed = 0;   // of fio's mix
  };

  void add_cell(const Workload& workload, std::size_t partner);
  void warm_up();
  std::uint64_t found_bytes(const Workload& workload, double seconds, double most_bytes);
  std::uint32_t pilot_rounds() const;
  void choose_fio_engines();
  std::vector<std::uint32_t> run_fio_pilot();
  bool one_round(std::uint32_t round);
  void take(std::size_t index, std::uint32_t round);
  TimedSample sample(const Cell& cell, const Pace& pace, std::uint32_t turn);
  bool has_time() const;
  bool has_budget() const;
  double needed_seconds() const;
  double least_seconds_of(std::uint32_t rounds) const;
  void check_time(const char* when, double seconds = 0) const;
  void warn_of_few_rounds();
  void warn_of_short_samples();
  void settle();
  Comparison compared(std::size_t index) const;
  void compare();
  double elapsed() const;
  double sample_seconds() const;
  std::uint64_t written_per_round() const;

  Runner& runner_;
  Measurement& measurement_;
  std::vector<Workload> workloads_;
  RoundsOptions options_;
  RoundProgress progress_;
  std::vector<Pace> paces_;  // beside measurement_.cells
  std::chrono::steady_clock::time_point began_;
  std::uint64_t written_before_ = 0;
  std::uint32_t turn_ = 0;
  std::uint32_t taken_ = 0;   // samples
  double round_seconds_ = 0;  // the last one's
};

// The least that a run of these workloads writes per drive, the layout left out: 0 where none
// writes.
std::uint64_t least_written_bytes(const std::vector<Workload>& workloads, std::uint32_t rounds,
                                  bool compare_fio);
// The least time that so many rounds of them take, what warms up included and the file's writing
// and reading back left out: each sample is long enough to say something, and fio has to start.
double least_seconds(const std::vector<Workload>& workloads, std::uint32_t rounds,
                     bool compare_fio);
}  // namespace headrace::tools
