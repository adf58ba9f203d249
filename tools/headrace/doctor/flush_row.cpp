// SPDX-License-Identifier: Apache-2.0
// What a flush of a path's drives takes, which a commit to a store waits for twice.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/sizes.hpp"
#include "doctor/rows.hpp"
#include "swap/io_buffer.hpp"

namespace headrace::tools {
namespace {
// No flash is written in so little time: what is faster has kept the bytes elsewhere.
constexpr double kSuspicious = 20e-6;

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.3g} us", seconds * 1e6)
                        : fmt::format("{:.3g} ms", seconds * 1e3);
}

bool all_write_through(const std::vector<Disk>& disks) {
  return std::ranges::all_of(disks,
                             [](const Disk& disk) { return disk.write_cache == "write through"; });
}
}  // namespace

std::vector<double> flush_times(const base::UniqueFd& file) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kMost = 31;
  constexpr auto kLongest = std::chrono::milliseconds(300);
  std::vector<double> seconds;
  const swap::IoBuffer block = swap::make_io_buffer(base::kIoAlignment);
  const auto size = static_cast<ssize_t>(base::kIoAlignment);
  // The first one also keeps the file's own data.
  if (!file || ::fdatasync(file.get()) != 0) return seconds;
  const auto end = Clock::now() + kLongest;
  while (seconds.size() < kMost && Clock::now() < end) {
    if (::pwrite(file.get(), block.get(), base::kIoAlignment, 0) != size) return {};
    const auto begin = Clock::now();
    if (::fdatasync(file.get()) != 0) return {};
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

Row flush_row(std::vector<double> seconds, const DriveFacts& facts) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  Row row{.name = "flush", .value = time_text(*middle)};
  row.detail = fmt::format(
      "fdatasync of 4 KiB, the median of {}; a commit of headrace.durable "
      "waits for two",
      seconds.size());
  row.values = {{"seconds", *middle}, {"samples", seconds.size()}};
  if (*middle >= kSuspicious || facts.disks.empty()) return row;
  if (all_write_through(facts.disks)) {
    row.detail += "; the drive says that it has no cache to flush (write through)";
    return row;
  }
  row.mark = Mark::kNote;
  row.consequence =
      "so short a flush may be none: a drive with power-loss protection can do it, but a virtual "
      "disk whose host ignores flushes looks the same, and loses committed steps when the power "
      "fails";
  row.fix = "for a virtual disk, let its host pass flushes on (no cache=unsafe)";
  return row;
}
}  // namespace headrace::tools
