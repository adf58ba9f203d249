// SPDX-License-Identifier: Apache-2.0
#include "bench/rounds.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.hpp"
#include "bench/fio.hpp"
#include "bench/nothing_measured.hpp"
#include "measure/rounds.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr double kLongestSample = 5;      // seconds
constexpr double kShortestSample = 0.03;  // below it starting and draining are in the figure
constexpr double kFioStart = 0.6;         // seconds that fio takes beside its job
constexpr std::uint32_t kFioPilotRounds = 3;
constexpr std::uint32_t kBoundingRounds = 6;  // fewer bound nothing (measure/statistics.hpp)
// Rounds are made so long that this share of the time holds all of them; the last is begun where
// most of one like that before fits.
constexpr double kFilled = 0.9, kMostOfARound = 0.75;

double written_share(const Workload& workload) { return writes(workload.pattern) ? 1 : 0; }

// The unit of a sample: its bytes are a multiple of this.
std::uint64_t block_of_each_job(const Workload& workload) {
  return workload.block_bytes * workload.jobs;
}

// Fewer say nothing: the queue must fill and drain.
std::uint64_t least_sample_bytes(const Workload& workload) {
  const std::uint64_t blocks = block_of_each_job(workload);
  return base::align_up(std::max({2 * workload.depth * blocks, 4 * blocks, 8 * base::kMiB}),
                        blocks);
}
}  // namespace

std::uint64_t least_written_bytes(const std::vector<Workload>& workloads, std::uint32_t rounds,
                                  bool compare_fio) {
  std::uint64_t sum = 0;
  for (const Workload& workload : workloads) {
    if (!writes(workload.pattern)) continue;
    const std::uint64_t samples = rounds + 1 + (compare_fio ? rounds + 2 * kFioPilotRounds : 0);
    sum += samples * least_sample_bytes(workload);
  }
  return sum;
}

double least_seconds(const std::vector<Workload>& workloads, std::uint32_t rounds,
                     bool compare_fio) {
  const double of_fio = (static_cast<double>(fio_engines().size()) + rounds) *
                        (kFioStart + kShortestSample) * (compare_fio ? 1 : 0);
  return static_cast<double>(workloads.size()) * ((rounds + 1) * 2 * kShortestSample + of_fio);
}

Rounds::Rounds(Runner& runner, Measurement& measurement, const std::vector<Workload>& workloads,
               const RoundsOptions& options, RoundProgress progress)
    : runner_(runner),
      measurement_(measurement),
      workloads_(workloads),
      options_(options),
      progress_(std::move(progress)),
      began_(std::chrono::steady_clock::now()),
      written_before_(runner.written_bytes()) {
  for (const Workload& workload : workloads) {
    const std::size_t index = measurement_.cells.size();
    add_cell(workload, index);
    if (!options_.compare_fio) continue;
    for (const std::string& engine : fio_engines()) {
      Workload twin = workload;
      twin.mover = Mover::kFio;
      twin.fio_engine = engine;
      add_cell(twin, index);
    }
  }
}

void Rounds::add_cell(const Workload& workload, std::size_t partner) {
  measurement_.cells.push_back({.workload = workload, .queue = workload.fio_engine});
  paces_.push_back({.partner = partner});
}

double Rounds::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

// An equal part of the time for each sample.
double Rounds::sample_seconds() const {
  const double rounds = std::min<double>(options_.rounds, 1000);
  double samples = 0, overhead = 0;
  for (const Cell& cell : measurement_.cells) {
    const bool fio = cell.workload.mover == Mover::kFio;
    // Of fio's engines one is left after the pilot.
    const double times =
        fio ? pilot_rounds() + rounds / static_cast<double>(fio_engines().size()) : rounds + 1;
    samples += times;
    overhead += fio ? times * kFioStart : 0;
  }
  const double left = kFilled * options_.most_seconds - overhead;
  return std::clamp(left / samples, 2 * kShortestSample, kLongestSample);
}

