// SPDX-License-Identifier: Apache-2.0
#include "bench/compare.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "bench/report_format.hpp"
#include "bench/report_json.hpp"
#include "bench/unpaired_ratio.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kCompareProgram = "headrace bench compare";
constexpr const char* kCompareDescription =
    "Compares what two runs of headrace bench have measured, cell by cell.\nA and B are files that "
    "--json wrote; A is the earlier one, and a ratio is B / A.\n";
constexpr const char* kCompareFooter =
    "\nRatios are medians of all pairs of rounds, with the interval that the rank sum test leaves "
    "at 95 %. It\nneeds 4 rounds in each run. It knows the noise between the rounds of a run, not "
    "what else changed from\none run to the other: for a close call, repeat both.\n"
    "\nExit codes: 0 compared, 2 refused, 4 a cell is slower than --fail-below allows, beyond "
    "noise.\n";
constexpr std::size_t kLargest = 512u << 20;

struct Options {
  std::string a, b, json;
  std::optional<double> fail_below;
};

Error unreadable(const std::string& file, const std::string& cause) {
  return Error(Code::kInvalidArgument,
               fmt::format("{}: {}; nothing was compared. Give a file that headrace bench --json "
                           "wrote.",
                           file, cause));
}

// Of a regular file alone: a pipe or a device may never end, or never begin.
std::string text_of_file(const std::string& file) {
  const base::UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0)
    throw unreadable(file, "cannot be read: " + base::errno_text(errno));
  if (S_ISDIR(status.st_mode)) throw unreadable(file, "is a directory");
  if (!S_ISREG(status.st_mode)) throw unreadable(file, "is not a regular file");
  std::string text(std::min(kLargest, static_cast<std::size_t>(status.st_size)) + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    check_signal();
    const ssize_t got = ::read(opened.get(), text.data() + filled,
                               std::min<std::size_t>(text.size() - filled, 16u << 20));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable(file, "cannot be read: " + base::errno_text(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  if (filled > kLargest) throw unreadable(file, "is larger than 512 MiB");
  if (filled == text.size()) throw unreadable(file, "grew while it was read");
  text.resize(filled);
  return text;
}

Measurement read(const std::string& file) {
  const std::string text = text_of_file(file);
  try {
    return measurement_of(Json::parse(text), file);
  } catch (const Json::parse_error& fault) {
    throw unreadable(file, fmt::format("is no JSON: wrong at byte {}", fault.byte));
  }
}

std::string fact_of(const std::vector<Fact>& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Fact::name);
  return found == facts.end() ? "" : found->value;
}

std::vector<std::string> cautions_of(const Measurement& a, const Measurement& b) {
  std::vector<std::string> cautions;
  const auto differ = [&](const std::string& what, const std::string& in_a,
                          const std::string& in_b) {
    if (in_a != in_b)
      cautions.push_back(fmt::format("not the same {}: '{}' in A, '{}' in B", what, in_a, in_b));
  };
  for (const char* name : {"cpu", "usable cpus", "memory", "huge pages", "kernel"})
    differ(name, fact_of(a.machine, name), fact_of(b.machine, name));
  for (const char* name : {"build type", "sanitizers"})
    differ(name, fact_of(a.build, name), fact_of(b.build, name));
  const auto drives = [](const Measurement& run) {
    std::string text;
    for (const MeasuredDrive& drive : run.drives) {
      text += fmt::format("{}{} ({}{}{})", text.empty() ? "" : ", ", drive.path, drive.model,
                          drive.model.empty() ? "" : ", ", drive.file_system);
    }
    return text;
  };
  differ("drives", drives(a), drives(b));
  differ("fio", a.fio_version, b.fio_version);
  for (const auto& [name, run] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
    if (run->verification.mismatches > 0)
      cautions.push_back(fmt::format("{} had data that came back other than written", name));
  }
  return cautions;
}

const Cell* cell_like(const Cell& cell, const Measurement& run) {
  const auto found = std::ranges::find_if(run.cells, [&](const Cell& other) {
    return other.workload == cell.workload && !other.samples.empty();
  });
  return found == run.cells.end() ? nullptr : &*found;
}

// "auto" may have chosen another one; said once for all cells.
void note_queues(const Cell& a, const Cell& b, std::vector<std::string>& cautions) {
  if (a.queue == b.queue) return;
  std::string caution = fmt::format("not the same queue: '{}' in A, '{}' in B", a.queue, b.queue);
  if (std::ranges::find(cautions, caution) == cautions.end())
    cautions.push_back(std::move(caution));
}

std::vector<std::string> only_in(const Measurement& run, const Measurement& other) {
  std::vector<std::string> names;
  for (const Cell& cell : run.cells) {
    if (!cell.samples.empty() && cell_like(cell, other) == nullptr)
      names.push_back(text_of(cell.workload));
  }
  return names;
}

std::string verdict_of(const ComparedCell& cell) {
  if (!cell.ratio.bounded) return "too few rounds to tell";
  if (!cell.told_apart()) return "not told from noise";
  return fmt::format("{} by {:.1f} %", cell.ratio.low > 1 ? "faster" : "slower",
                     100 * std::abs(cell.ratio.median - 1));
}

bool is_below(const ComparedCell& cell, double allowed) {
  return cell.told_apart() && cell.ratio.median < 1 - allowed;
}

int run(const Options& options) {
  const ComparedRuns runs = compare_runs(read(options.a), read(options.b));
  if (runs.cells.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} and {} have no workload in common; nothing was compared. Run "
                            "headrace bench with the same --rw, --bs and --iodepth for both.",
                            options.a, options.b));
  }
  const int exit_code = cells_below(runs, options.fail_below).empty() ? kDone : kMissed;
  print_to(options.json == "-" ? stderr : stdout, "A: {}\nB: {}\n{}", options.a, options.b,
           compared_text(runs, options.fail_below));
  Json report = document(kCompareProgram);
  report["exit_code"] = exit_code;
  report["a"] = options.a;
  report["b"] = options.b;
  report.update(compared_json(runs, options.fail_below));
  command_line::write_report(options.json, dump(report));
  return exit_code;
}

