// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/copy_report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "measure/figures.hpp"
#include "program/cuda_version.hpp"

namespace headrace::tools {
namespace {
// From here on what a copy costs by itself no longer counts; what an engine copies is as large.
constexpr std::uint64_t kJudgedFrom = std::uint64_t{4} << 20;
constexpr Way kWays[] = {Way::kToDevice, Way::kToHost, Way::kBoth};

bool is_gradient(const CopyRow& row) { return row.of.kind != Transfers::kCopies; }

std::string rate_text(const CopyContest& contest, const CopyRow& row) {
  const MedianInterval rate = row.bytes_per_second();
  return fmt::format(
      "{:>6}  {:<16} {:>5.2f}\n", three_digits(rate.median / 1e9),
      fmt::format("[{}, {}]", three_digits(rate.least / 1e9), three_digits(rate.most / 1e9)),
      contest.share(row).median);
}

std::string table(const CopyContest& contest, Way way) {
  std::string text = fmt::format("\n{:<16}{:>8}  {:>6}  {:<16} {:>5}\n", title_of(way), "bytes",
                                 "GB/s", "[least, most]", "share");
  for (const CopyRow& row : contest.rows) {
    if (is_gradient(row) || row.of.way != way) continue;
    text += fmt::format("  {:<14}{:>8}  {}", name_of(row.of.memory),
                        base::format_bytes(row.of.bytes), rate_text(contest, row));
  }
  return text;
}

std::string gradients_text(const CopyContest& contest) {
  std::string text;
  for (const CopyRow& row : contest.rows) {
    if (!is_gradient(row)) continue;
    const bool added = row.of.kind == Transfers::kAdded;
    text += fmt::format("  {:<14}{:>8}  {}", added ? "added to f32" : "over bf16",
                        base::format_bytes(row.of.bytes), rate_text(contest, row));
  }
  if (text.empty()) return "";
  return "\nbf16 gradients that land in pinned memory, in pieces of 65,536\n" + text;
}

std::string limits_text(const CopyContest& contest, const std::optional<GpuLink>& link) {
  std::string text = "\nthe link's limit: the largest pinned copies, the best of the rounds\n";
  for (const Way way : kWays) {
    const double limit = contest.limit(way);
    text += fmt::format("  {:<14}{:>10}", title_of(way), gb_text(limit));
    if (link) {
      const double most = link->bytes_per_second * (way == Way::kBoth ? 2 : 1);
      text +=
          fmt::format(", {:.2f} of the {:.1f} GB/s of {}", limit / most, most / 1e9, link->name);
    }
    text += '\n';
  }
  return text + (link ? "" : "  what the link could carry is not known here\n") +
         "  share: of that limit; of gradients, to the host. Both at once: bytes of both ways\n";
}

std::string verified_text(const CopyContest& contest) {
  if (contest.mismatches == 0)
    return fmt::format("\nverified: {}, all as sent", base::format_bytes(contest.verified_bytes));
  return fmt::format(
      "\nMISMATCH: {} measurements carried other bytes than were sent; the first: {}",
      contest.mismatches, contest.first_mismatch);
}

std::string judged_text(const CopyContest& contest, std::optional<double> least) {
  if (!least) return "";
  const auto below = rows_below(contest, least);
  if (below.empty()) return fmt::format("\nrequired\n  met     share={:.3g}\n", *least);
  std::string text = "\nrequired\n";
  for (const CopyRow* row : below) {
    text += fmt::format("  MISSED  share={:.3g}: found {:.3f} ({})\n", *least,
                        contest.share(*row).median, text_of(row->of));
  }
  return text;
}

Json copy_row_json(const CopyContest& contest, const CopyRow& row) {
  return {{"kind", name_of(row.of.kind)},
          {"way", name_of(row.of.way)},
          {"memory", name_of(row.of.memory)},
          {"bytes", row.of.bytes},
          {"count", row.count},
          {"bytes_per_second", interval_json(row.bytes_per_second())},
          {"share", interval_json(contest.share(row))},
          {"seconds", row.seconds}};
}
}  // namespace

std::vector<Fact> gpu_lines(const CudaFacts& facts, const CudaGpu& gpu,
                            const std::optional<GpuLink>& link) {
  return {
      {gpu.name, fmt::format("cuda:{} at {}", gpu.ordinal, gpu.pci_bus_id)},
      {"memory", base::format_bytes(gpu.memory_bytes)},
      {"compute", fmt::format("{}.{}, {} copy engine{}", gpu.compute_major, gpu.compute_minor,
                              gpu.copy_engines, gpu.copy_engines == 1 ? "" : "s")},
      {"cuda", fmt::format("{} in the build, the driver serves {}",
                           cuda_version_text(facts.runtime_version),
                           cuda_version_text(facts.driver_version))},
      {"link", link ? fmt::format("{}, {} each way", link->name, gb_text(link->bytes_per_second))
                    : "not known"}};
}

Json gpu_json(const CudaFacts& facts, const CudaGpu& gpu, const std::optional<GpuLink>& link) {
  Json json = {{"gpu",
                {{"ordinal", gpu.ordinal},
                 {"name", gpu.name},
                 {"pci_bus_id", gpu.pci_bus_id},
                 {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
                 {"memory_bytes", gpu.memory_bytes},
                 {"copy_engines", gpu.copy_engines},
                 {"runtime_version", facts.runtime_version},
                 {"driver_version", facts.driver_version}}},
               {"link", nullptr}};
  if (link) json["link"] = {{"name", link->name}, {"bytes_per_second", link->bytes_per_second}};
  return json;
}

std::vector<const CopyRow*> rows_below(const CopyContest& contest, std::optional<double> least) {
  std::vector<const CopyRow*> below;
  if (!least) return below;
  std::uint64_t largest = 0;
  for (const CopyRow& row : contest.rows) {
    if (!is_gradient(row)) largest = std::max(largest, row.of.bytes);
  }
  for (const CopyRow& row : contest.rows) {
    const bool judged = is_gradient(row) || (row.of.memory == HostMemory::kPinned &&
                                             row.of.bytes >= std::min(kJudgedFrom, largest));
    if (judged && contest.share(row).median < *least) below.push_back(&row);
  }
  return below;
}

std::string copies_text(const CopyContest& contest, const std::optional<GpuLink>& link,
                        std::optional<double> least_share) {
  std::string text;
  for (const Way way : kWays) text += table(contest, way);
  return text + gradients_text(contest) + limits_text(contest, link) +
         judged_text(contest, least_share) + verified_text(contest) +
         fmt::format("\n{} rounds in {} s\n", contest.rounds, three_digits(contest.seconds));
}

Json copies_json(const CopyContest& contest, std::optional<double> least_share) {
  Json json = {{"rounds", contest.rounds},
               {"seconds", contest.seconds},
               {"limit_bytes_per_second", Json::object()},
               {"verification",
                {{"seed", contest.seed},
                 {"bytes", contest.verified_bytes},
                 {"mismatches", contest.mismatches},
                 {"first_mismatch", contest.first_mismatch}}},
               {"required", nullptr},
               {"rows", Json::array()}};
  for (const Way way : kWays) json["limit_bytes_per_second"][name_of(way)] = contest.limit(way);
  if (least_share) {
    json["required"] = {{"share", *least_share}, {"met", rows_below(contest, least_share).empty()}};
  }
  for (const CopyRow& row : contest.rows) json["rows"].push_back(copy_row_json(contest, row));
  return json;
}
}  // namespace headrace::tools
