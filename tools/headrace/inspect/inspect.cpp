// SPDX-License-Identifier: Apache-2.0
#include "inspect/inspect.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace inspect";
constexpr const char* kDescription =
    "Finds the records of optimizer state in swap files by their headers and compares every "
    "checksum,\nof the weights beside them as well. Of a store's file, shows the newest commit and "
    "the slots of its tiles.\nReads only. PATH is a swap file, a store's file, the directory of a "
    "run or store, or an nvme_path.\n";
constexpr const char* kFooter =
    "\nA run removes its swap files when it ends, so this looks at one that lives (what it writes "
    "meanwhile\nlooks damaged) or at what a killed one left. In a store in use, the newest "
    "commit's "
    "slots are whole.\n"
    "\nExit codes: 0 all that was found is whole, 1 something is damaged or cannot be read, or "
    "nothing could be\nverified, 2 refused before it started, 128+n ended by signal n.\n";

struct Options {
  std::string path, json;
};

std::string totals_text(const SwapInspection& file) {
  std::string text;
  for (const auto& [name, totals] : file.streams) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        base::format_bytes(totals.size_bytes));
  }
  return text;
}

std::string slot_text(const StoreFacts& store, std::uint32_t slot) {
  std::vector<std::uint64_t> numbers;
  std::uint64_t first = ~std::uint64_t{0}, last = 0;
  for (const StoreTile& tile : store.tiles) {
    if (tile.frozen || tile.slot != slot) continue;
    numbers.push_back(tile.tile);
    first = std::min(first, tile.generation);
    last = std::max(last, tile.generation);
  }
  if (numbers.empty()) return "";
  const std::string generations =
      first == last
          ? "generation " + generation_text(first)
          : fmt::format("generations {} to {}", generation_text(first), generation_text(last));
  return fmt::format("  in slot {}: tiles {}, {}\n", slot, ranges_text(numbers), generations);
}

std::string store_text(const StoreFacts& store) {
  if (store.ranks == 0) return "";  // no whole header
  std::string text =
      fmt::format("  store {}: rank {} of {}, drive {} of {}\n", swap::run_id_text(store.id),
                  store.rank, store.ranks, store.drive, store.drives);
  if (store.commit == 0) {
    text += "  no step was committed\n";
  } else {
    text += fmt::format("  step {}, epoch {}, commit record {}, opening {}; {} of trainer state\n",
                        store.steps, store.epoch, store.commit, store.opening,
                        base::format_bytes(store.trainer_state_bytes));
    text += fmt::format("  {} of {} tiles of this rank are here\n", store.tiles.size(),
                        store.tiles_of_rank);
    text += slot_text(store, 0) + slot_text(store, 1);
  }
  if (store.commits_meanwhile > 0) {
    text += fmt::format(
        "  in use: {} more commits meanwhile; this is the last of them that was "
        "read\n",
        store.commits_meanwhile);
  }
  if (store.unsettled_tiles > 0) {
    text += fmt::format("  {} tiles were written anew at every look: not verified\n",
                        store.unsettled_tiles);
  }
  std::vector<std::uint64_t> frozen;
  for (const StoreTile& tile : store.tiles)
    if (tile.frozen) frozen.push_back(tile.tile);
  if (!frozen.empty()) {
    text += fmt::format("  tiles {} are frozen: a weight without a header, not verified\n",
                        ranges_text(frozen));
  }
  for (const StoreFacts::Torn& torn : store.torn) {
    text += fmt::format("  the commit record at {} is not whole: {}{}\n", torn.offset_bytes,
                        torn.fault, store.commit > 0 ? "; the newest whole one counts" : "");
  }
  return text;
}

std::string runs_text(const SwapInspection& file) {
  std::string text;
  for (const auto& [run, records] : file.runs)
    text += fmt::format("  run {}: {} records\n", run, records);
  return text;
}

std::string file_text(const SwapInspection& file) {
  std::string text = fmt::format("{}: {}\n", file.path, base::format_bytes(file.size_bytes));
  text += file.store ? store_text(*file.store) : runs_text(file);
  if (file.store) {
    if (file.records > 0) text += fmt::format("  {}\n", totals_text(file));
  } else if (file.records == 0) {
    text += "  no record; weights alone have no header, so nothing can be checked\n";
  } else {
    text += fmt::format("  records {}, generations {} to {}\n", ranges_text(file.numbers),
                        file.first_generation, file.last_generation);
    text += fmt::format("  {}\n", totals_text(file));
  }
  if (file.superseded > 0)
    text += fmt::format("  {} older writes of these records, not checked\n", file.superseded);
  if (file.unchecked_bytes > 0) {
    text += fmt::format("  {} were written without checksums (headrace.checksums is off)\n",
                        base::format_bytes(file.unchecked_bytes));
  }
  for (const Damage& damage : file.damage) {
    text += fmt::format("  DAMAGED at {}: record {} (generation {}), {}\n", damage.offset_bytes,
                        damage.record, damage.generation, damage.what);
  }
  if (file.lost_records > 0) {
    text += fmt::format(
        "  DAMAGED: {} of {} records not found: their headers are lost or cut off, or the run "
        "ended "
        "before it wrote them\n",
        file.lost_records, file.records_in_file);
  }
  const std::uint64_t places = file.damaged - file.lost_records;
  if (places > file.damage.size())
    text += fmt::format("  and {} more places\n", places - file.damage.size());
  if (file.verified_bytes == 0 && file.damaged == 0) return text + "  nothing could be verified\n";
  return text + fmt::format("  {} verified, {}\n", base::format_bytes(file.verified_bytes),
                            file.damaged == 0 ? "all whole"
                                              : fmt::format("{} damaged place{}", file.damaged,
                                                            file.damaged == 1 ? "" : "s"));
}

