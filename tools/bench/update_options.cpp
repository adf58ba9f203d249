// SPDX-License-Identifier: Apache-2.0
#include "update_options.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "bench_program.hpp"
#include "command_line/command_line.hpp"
#include "program/io_queue_names.hpp"

namespace headrace::tools {
namespace {
using command_line::add_choice;
using command_line::add_number;
using command_line::add_real;
using command_line::Range;
using command_line::to_whole;

constexpr const char* kDescription =
    "Compares the update phase of a step with optimizer state on NVMe with the drive alone, "
    "without\nany work in between: bytes read / raw read bandwidth + bytes written / raw write "
    "bandwidth, and the same\nrecords read and written back with nothing computed (mixed).\nEach "
    "round measures all of it; rounds run forwards and backwards in turn.\n";
constexpr const char* kFooter =
    "\nNeeds about 2 bytes of memory per parameter, 14 more without --no-memory, and 20 bytes of "
    "drive.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 3 the named queue is not "
    "available,\n4 --require-ratio was missed, 128 + n ended by signal n.\n";

// "1048576" or "1MiB".
std::uint64_t block_bytes(const std::string& word) {
  const std::size_t end = std::min(word.find_first_not_of("0123456789"), word.size());
  const std::string unit = word.substr(end);
  const std::uint64_t scale = unit == "KiB" ? base::kKiB : unit == "MiB" ? base::kMiB : 1;
  const Range<std::uint64_t> allowed{4096, 64 * base::kMiB, 4096};
  if (scale == 1) return to_whole("--block", word, allowed);
  const std::uint64_t count = to_whole("--block", word.substr(0, end), {1, 65536});
  return to_whole("--block", std::to_string(count * scale), allowed);
}

const std::vector<std::pair<std::string, Checksums>> kSwitches = {{"on", Checksums::kOn},
                                                                  {"off", Checksums::kOff}};

struct Flags {
  bool no_memory = false;
};

void add_work_options(CLI::App& app, UpdateOptions& o, Flags& flags) {
  add_number(app, "--parameters", o.parameters, {base::kBlockElements, std::uint64_t{1} << 40},
             "bf16 parameters, in blocks of 12.6 million")
      ->default_str(std::to_string(o.parameters));
  add_number(app, "--rounds", o.rounds, {1, 100000}, "Rounds, after one to warm up")
      ->default_str(std::to_string(o.rounds));
  app.add_flag("--parameters-nvme", o.parameters_on_nvme, "Parameters on NVMe as well");
  app.add_flag("--no-memory", flags.no_memory, "Leave out the same step in memory");
  app.add_option("--nvme", o.folder, "Folder on the drive")->capture_default_str();
  app.add_option("--json", o.json, "File for the report; - is stdout");
  add_real(app, "--require-ratio", o.require_ratio, {1e-9, 1e9},
           "Exit with 4 if the median of update / bound is above this");
}

void add_setting_options(CLI::App& app, Settings& s) {
  const char* group = "Settings (defaults: the engine's)";
  const auto add = [&](const char* name, auto& to, const Range<std::uint64_t>& allowed,
                       const char* text) {
    const std::string value = std::to_string(to);
    add_number(app, name, to, allowed, text)->group(group)->default_str(value);
  };
  add("--tile", s.tile_elements, {base::kBlockElements, 4 << 20, base::kBlockElements},
      "Elements per tile, a multiple of 65536");
  add("--slots", s.update_slots, {1, 1024}, "Tiles in memory at once");
  add("--threads", s.update_threads, {0, 1024}, "Update threads; 0: what the machine leaves");
  add_choice(app, "--queue", s.io_queue, kQueues,
             "auto, uring, aio or threads [HEADRACE_IO_QUEUE, else auto]")
      ->group(group);
  const auto take_block = [&s](const std::string& word) { s.io_block_bytes = block_bytes(word); };
  app.add_option_function<std::string>("--block", take_block, "Bytes of one request, e.g. 1MiB")
      ->group(group)
      ->default_str(std::to_string(s.io_block_bytes));
  add("--depth", s.queue_depth, {1, 4096}, "Requests in flight");
  add("--submit-batch", s.submit_batch, {1, 256}, "Requests per submit");
  add_choice(app, "--checksums", s.checksums, kSwitches, "on or off")->group(group);
}

void finish(UpdateOptions& o, const Flags& flags) {
  Settings& s = o.settings;
  o.in_memory = !flags.no_memory;
  s.nvme_paths = {o.folder};
  s.update_mode = UpdateMode::kBarrier;  // what is measured is the call
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = o.parameters_on_nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  // Taken into account already; the engine would put it before --queue.
  ::unsetenv("HEADRACE_IO_QUEUE");
}
}  // namespace

int run_with_update_options(int argc, const char* const* argv,
                            const std::function<int(const UpdateOptions&)>& run) {
  UpdateOptions options;
  Flags flags;
  return run_bench_program({.name = "update_bench",
                            .description = kDescription,
                            .footer = kFooter,
                            .json = options.json,
                            .add_options =
                                [&](CLI::App& app) {
                                  add_work_options(app, options, flags);
                                  add_setting_options(app, options.settings);
                                },
                            .check =
                                [&](const CLI::App& app) {
                                  const IoQueueKind queue = queue_of_environment();
                                  if (app.count("--queue") == 0) options.settings.io_queue = queue;
                                  finish(options, flags);
                                },
                            .run = [&] { return run(options); }},
                           argc, argv);
}
}  // namespace headrace::tools
