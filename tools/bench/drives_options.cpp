// SPDX-License-Identifier: Apache-2.0
#include "drives_options.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/sizes.hpp"
#include "bench_program.hpp"
#include "command_line/command_line.hpp"
#include "program/io_queue_names.hpp"

namespace headrace::tools {
namespace {
using command_line::add_choice;
using command_line::add_number;
using command_line::add_real;
using command_line::Fault;

constexpr const char* kDescription =
    "Compares several drives at work together with the sum of each drive alone: raw "
    "transfers, and\nthe update phase of a step with optimizer state on all of them. Each round "
    "measures all of it, in turn\nforwards and backwards. --throttle makes drives slow, so that "
    "folders of one drive can stand for several.\n";
constexpr const char* kFooter =
    "\nNeeds for each folder, and once more for all of them, 2 bytes of memory per parameter, and "
    "20 bytes of\ndrive.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 4 --require-sum was "
    "missed,\n128 + n ended by signal n.\n";

// "0.4,0.8": one number per folder.
std::vector<double> numbers(const std::string& name, const std::string& words) {
  std::vector<double> values;
  for (std::size_t at = 0; at <= words.size();) {
    const std::size_t end = std::min(words.find(',', at), words.size());
    values.push_back(command_line::to_real(name, words.substr(at, end - at), {1e-3, 1e4}));
    at = end + 1;
  }
  return values;
}

void add_options(CLI::App& app, DrivesOptions& o, std::vector<std::string>& folders) {
  Settings& s = o.settings;
  app.add_option("--nvme", folders, "Folder on a drive; once for each of two or three")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const auto take_throttle = [&o](const std::string& words) {
    o.throttle_bytes_per_second = numbers("--throttle", words);
    for (double& speed : o.throttle_bytes_per_second) speed *= 1e9;
  };
  app.add_option_function<std::string>("--throttle", take_throttle,
                                       "Limit of each drive in GB/s, e.g. 0.4,0.8");
  const auto take_shares = [&s](const std::string& words) {
    s.drive_shares = numbers("--shares", words);
  };
  app.add_option_function<std::string>("--shares", take_shares,
                                       "headrace.drive_shares, e.g. 1,2; else as measured");
  add_number(app, "--parameters", o.parameters, {base::kBlockElements, std::uint64_t{1} << 40},
             "bf16 parameters")
      ->default_str(std::to_string(o.parameters));
  add_number(app, "--rounds", o.rounds, {1, 100000}, "Rounds, after one to warm up")
      ->default_str(std::to_string(o.rounds));
  add_number(app, "--tile", s.tile_elements, {base::kBlockElements, 4 << 20, base::kBlockElements},
             "Elements per tile, a multiple of 65536")
      ->default_str(std::to_string(s.tile_elements));
  add_number(app, "--slots", s.update_slots, {1, 1024}, "Tiles in memory at once")
      ->default_str(std::to_string(s.update_slots));
  add_number(app, "--depth", s.queue_depth, {1, 4096}, "Requests in flight per drive")
      ->default_str(std::to_string(s.queue_depth));
  add_choice(app, "--queue", s.io_queue, kQueues, "auto, uring, aio or threads");
  app.add_option("--json", o.json, "File for the report; - is stdout");
  add_real(app, "--require-sum", o.require_sum, {1e-9, 1e9},
           "Exit with 4 if the median of together / sum is below this, raw or update");
}

void finish(DrivesOptions& o, const std::vector<std::string>& folders) {
  // A signal interrupts no more than four engines: one for each, one for all.
  if (folders.size() < 2 || folders.size() > 3) {
    throw Fault{"--nvme was given " + std::to_string(folders.size()) + " times",
                "Give it two or three times, once for each drive"};
  }
  Settings& s = o.settings;
  s.nvme_paths = folders;
  s.update_mode = UpdateMode::kBarrier;  // what is measured is the call
  for (const auto& [name, count] :
       {std::pair<const char*, std::size_t>{"--throttle", o.throttle_bytes_per_second.size()},
        std::pair<const char*, std::size_t>{"--shares", s.drive_shares.size()}}) {
    if (count == 0 || count == folders.size()) continue;
    throw Fault{std::string(name) + " has " + std::to_string(count) + " numbers for " +
                    std::to_string(folders.size()) + " folders",
                "Give one for each"};
  }
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = OffloadDevice::kCpu;
}
}  // namespace

int run_with_drives_options(int argc, const char* const* argv,
                            const std::function<int(const DrivesOptions&)>& run) {
  DrivesOptions options;
  std::vector<std::string> folders;
  return run_bench_program(
      {.name = "drives_bench",
       .description = kDescription,
       .footer = kFooter,
       .json = options.json,
       .add_options = [&](CLI::App& app) { add_options(app, options, folders); },
       .check = [&](const CLI::App&) { finish(options, folders); },
       .run = [&] { return run(options); }},
      argc, argv);
}
}  // namespace headrace::tools
