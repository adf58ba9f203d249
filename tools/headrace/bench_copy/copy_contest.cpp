// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/copy_contest.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/random.hpp"
#include "base/units.hpp"
#include "bench_copy/mover.hpp"
#include "measure/rounds.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
// Longer than any measurement needs, and short enough to be counted.
constexpr std::uint64_t kMostTransfers = 1 << 24;
// For an estimate of the time alone: what is filled, sent back and compared, and what a link does.
constexpr double kVerifiedPerSecond = 2e9, kUsualLink = 1e10;

class CopyRounds {
 public:
  CopyRounds(Device& device, const CopyContestOptions& options, const CopyProgress& progress)
      : options_(options),
        progress_(progress),
        mover_(device, options.buffer_bytes(), options.region_bytes, base::random_number()) {
    for (const Transfer& transfer : options.transfers()) contest_.rows.push_back({.of = transfer});
  }

  CopyContest run() {
    for (CopyRow& row : contest_.rows) warm_up(row);
    const std::size_t count = contest_.rows.size();
    for (; contest_.rounds < options_.rounds; ++contest_.rounds) {
      for (std::size_t i = 0; i < count; ++i) {
        CopyRow& row = contest_.rows[in_turn(i, count, contest_.rounds)];
        show(fmt::format("round {}", contest_.rounds + 1), row.of);
        row.seconds.push_back(sample(row));
      }
    }
    contest_.seconds = watch_.seconds();
    contest_.seed = mover_.seed();
    contest_.verified_bytes = mover_.verified_bytes();
    return std::move(contest_);
  }

 private:
  void show(const std::string& round, const Transfer& transfer) {
    const auto all = static_cast<double>(contest_.rows.size() * (options_.rounds + 1));
    progress_(round + ", " + text_of(transfer), static_cast<double>(begun_++) / all);
  }

  void warm_up(CopyRow& row) {
    show("warming up", row.of);
    row.count = count_for(row.of);
    (void)sample(row);
  }

  std::uint64_t count_for(const Transfer& transfer) {
    const std::uint64_t most = std::min(kMostTransfers, TransferMover::most(transfer));
    if (options_.sample_bytes > 0) {
      return std::clamp<std::uint64_t>(base::ceil_div(options_.sample_bytes, transfer.bytes), 1,
                                       most);
    }
    mover_.prepare(transfer, most);
    for (std::uint64_t count = 1;; count = std::min(4 * count, most)) {
      check_signal();
      const double seconds = mover_.run(transfer, count);
      if (seconds < options_.sample_seconds / 4 && count < most) continue;
      const double wanted = static_cast<double>(count) * options_.sample_seconds / seconds;
      return static_cast<std::uint64_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
    }
  }

  double sample(const CopyRow& row) {
    check_signal();
    mover_.prepare(row.of, row.count);
    const double seconds = mover_.run(row.of, row.count);
    if (std::string text = mover_.difference(row.of, row.count); !text.empty()) {
      if (contest_.mismatches++ == 0) contest_.first_mismatch = std::move(text);
    }
    return seconds;
  }

  const CopyContestOptions& options_;
  const CopyProgress& progress_;
  const Stopwatch watch_;
  TransferMover mover_;
  CopyContest contest_;
  std::uint64_t begun_ = 0;  // measurements
};
}  // namespace

MedianInterval CopyRow::bytes_per_second() const {
  std::vector<double> values = seconds;
  for (double& value : values) value = of.moved(count) / value;
  return median_interval(std::move(values));
}

double CopyContest::limit(Way way) const {
  const CopyRow* largest = nullptr;
  for (const CopyRow& row : rows) {
    const bool counts = row.of.kind == Transfers::kCopies && row.of.way == way &&
                        row.of.memory == HostMemory::kPinned;
    if (counts && (largest == nullptr || row.of.bytes > largest->of.bytes)) largest = &row;
  }
  return largest == nullptr ? 0 : largest->bytes_per_second().most;
}

MedianInterval CopyContest::share(const CopyRow& row) const {
  MedianInterval share = row.bytes_per_second();
  for (double* value : {&share.median, &share.low, &share.high, &share.least, &share.most})
    *value /= limit(row.of.way);
  return share;
}

std::vector<Transfer> CopyContestOptions::transfers() const {
  return transfers_of(sizes, gradients, gradient_bytes);
}

std::uint64_t CopyContestOptions::buffer_bytes() const {
  return std::max({sizes.back(), region_bytes, gradients ? 2 * gradient_bytes : 0});
}

double CopyContestOptions::about_seconds() const {
  double seconds = 0;
  for (const Transfer& transfer : transfers()) {
    const double bytes = static_cast<double>(sample_bytes);
    seconds += sample_bytes > 0
                   ? transfer.moved(1) / static_cast<double>(transfer.bytes) * bytes / kUsualLink
                   : sample_seconds;
    const double verified = static_cast<double>(std::max(transfer.bytes, region_bytes));
    seconds += verified * (transfer.way == Way::kBoth ? 2 : 1) / kVerifiedPerSecond;
  }
  return seconds * (rounds + 1);
}

CopyContest measure_copies(Device& device, const CopyContestOptions& options,
                           const CopyProgress& progress) {
  return CopyRounds(device, options, progress).run();
}
}  // namespace headrace::tools
