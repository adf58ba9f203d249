// SPDX-License-Identifier: Apache-2.0
#include "bench/recommendation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "bench/report_format.hpp"
#include "program/io_queue_names.hpp"

namespace headrace::tools {
namespace {
// Of all that was measured, the nearest to what an update does.
constexpr std::array kByPreference{Pattern::kMixed, Pattern::kRead, Pattern::kRandRead,
                                   Pattern::kWrite, Pattern::kRandWrite};

// What the settings allow (docs/settings.md).
bool is_setting(const Workload& workload) {
  const std::uint64_t block = workload.block_bytes;
  return block % base::kIoAlignment == 0 && block <= 64 * base::kMiB &&
         std::uint64_t{workload.depth} * workload.jobs <= 4096 && workload.submit_batch <= 256;
}

// Of the raw queue, with settings that the engine takes.
std::size_t settings_measured(const Measurement& measurement, Pattern pattern) {
  return static_cast<std::size_t>(std::ranges::count_if(measurement.cells, [&](const Cell& cell) {
    return cell.workload.pattern == pattern && cell.workload.mover == Mover::kQueue &&
           !cell.samples.empty() && is_setting(cell.workload);
  }));
}

// What was measured says nothing of settings, whichever they were.
std::string unfit_text(const Measurement& measurement) {
  for (const MeasuredDrive& drive : measurement.drives) {
    if (drive.memory_backed) return drive.path + " is memory, and no drive was measured";
  }
  if (std::ranges::any_of(measurement.cells, is_long))
    return "long stretches are measured once each";
  return "";
}

// Cells of the same pattern whose interval overlaps that of `best`.
std::size_t not_told_apart(const Measurement& measurement, std::size_t best) {
  const Cell& chosen = measurement.cells[best];
  const MedianInterval rate = chosen.rate();
  return static_cast<std::size_t>(std::ranges::count_if(measurement.cells, [&](const Cell& cell) {
    if (&cell == &chosen || cell.samples.empty() || cell.workload.mover != Mover::kQueue ||
        cell.workload.pattern != chosen.workload.pattern)
      return false;
    const MedianInterval other = cell.rate();
    return other.low <= rate.high && rate.low <= other.high;
  }));
}

std::vector<std::string> notes_of(const Measurement& measurement, std::size_t index) {
  const Cell& cell = measurement.cells[index];
  const Workload& workload = cell.workload;
  const MedianInterval rate = cell.rate();
  std::vector<std::string> notes{fmt::format(
      "Measured with {}: {} {} over {} round{}.", text_of(workload), gb_text(rate.median),
      interval_text(rate, 1e9), rate.count, rate.count == 1 ? "" : "s")};
  if (!rate.bounded) {
    notes.emplace_back(
        "It rests on fewer than 6 rounds, which bound nothing: another run may choose otherwise. "
        "headrace tune repeats until the interval is narrow.");
  }
  if (const std::size_t others = not_told_apart(measurement, index); others > 0) {
    notes.push_back(
        fmt::format("{} other setting{} cannot be told from it; of those as fast as "
                    "the fastest it has the fewest bytes in flight.",
                    others, others == 1 ? "" : "s"));
  }
  if (workload.pattern != Pattern::kMixed) {
    notes.push_back(
        fmt::format("It is the best for {} alone; an update reads and writes at once "
                    "(--rw rw).",
                    name_of(workload.pattern)));
  }
  if (workload.jobs > 1) {
    notes.push_back(
        fmt::format("Measured with {} threads per drive; the engine has one, so the "
                    "depth is that of all of them.",
                    workload.jobs));
  }
  if (workload.queue == IoQueueKind::kAuto && !cell.queue.empty())
    notes.push_back(fmt::format("\"auto\" was {}.", cell.queue));
  return notes;
}
}  // namespace

std::optional<Recommendation> recommendation_of(const Measurement& measurement) {
  if (!unfit_text(measurement).empty()) return std::nullopt;
  for (const Pattern pattern : kByPreference) {
    if (settings_measured(measurement, pattern) < 2) continue;
    const auto index = recommended(measurement, pattern);
    if (!index || !is_setting(measurement.cells[*index].workload)) continue;
    const Workload& workload = measurement.cells[*index].workload;
    Json values = {{"io_block_bytes", workload.block_bytes},
                   {"queue_depth", std::uint64_t{workload.depth} * workload.jobs},
                   {"submit_batch", workload.submit_batch},
                   {"io_queue", name_of(workload.queue)}};
    return Recommendation{.cell = *index,
                          .settings = {{"headrace", std::move(values)}},
                          .notes = notes_of(measurement, *index)};
  }
  return std::nullopt;
}

std::string no_recommendation_text(const Measurement& measurement) {
  std::string why = unfit_text(measurement);
  const bool any = std::ranges::any_of(
      kByPreference, [&](Pattern pattern) { return settings_measured(measurement, pattern) > 0; });
  if (why.empty())
    why = any ? "one setting was measured, so none was chosen"
              : "nothing was measured with the raw queue that the engine could be set to";
  return why + "; `headrace tune` on the drive finds and proves them";
}
}  // namespace headrace::tools