// As many as a quarter of the time allows.
std::uint32_t Rounds::pilot_rounds() const {
  const auto twins = std::ranges::count_if(
      measurement_.cells, [](const Cell& cell) { return cell.workload.mover == Mover::kFio; });
  const double each = static_cast<double>(twins) * (kFioStart + 2 * kShortestSample);
  const double possible = each > 0 ? options_.most_seconds / 4 / each : 0;
  return static_cast<std::uint32_t>(std::clamp<double>(possible, 1, kFioPilotRounds));
}

std::uint64_t Rounds::written_per_round() const {
  double sum = 0;
  for (std::size_t i = 0; i < paces_.size(); ++i) {
    const Workload& workload = measurement_.cells[i].workload;
    sum += written_share(workload) * static_cast<double>(paces_[i].bytes);
  }
  return static_cast<std::uint64_t>(sum);
}

void Rounds::run() {
  check_time("once the file was written and the time to read it back set aside",
             least_seconds_of(1));
  warm_up();
  if (options_.compare_fio) choose_fio_engines();
  std::uint32_t round = 1;
  while (round <= options_.rounds && one_round(round)) ++round;
  measurement_.rounds = round - 1;
  if (measurement_.rounds == 0) {
    check_time("before the first round");
    throw NothingMeasured(
        "not one round fits in the bytes that --max-write allows; nothing was measured, and the "
        "files are gone. Raise --max-write, or measure fewer workloads");
  }
  warn_of_few_rounds();
  warn_of_short_samples();
  compare();
}

// The least that so many rounds of all workloads take.
double Rounds::least_seconds_of(std::uint32_t rounds) const {
  return least_seconds(workloads_, rounds, options_.compare_fio);
}

// --runtime for six rounds: by what is known beforehand, or by the samples so far.
double Rounds::needed_seconds() const {
  const double of_fio =
      options_.compare_fio ? kBoundingRounds + static_cast<double>(fio_engines().size()) : 0;
  const double samples = static_cast<double>(workloads_.size()) * (kBoundingRounds + 1 + of_fio);
  const double each = taken_ == 0 ? 0 : elapsed() / taken_;
  return std::ceil(1.2 * options_.other_seconds +
                   std::max(least_seconds_of(kBoundingRounds) / kFilled, samples * each));
}

// Throws NothingMeasured where fewer than `seconds` are left.
void Rounds::check_time(const char* when, double seconds) const {
  if (elapsed() + seconds < options_.most_seconds) return;
  throw NothingMeasured(
      fmt::format("the --runtime of {:.0f} s was over {}; nothing was measured, and the files are "
                  "gone. Give --runtime {:.0f}s, a smaller --size or fewer workloads",
                  options_.most_seconds + options_.other_seconds, when, needed_seconds()));
}

void Rounds::warn_of_few_rounds() {
  if (measurement_.rounds >= kBoundingRounds || options_.rounds < kBoundingRounds) return;
  const std::string more = has_time() ? std::string("more --max-write")
                                      : fmt::format("--runtime {:.0f}s", needed_seconds());
  measurement_.warnings.push_back(
      fmt::format("only {} round{} possible in the {} allowed; no interval is bounded; give {}, or "
                  "measure fewer workloads",
                  measurement_.rounds, measurement_.rounds == 1 ? " was" : "s were",
                  has_time() ? "bytes" : "time", more));
}

void Rounds::warn_of_short_samples() {
  const auto is_short = [](const Cell& cell) {
    std::vector<double> seconds;
    for (const Sample& sample : cell.samples) seconds.push_back(sample.seconds);
    return !seconds.empty() && median_interval(std::move(seconds)).median < kShortestSample;
  };
  const auto count = std::ranges::count_if(measurement_.cells, is_short);
  if (count == 0) return;
  measurement_.warnings.push_back(fmt::format(
      "{} of {} workloads moved too little per round: under {:.0f} ms, so that starting and "
      "draining are in the figure; raise --runtime or --max-write, or measure fewer workloads",
      count, measurement_.cells.size(), 1000 * kShortestSample));
}

