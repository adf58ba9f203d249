// SPDX-License-Identifier: Apache-2.0
#include "tune/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/units.hpp"
#include "bench/report_format.hpp"
#include "bench/report_json.hpp"
#include "tune/fragment.hpp"
#include "tune/options.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kReadingOfTables =
    "The leader has the highest median of those that were not dropped. GB/s are of the rounds that "
    "a\n"
    "row was measured in, ratios are formed round by round, so that a drive's ups and downs "
    "cancel: a\n"
    "row can show more GB/s than the leader, or a ratio above 1.\n";
constexpr std::uint32_t kLeastBounded = 6;  // rounds; fewer bound nothing (measure/statistics.hpp)

std::string header(const char* against) {
  return fmt::format("  {:<26}{:>7} {:<16}{:<23}{:>8}{:>8}\n", "settings", "GB/s", " interval",
                     against, "CPU s/GB", "rounds");
}

std::string ratio_text(const MedianInterval& ratio) {
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", ratio.median, ratio.low, ratio.high);
}

//   against  what it is compared with says; "": with itself
std::string row(const Contestant& contestant, Goal goal, const std::string& against,
                const std::string& mark) {
  const std::string name = fmt::format("  {:<26}", text_of(contestant.candidate));
  if (contestant.rounds.empty())
    return contestant.left_out.empty()
               ? name + "no round\n"
               : wrapped(name, "not tried: " + contestant.left_out, name.size());
  const MedianInterval rate = contestant.rate(goal);
  return fmt::format("{}{:>7} {:<16}{:<23}{:>8}{:>8}{}\n", name, three_digits(rate.median / 1e9),
                     interval_text(rate, 1e9), against,
                     three_digits(contestant.cpu_per_gb().median), contestant.rounds.size(), mark);
}

// The number of candidates that the rounds did not separate from the leader, and that are not among
// its equals.
std::size_t behind_untold(const Stage& stage, Goal goal) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < stage.contestants.size(); ++i) {
    const Contestant& other = stage.contestants[i];
    if (other.rounds.empty() || other.dropped_after) continue;
    if (std::ranges::find(stage.equals, i) != stage.equals.end()) continue;
    const MedianInterval to_leader = ratio(other, stage.contestants[stage.leader], goal);
    count += to_leader.bounded && to_leader.high < 1 ? 0 : 1;
  }
  return count;
}

std::string equals_text(const Stage& stage, Goal goal) {
  const std::string pick = text_of(stage.contestants[stage.pick].candidate);
  if (stage.rounds < kLeastBounded) {
    return fmt::format(
        "{} round{} nothing apart. Taken: {}, the cheapest within 3 % of the leader.", stage.rounds,
        stage.rounds == 1 ? " tells" : "s tell", pick);
  }
  const std::size_t behind = behind_untold(stage, goal);
  const std::string others =
      behind == 0
          ? ""
          : fmt::format(" {} other{} not told apart either, but measured more than 3 % behind it.",
                        behind, behind == 1 ? " was" : "s were");
  if (stage.equals.size() == 1)
    return fmt::format("Taken: {}, the leader; no other is as good.{}", pick, others);
  std::string names;
  for (const std::size_t i : stage.equals)
    names += (names.empty() ? "" : "; ") + text_of(stage.contestants[i].candidate);
  return fmt::format(
      "As good, since not told apart from the leader and measured within 3 % of it: {}. Taken: {}, "
      "the cheapest of them.{}",
      names, pick, others);
}

std::string stage_text(const Stage& stage, Goal goal) {
  std::string text = fmt::format("\n{}\n", stage.name);
  if (stage.contestants.size() == 1)
    return text + "  nothing to choose: threads take one request each\n";
  if (stage.rounds == 0) return text + "  no round was possible in the time and bytes allowed\n";
  text += header("of the leader");
  std::vector<const Contestant*> sorted;
  for (const Contestant& contestant : stage.contestants) sorted.push_back(&contestant);
  const Contestant& leader = stage.contestants[stage.leader];
  const auto ratio_of = [&](const Contestant* contestant) {
    return contestant->rounds.empty() ? 0.0 : ratio(*contestant, leader, goal).median;
  };
  std::ranges::stable_sort(sorted, std::ranges::greater{}, ratio_of);
  for (const Contestant* contestant : sorted) {
    const bool compared = contestant != &leader && !contestant->rounds.empty();
    text += row(*contestant, goal,
                compared ? ratio_text(ratio(*contestant, leader, goal)) : "1: the leader",
                contestant->dropped_after ? " dropped" : "");
  }
  return text + wrapped("  ", equals_text(stage, goal), 2);
}

std::string confirmation_text(const Confirmation& fresh, Goal goal) {
  std::string text = "\nfresh rounds: nothing above counts in them\n" + header("of the defaults");
  for (std::size_t i = 0; i < fresh.contestants.size(); ++i) {
    const bool runner_up = fresh.runner_up == i;
    const std::string mark = i == fresh.pick       ? " pick"
                             : i == fresh.defaults ? " defaults"
                             : runner_up           ? " second"
                                                   : "";
    const std::string against =
        i == fresh.defaults
            ? "1"
            : ratio_text(ratio(fresh.contestants[i], fresh.contestants[fresh.defaults], goal));
    text += row(fresh.contestants[i], goal, against, mark);
  }
  return text;
}