double share_of(const std::string& word) {
  const bool percent = word.ends_with('%');
  if (!percent)
    throw command_line::Fault{"--fail-below '" + word + "' is no share", "Write it as in 5%"};
  return command_line::to_real("--fail-below", word.substr(0, word.size() - 1), {0, 100}) / 100;
}
}  // namespace

ComparedRuns compare_runs(const Measurement& a, const Measurement& b) {
  ComparedRuns runs;
  runs.cautions = cautions_of(a, b);
  for (const Cell& cell : a.cells) {
    const Cell* const other = cell_like(cell, b);
    if (cell.samples.empty() || other == nullptr) continue;
    note_queues(cell, *other, runs.cautions);
    runs.cells.push_back({.workload = text_of(cell.workload),
                          .a = cell.rate(),
                          .b = other->rate(),
                          .ratio = unpaired_ratio(cell.rates(), other->rates())});
  }
  runs.only_in_a = only_in(a, b);
  runs.only_in_b = only_in(b, a);
  return runs;
}

std::vector<const ComparedCell*> cells_below(const ComparedRuns& runs,
                                             std::optional<double> allowed) {
  std::vector<const ComparedCell*> below;
  for (const ComparedCell& cell : runs.cells) {
    if (allowed && is_below(cell, *allowed)) below.push_back(&cell);
  }
  return below;
}

std::string compared_text(const ComparedRuns& runs, std::optional<double> allowed) {
  std::string text = fmt::format("  {:<33} {:>7} {:>7}  {:>6} {}\n", "GB/s, median of rounds", "A",
                                 "B", "B / A", "[95 %]");
  for (const ComparedCell& cell : runs.cells) {
    text += fmt::format(
        "  {:<33} {:>7} {:>7}  {:>6.3f} {:<16} {}\n", cell.workload,
        three_digits(cell.a.median / 1e9), three_digits(cell.b.median / 1e9), cell.ratio.median,
        fmt::format("[{:.3f}, {:.3f}]", cell.ratio.low, cell.ratio.high), verdict_of(cell));
  }
  for (const std::string& name : runs.only_in_a) text += fmt::format("  {}: in A only\n", name);
  for (const std::string& name : runs.only_in_b) text += fmt::format("  {}: in B only\n", name);
  for (const std::string& caution : runs.cautions) text += fmt::format("caution: {}\n", caution);
  if (!allowed) return text;
  const auto below = cells_below(runs, allowed);
  for (const ComparedCell* cell : below) {
    text += fmt::format("BELOW: {} is {:.1f} % slower in B, beyond noise; {:.3g} % were allowed\n",
                        cell->workload, 100 * (1 - cell->ratio.median), 100 * *allowed);
  }
  if (below.empty())
    text +=
        fmt::format("no cell is more than {:.3g} % slower in B, beyond noise\n", 100 * *allowed);
  return text;
}

Json compared_json(const ComparedRuns& runs, std::optional<double> allowed) {
  Json json = {{"method", "unpaired, rank sum test"}, {"fail_below", nullptr}};
  if (allowed) json["fail_below"] = *allowed;
  json["jobs"] = Json::array();
  const auto interval = [](const MedianInterval& of) {
    return Json{{"median", of.median}, {"low", of.low}, {"high", of.high}, {"bounded", of.bounded}};
  };
  for (const ComparedCell& cell : runs.cells) {
    json["jobs"].push_back({{"jobname", cell.workload},
                            {"a_bytes_per_second", interval(cell.a)},
                            {"b_bytes_per_second", interval(cell.b)},
                            {"ratio", interval(cell.ratio)},
                            {"told_apart", cell.told_apart()},
                            {"below", allowed && is_below(cell, *allowed)}});
  }
  json["only_in_a"] = runs.only_in_a;
  json["only_in_b"] = runs.only_in_b;
  json["cautions"] = runs.cautions;
  return json;
}

int compare(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kCompareDescription, kCompareProgram);
  app.footer(kCompareFooter);
  app.add_option("A", options.a, "The earlier run's report")->required()->type_name("");
  app.add_option("B", options.b, "The later run's report")->required()->type_name("");
  app.add_option_function<std::string>(
         "--fail-below", [&](const std::string& word) { options.fail_below = share_of(word); },
         "End with 4 where B is slower by more than this")
      ->type_name("N%");
  app.add_option("--json", options.json, "File for the comparison; - is stdout")->type_name("FILE");
  return run_subcommand(
      {.program = kCompareProgram,
       .nothing_done = "nothing was compared",
       .app = app,
       .json = options.json,
       .check =
           [&] {
             command_line::check_targets_differ({{"A", options.a}, {"--json", options.json}});
             command_line::check_targets_differ({{"B", options.b}, {"--json", options.json}});
             command_line::check_report_target(options.json);
           },
       .run = [&] { return run(options); }},
      argc, argv);
}
}  // namespace headrace::tools
