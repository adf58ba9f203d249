// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "measure/figures.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
constexpr std::size_t kColumns = 100;

auto table_key(const Case& of) { return std::tuple(of.simd, of.threads, of.checksums); }

std::string table_title(const Case& of) {
  return fmt::format("{}, {} thread{}{}", name_of(of.simd), of.threads, of.threads == 1 ? "" : "s",
                     of.checksums ? ", with checksums of weight and state" : "");
}

std::string share_text(const MedianInterval& share) {
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", share.median, share.low, share.high);
}

std::string names_text(const Case& of) {
  return fmt::format("{:<12} {:<7} {:<10} {:<4}", name_of(of.rule), moments_text(of),
                     word_of(kWeights, of.weight), word_of(kGradients, of.gradient));
}

std::string row_text(const UpdateContest& contest, const UpdateRow& row) {
  const std::string begin = "  " + names_text(row.of);
  if (row.seconds.empty()) return begin + " not reached: the time was over\n";
  const MedianInterval ns = contest.ns_per_parameter(row);
  const Footprint& footprint = contest.footprints[row.footprint];
  const double ceiling = contest.bytes_per_second(footprint, contest.best_kind(footprint)).median;
  return begin + fmt::format(" {:>6}{} {:<13}{:>6.2f} {:>5} {:>7}  {}\n", three_digits(ns.median),
                             ns.bounded ? " " : "*", interval_text(ns, 1),
                             moved_per_parameter(row.of).all(),
                             three_digits(contest.bytes_per_second(row).median / 1e9),
                             three_digits(ceiling / 1e9), share_text(contest.share(row)));
}

// "xor avx512: 9 of 10": which kinds the ceilings were.
std::string ceilings_text(const UpdateContest& contest) {
  std::string text = fmt::format("  the fastest of {}:", contest.kinds.size());
  std::size_t line = 0;  // where the latest begins
  bool any = false;
  for (std::size_t kind = 0; kind < contest.kinds.size(); ++kind) {
    const auto count = std::ranges::count_if(contest.footprints, [&](const Footprint& footprint) {
      return !footprint.seconds[0].empty() && contest.best_kind(footprint) == kind;
    });
    if (count == 0) continue;
    if (any) text += ',';
    const std::string one = fmt::format(" {} ({})", contest.kinds[kind].name, count);
    if (text.size() - line + one.size() + 1 > kColumns) {  // and a comma
      text += '\n';
      line = text.size();
      text += "   ";
    }
    text += one;
    any = true;
  }
  return any ? text + "\n" : "";
}

std::string costs_text(const UpdateContest& contest) {
  std::string text;
  for (const UpdateRow& row : contest.rows) {
    const auto cost = contest.checksum_cost(row);
    if (!cost) continue;
    text += fmt::format("  {}{:<16}{}\n", names_text(row.of),
                        fmt::format(" {}, {}", name_of(row.of.simd), row.of.threads),
                        share_text(*cost));
  }
  return text.empty() ? "" : "\nchecksums: times as long as without, within rounds\n" + text;
}

std::string required_text(const UpdateContest& contest, std::optional<double> least_share) {
  if (!least_share) return "";
  const auto below = rows_below(contest, least_share);
  if (below.empty()) return fmt::format("\nrequired\n  met     share={:.3g}\n", *least_share);
  std::string text = "\nrequired\n";
  for (const UpdateRow* row : below) {
    const std::string found = row->seconds.empty()
                                  ? "not measured"
                                  : fmt::format("found {:.3f}", contest.share(*row).median);
    text +=
        fmt::format("  MISSED  share={:.3g}: {}\n    {}\n", *least_share, found, text_of(row->of));
  }
  return text;
}