Json store_json(const StoreFacts& store) {
  Json json = {{"id", swap::run_id_text(store.id)},
               {"rank", store.rank},
               {"ranks", store.ranks},
               {"drive", store.drive},
               {"drives", store.drives},
               {"commit_record", store.commit},
               {"commits_meanwhile", store.commits_meanwhile},
               {"unsettled_tiles", store.unsettled_tiles},
               {"epoch", store.epoch},
               {"opening", store.opening},
               {"steps", store.steps},
               {"skipped", store.skipped},
               {"trainer_state_bytes", store.trainer_state_bytes},
               {"tiles_of_rank", store.tiles_of_rank}};
  json["tiles"] = Json::array();
  for (const StoreTile& tile : store.tiles) {
    json["tiles"].push_back({{"tile", tile.tile},
                             {"slot", tile.slot},
                             {"generation", tile.generation},
                             {"frozen", tile.frozen},
                             {"record_offsets", tile.record_offset},
                             {"weight_offsets", tile.weight_offset}});
  }
  json["torn_commit_records"] = Json::array();
  for (const StoreFacts::Torn& torn : store.torn) {
    json["torn_commit_records"].push_back(
        {{"offset_bytes", torn.offset_bytes}, {"fault", torn.fault}});
  }
  return json;
}

Json file_json(const SwapInspection& file) {
  Json json = {{"path", file.path},
               {"size_bytes", file.size_bytes},
               {"runs", file.runs},
               {"records", file.records},
               {"records_in_file", file.records_in_file},
               {"lost_records", file.lost_records},
               {"record_numbers", file.numbers},
               {"superseded_records", file.superseded},
               {"first_generation", file.first_generation},
               {"last_generation", file.last_generation},
               {"verified_bytes", file.verified_bytes},
               {"unchecked_bytes", file.unchecked_bytes},
               {"damaged_places", file.damaged}};
  json["streams"] = Json::object();
  for (const auto& [name, totals] : file.streams) {
    json["streams"][name] = {{"streams", totals.streams}, {"size_bytes", totals.size_bytes}};
  }
  json["damage"] = Json::array();
  for (const Damage& damage : file.damage) {
    json["damage"].push_back({{"offset_bytes", damage.offset_bytes},
                              {"record", damage.record},
                              {"generation", damage.generation},
                              {"what", damage.what}});
  }
  if (file.store) json["store"] = store_json(*file.store);
  return json;
}

// Whole is what was looked at and found so.
bool all_whole(const std::vector<SwapInspection>& files) {
  return std::ranges::none_of(files, [](const auto& file) { return file.damaged > 0; }) &&
         std::ranges::any_of(files, [](const auto& file) { return file.verified_bytes > 0; });
}

// Where a signal ends it; one line that is overwritten, on a terminal only.
InspectionProgress progress_of(const std::string& path, std::uint64_t& shown) {
  return [&path, &shown](std::uint64_t done_bytes) {
    check_signal();
    if (::isatty(STDERR_FILENO) != 1 || done_bytes < shown + base::kGiB / 4) return;
    shown = done_bytes;
    tell("\r{}: {}\033[K", path, base::format_bytes(done_bytes));
  };
}

int run(const Options& options) {
  const std::vector<std::string> paths = find_swap_files(options.path);
  if (paths.empty()) {
    throw Error(Code::kNotFound, options.path +
                                     " holds no swap file; nothing was checked. A run removes its "
                                     "own when it ends: name the nvme_path of one that lives");
  }
  std::vector<SwapInspection> files;
  for (const std::string& path : paths) {
    std::uint64_t shown = 0;
    files.push_back(inspect_swap_file(path, progress_of(path, shown)));
    if (shown > 0) tell("\r\033[K");
  }
  const int exit_code = all_whole(files) ? kDone : kFailed;
  print_to(options.json == "-" ? stderr : stdout, "{}", inspection_text(files));
  Json report = document(kProgram);
  report["exit_code"] = exit_code;
  report["files"] = inspection_json(files);
  command_line::write_report(options.json, dump(report));
  return exit_code;
}
}  // namespace

std::string ranges_text(const std::vector<std::uint64_t>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] <= ascending[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += ascending[i] == ascending[last]
                ? std::to_string(ascending[i])
                : fmt::format("{} to {}", ascending[i], ascending[last]);
    i = last + 1;
  }
  return text;
}

std::string inspection_text(const std::vector<SwapInspection>& files) {
  std::string text;
  for (const SwapInspection& file : files) text += file_text(file);
  return text;
}

Json inspection_json(const std::vector<SwapInspection>& files) {
  Json json = Json::array();
  for (const SwapInspection& file : files) json.push_back(file_json(file));
  return json;
}

int inspect(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  app.footer(kFooter);
  app.add_option("PATH", options.path, "Swap file, run directory or nvme_path")
      ->required()
      ->type_name("");
  app.add_option("--json", options.json, "File for the report; - is stdout")->type_name("FILE");
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was checked",
                         .app = app,
                         .json = options.json,
                         .check =
                             [&] {
                               if (options.path.empty())
                                 throw command_line::Fault{
                                     "PATH is empty",
                                     "Name a swap file, a run's directory or an nvme_path"};
                               command_line::check_report_target(options.json);
                             },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