std::string verdict_text(const TuneResult& result) {
  const char* const who = result.runner_up_taken ? "the second" : "the pick";
  const std::string to = ratio_text(result.to_defaults);
  switch (result.verdict) {
    case Verdict::kFaster:
      return to + " of the defaults";
    case Verdict::kNotTold:
      return fmt::format("{} cannot be told from the defaults ({} of them): keep them", who, to);
    case Verdict::kSlower:
      return fmt::format("in the fresh rounds {} was slower ({} of the defaults): keep them", who,
                         to);
    default:
      return "these are the engine's defaults";
  }
}

Json bounds_json(const MedianInterval& interval, double unit = 1) {
  return {{"median", interval.median / unit},
          {"low", interval.low / unit},
          {"high", interval.high / unit},
          {"bounded", interval.bounded},
          {"rounds", interval.count}};
}

Json contestant_json(const Contestant& contestant, Goal goal) {
  const Candidate& candidate = contestant.candidate;
  Json json = settings_fragment(candidate, {})["headrace"];
  json.erase("tuned");
  json["settings_text"] = text_of(candidate);
  json["dropped_after_round"] = contestant.dropped_after ? Json(*contestant.dropped_after) : Json();
  if (!contestant.left_out.empty()) json["not_tried"] = contestant.left_out;
  if (contestant.rounds.empty()) return json;
  json["queue"] = contestant.queue();
  json["gb_per_second"] = bounds_json(contestant.rate(goal), 1e9);
  json["cpu_seconds_per_gb"] = contestant.cpu_per_gb().median;
  for (const Evaluation& round : contestant.rounds) {
    json["samples"].push_back(
        {{"read_bytes_per_second", round.read_rate}, {"rw_bytes_per_second", round.mixed_rate}});
  }
  return json;
}

Json contestants_json(const std::vector<Contestant>& contestants, Goal goal) {
  Json json = Json::array();
  for (const Contestant& contestant : contestants)
    json.push_back(contestant_json(contestant, goal));
  return json;
}

Json result_json(const TuneReport& report) {
  static constexpr const char* kVerdicts[] = {"faster", "defaults", "not told from the defaults",
                                              "slower"};
  const TuneResult& result = report.result;
  return {{"settings", report.settings},
          {"gb_per_second", bounds_json(result.rate, 1e9)},
          {"half_width", result.rate.half_width()},
          {"resolved", result.resolved},
          {"verdict", kVerdicts[static_cast<std::size_t>(result.verdict)]},
          {"of_defaults", bounds_json(result.to_defaults)},
          {"text", result_sentences(result)}};
}

}  // namespace

std::vector<std::string> result_sentences(const TuneResult& result) {
  const MedianInterval& rate = result.rate;
  std::vector<std::string> sentences{fmt::format("{}: {} {}; {}.", text_of(result.settings()),
                                                 gb_text(rate.median), interval_text(rate, 1e9),
                                                 verdict_text(result))};
  if (result.runner_up_taken)
    sentences.emplace_back(
        "In the fresh rounds the second was faster than the pick, so it is what was compared with "
        "the defaults.");
  if (result.few_shapes) {
    sentences.emplace_back(
        "Time or bytes were too few for all shapes, so a few of them were tried. Give more "
        "--runtime and --max-write for the others.");
  }
  if (!result.resolved) {
    const std::string why =
        rate.bounded ? fmt::format("±{:.0f} % after {} rounds, the goal is {:.0f} %",
                                   100 * rate.half_width(), rate.count, 100 * kWantedHalfWidth)
                     : fmt::format("{} rounds bound nothing", rate.count);
    sentences.push_back("Unresolved: " + why +
                        "; another run may say otherwise. Give more --runtime and --max-write, or "
                        "wait until the drive is idle.");
  }
  return sentences;
}

std::string report_text(const TuneReport& report) {
  std::string text = fmt::format("\njudged by {}\n", text_of(report.goal));
  text += kReadingOfTables;
  for (const Stage& stage : report.result.stages) text += stage_text(stage, report.goal);
  text += confirmation_text(report.result.confirmation, report.goal) + "\nresult\n";
  for (const std::string& sentence : result_sentences(report.result))
    text += wrapped("  ", sentence, 2);
  text += "\n" + dump(report.settings);
  text += "\n" + wrapped("", verification_text(report.run.verification), 0);
  text += fmt::format("{} s, {} written in all\n", three_digits(report.run.seconds),
                      base::format_bytes(report.run.written_bytes));
  if (!report.run.warnings.empty()) text += "\nwarnings\n";
  for (const std::string& warning : report.run.warnings) text += wrapped("  - ", warning, 4);
  return text;
}

Json report_json(const TuneReport& report) {
  Json json = document(kTuneName, report.run);
  json["drives"] = drives_json(report.run.drives);
  json["goal"] = name_of(report.goal);
  json["stages"] = Json::array();
  for (const Stage& stage : report.result.stages) {
    Json one = {{"name", stage.name}, {"rounds", stage.rounds}, {"pick", stage.pick}};
    one["not_told_apart"] = stage.equals;
    one["candidates"] = contestants_json(stage.contestants, report.goal);
    json["stages"].push_back(std::move(one));
  }
  const Confirmation& fresh = report.result.confirmation;
  json["fresh_rounds"] = {{"rounds", fresh.rounds},
                          {"defaults", fresh.defaults},
                          {"pick", fresh.pick},
                          {"candidates", contestants_json(fresh.contestants, report.goal)}};
  if (fresh.runner_up) json["fresh_rounds"]["second"] = *fresh.runner_up;
  json["result"] = result_json(report);
  json["verification"] = verification_json(report.run.verification);
  json["written_bytes"] = report.run.written_bytes;
  json["seconds"] = report.run.seconds;
  json["warnings"] = report.run.warnings;
  return json;
}
}  // namespace headrace::tools