// Reads run for their time; what writes is bounded by bytes as well, so that all rounds together
// keep to what is allowed.
void Rounds::warm_up() {
  const double seconds = sample_seconds();
  double writers = 0;
  for (const Cell& cell : measurement_.cells) writers += written_share(cell.workload);
  const bool unbounded = options_.rounds >= 1000;
  const double most_bytes = unbounded ? 1e18
                                      : static_cast<double>(options_.most_written_bytes) /
                                            std::max(1.0, writers) / (options_.rounds + 1);
  for (std::size_t i = 0; i < paces_.size(); ++i) {
    const Workload& workload = measurement_.cells[i].workload;
    if (paces_[i].partner != i) {
      paces_[i].bytes = paces_[paces_[i].partner].bytes;
    } else {
      progress_(0, text_of(workload), 0);
      paces_[i].bytes = found_bytes(workload, seconds, most_bytes);
      ++taken_;
      check_time("while warming up");
    }
  }
}

// The bytes that the workload moves per drive and direction in that time.
std::uint64_t Rounds::found_bytes(const Workload& workload, double seconds, double most_bytes) {
  const bool bounded = writes(workload.pattern);
  const std::uint64_t least = least_sample_bytes(workload);
  const Stretch stretch{
      .bytes = bounded ? least : 0, .seconds = bounded ? 0 : seconds, .turn = turn_++};
  const Sample first = runner_.take(workload, stretch);
  const double moved = static_cast<double>(std::max(first.read_bytes, first.written_bytes)) /
                       static_cast<double>(runner_.targets().size());
  double bytes = moved / first.seconds * seconds;
  if (bounded) bytes = std::min(bytes, most_bytes);
  return std::max(least,
                  base::align_down(static_cast<std::uint64_t>(bytes), block_of_each_job(workload)));
}

// Rounds that are thrown away. Returns for each cell that fio is compared with the seed, of those
// tried, with which fio reads and writes most nearly as much.
std::vector<std::uint32_t> Rounds::run_fio_pilot() {
  std::vector<std::uint32_t> seeds(paces_.size(), 0), tried(paces_.size(), 0);
  std::vector<double> faults(paces_.size(), 1);
  for (std::uint32_t round = 0; round < pilot_rounds(); ++round) {
    for (std::size_t i = 0; i < paces_.size(); ++i) {
      if (measurement_.cells[i].workload.mover != Mover::kFio) continue;
      const std::size_t partner = paces_[i].partner;
      paces_[i].seed = ++tried[partner];
      take(i, 0);
      check_time("while fio's engines were compared");
      const double fault = std::abs(measurement_.cells[i].samples.back().read_share() - 0.5);
      if (fault >= faults[partner]) continue;
      faults[partner] = fault;
      seeds[partner] = paces_[i].seed;
    }
  }
  return seeds;
}

// fio's best engine for each workload.
void Rounds::choose_fio_engines() {
  const std::vector<std::uint32_t> seeds = run_fio_pilot();
  const std::vector<Cell> all = std::exchange(measurement_.cells, {});
  const std::vector<Pace> paces = std::exchange(paces_, {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool fio = all[i].workload.mover == Mover::kFio;
    // The engines of one workload lie side by side, behind it.
    const bool second = fio && measurement_.cells.back().workload.mover == Mover::kFio;
    if (second && all[i].rate().median <= measurement_.cells.back().rate().median) continue;
    if (second) {
      measurement_.cells.back() = all[i];
      continue;
    }
    const std::size_t partner = measurement_.cells.size() - (fio ? 1 : 0);
    measurement_.cells.push_back(all[i]);
    paces_.push_back(
        {.bytes = paces[i].bytes, .partner = partner, .seed = fio ? seeds[paces[i].partner] : 0});
  }
  for (Cell& cell : measurement_.cells) cell = {.workload = cell.workload, .queue = cell.queue};
}

bool Rounds::has_time() const {
  return elapsed() + kMostOfARound * round_seconds_ < options_.most_seconds;
}

bool Rounds::has_budget() const {
  if (!has_time()) return false;
  const std::uint64_t written = runner_.written_bytes() - written_before_;
  const std::uint64_t drives = runner_.targets().size();
  return written / drives + written_per_round() <= options_.most_written_bytes ||
         written_per_round() == 0;
}

// False: nothing is left to do, or to do it with.
bool Rounds::one_round(std::uint32_t round) {
  if (!has_budget()) return false;
  const std::size_t count = paces_.size();
  const double before = elapsed();
  bool any = false;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = in_turn(n, count, round);
    if (paces_[i].done) continue;
    any = true;
    take(i, round);
  }
  round_seconds_ = elapsed() - before;
  settle();
  return any;
}