Json ceiling_json(const UpdateContest& contest, const Footprint& footprint) {
  Json passes = Json::array();
  for (std::size_t kind = 0; kind < contest.kinds.size(); ++kind) {
    passes.push_back(
        {{"name", contest.kinds[kind].name},
         {"bytes_per_second", interval_json(contest.bytes_per_second(footprint, kind))}});
  }
  return {{"footprint_bytes_per_parameter", footprint.bytes_per_parameter()},
          {"best", contest.kinds[contest.best_kind(footprint)].name},
          {"passes", std::move(passes)}};
}

Json row_json(const UpdateContest& contest, const UpdateRow& row) {
  const Moved moved = moved_per_parameter(row.of);
  Json json = {{"rule", name_of(row.of.rule)},
               {"moments", nullptr},
               {"weight", word_of(kWeights, row.of.weight)},
               {"gradient", word_of(kGradients, row.of.gradient)},
               {"simd", name_of(row.of.simd)},
               {"threads", row.of.threads},
               {"checksums", row.of.checksums},
               {"bytes_per_parameter",
                {{"read", moved.read}, {"written", moved.written}, {"moved", moved.all()}}},
               {"rounds", row.seconds.size()}};
  if (row.of.has_moments()) json["moments"] = moments_text(row.of);
  if (row.seconds.empty()) return json;
  json["ns_per_parameter"] = interval_json(contest.ns_per_parameter(row));
  json["bytes_per_second"] = interval_json(contest.bytes_per_second(row));
  json["share"] = interval_json(contest.share(row));
  json["ceiling"] = ceiling_json(contest, contest.footprints[row.footprint]);
  if (const auto cost = contest.checksum_cost(row)) json["checksum_cost"] = interval_json(*cost);
  json["seconds"] = row.seconds;
  return json;
}
}  // namespace

std::vector<const UpdateRow*> rows_below(const UpdateContest& contest,
                                         std::optional<double> least_share) {
  std::vector<const UpdateRow*> below;
  for (const UpdateRow& row : contest.rows) {
    if (least_share && (row.seconds.empty() || contest.share(row).median < *least_share))
      below.push_back(&row);
  }
  return below;
}

std::string contest_text(const UpdateContest& contest, std::optional<double> least_share) {
  std::string text;
  bool unbounded = false;
  for (std::size_t i = 0; i < contest.rows.size(); ++i) {
    const UpdateRow& row = contest.rows[i];
    if (i == 0 || table_key(row.of) != table_key(contest.rows[i - 1].of)) {
      text += fmt::format("\n{}\n  {:<12} {:<7} {:<10} {:<4} {:>6}  {:<13}{:>6} {:>5} {:>7}  {}\n",
                          table_title(row.of), "rule", "moments", "weight", "grad", "ns", "[95 %]",
                          "bytes", "GB/s", "ceiling", "share [95 %]");
    }
    text += row_text(contest, row);
    unbounded |= !row.seconds.empty() && row.seconds.size() < 6;
  }
  text +=
      "  ns, bytes: per parameter; bytes that must be read and written. ceiling: passes in place\n"
      "  over the same streams, threads and rounds\n" +
      ceilings_text(contest);
  if (unbounded) {
    text +=
        "  * fewer than 6 rounds bound nothing: in brackets are the least and the most of them\n";
  }
  text += costs_text(contest) + required_text(contest, least_share);
  return text + fmt::format("\n{} rounds of {} parameters in {} s\n", contest.rounds,
                            grouped(contest.elements), three_digits(contest.seconds));
}

Json contest_json(const UpdateContest& contest, std::optional<double> least_share) {
  Json json = {{"parameters", contest.elements},
               {"rounds", contest.rounds},
               {"seconds", contest.seconds},
               {"required", nullptr},
               {"rows", Json::array()}};
  if (least_share) {
    json["required"] = {{"share", *least_share}, {"met", rows_below(contest, least_share).empty()}};
  }
  for (const UpdateRow& row : contest.rows) json["rows"].push_back(row_json(contest, row));
  return json;
}
}  // namespace headrace::tools