void Rounds::take(std::size_t index, std::uint32_t round) {
  check_signal();
  Cell& cell = measurement_.cells[index];
  const double by_rounds = static_cast<double>(round) / static_cast<double>(options_.rounds);
  progress_(round, text_of(cell.workload),
            std::max(by_rounds, std::min(1.0, elapsed() / options_.most_seconds)));
  // Those that are compared cover the same blocks.
  const std::uint32_t turn = round + static_cast<std::uint32_t>(paces_[index].partner);
  TimedSample taken = sample(cell, paces_[index], turn);
  taken.round = round;
  if (cell.workload.mover != Mover::kFio) cell.queue = runner_.queue_text();
  cell.add(std::move(taken));
  ++taken_;
}

TimedSample Rounds::sample(const Cell& cell, const Pace& pace, std::uint32_t turn) {
  if (cell.workload.mover == Mover::kFio) {
    TimedSample taken =
        take_by_fio(*runner_.targets()[0], cell.workload, pace.bytes, turn, pace.seed);
    runner_.count_written(taken.written_bytes);
    return taken;
  }
  return runner_.take(cell.workload, {.bytes = pace.bytes, .turn = turn});
}

// Of fio the ratio of the raw queue to it, from the rounds that both were measured in.
Comparison Rounds::compared(std::size_t index) const {
  Comparison result{.ours = paces_[index].partner, .theirs = index};
  std::vector<double> ours, theirs, our_cpu, their_cpu;
  for (const Sample& a : measurement_.cells[result.ours].samples) {
    for (const Sample& b : measurement_.cells[result.theirs].samples) {
      if (a.round != b.round) continue;
      ours.push_back(a.bytes_per_second());
      theirs.push_back(b.bytes_per_second());
      if (b.cpu_seconds <= 0) continue;  // fio counts in ticks
      our_cpu.push_back(a.cpu_per_gb());
      their_cpu.push_back(b.cpu_per_gb());
    }
  }
  if (ours.empty()) return result;
  result.ratio = median_ratio(ours, theirs);
  // Of half the pairs or more: those that were counted are the ones that took the longest.
  if (2 * our_cpu.size() >= ours.size() && !our_cpu.empty())
    result.cpu_ratio = median_ratio(our_cpu, their_cpu);
  result.resolved = result.ratio.bounded &&
                    result.ratio.half_width() <= options_.until.value_or(kResolvedHalfWidth);
  return result;
}

// Cells whose interval is narrow enough need no more rounds; one that others are compared with goes
// on until they are.
void Rounds::settle() {
  if (!options_.until) return;
  const std::size_t count = paces_.size();
  std::vector<bool> needed(count, false), paired(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t partner = paces_[i].partner;
    if (partner == i) continue;
    paired[i] = paired[partner] = true;
    if (!compared(i).resolved) needed[i] = needed[partner] = true;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const MedianInterval rate = measurement_.cells[i].rate();
    const bool narrow = rate.bounded && rate.half_width() <= *options_.until;
    paces_[i].done = paired[i] ? !needed[i] : narrow;
  }
}

void Rounds::compare() {
  for (std::size_t i = 0; i < paces_.size(); ++i) {
    if (paces_[i].partner == i) continue;
    const Comparison comparison = compared(i);
    if (comparison.ratio.count > 0) measurement_.comparisons.push_back(comparison);
  }
}
}  // namespace headrace::tools
