// SPDX-License-Identifier: Apache-2.0
#include "tune/options.hpp"

#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "program/io_queue_names.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;

constexpr const char* kDescription =
    "Finds the engine's I/O settings for a drive: io_block_bytes, queue_depth, submit_batch, "
    "io_queue and\nregister_buffers. Candidates run in interleaved rounds. It drops those that are "
    "clearly slower and takes\nthe cheapest of those that remain. Fresh rounds then measure its "
    "gain "
    "over the defaults.\nPATH is a directory on the drive (a scratch file is "
    "made in it and removed), one per drive.\n";
constexpr const char* kFooter =
    "\nSizes are powers of 1024 (4M, 1GiB). HEADRACE_IO_QUEUE restricts it to one queue.\n"
    "\nExit codes: 0 done, 1 the run failed or data differed, 2 refused before it started, 3 the "
    "queue that\nHEADRACE_IO_QUEUE names is not available, 128 + n ended by signal n.\n";

// As given; empty: not.
struct Words {
  std::string goal, size, runtime, most_written;
};

void add_options(CLI::App& app, TuneOptions& o, Words& w) {
  app.add_option("PATH", o.paths, "Directories, one per drive [the current one]")->type_name("");
  app.add_option("--for", w.goal,
                 "step: a training step's bytes; read: parameters alone; rw: the update alone "
                 "[step]")
      ->type_name("GOAL");
  const char* group = "How much";
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name(type);
  };
  text("--size", "SIZE", w.size, "Size of the file per drive [1G; --quick 512M]");
  text("--runtime", "TIME", w.runtime, "At most this long in all [120s; --quick 30s]");
  text("--max-write", "SIZE", w.most_written,
       "Write at most this much per drive [16G; --quick 4G]");
  app.add_flag("--quick", o.quick, "Fewer candidates, in 30 s")->group(group);
  group = "Results";
  const auto target = [&](const char* name, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name("FILE");
  };
  target("--write", o.write,
         "File for the settings, for the engine; replaces nothing but its own earlier "
         "ones");
  target("--json", o.json, "File for the report; - is stdout");
  command_line::add_replaced(app, "--write-deepspeed",
                             {"--write-deepspeed: these rates are not those of DeepSpeed's queue",
                              "Run DeepSpeed's own ds_nvme_tune, which measures that"});
}

void finish(TuneOptions& o, const Words& w) {
  if (o.paths.empty()) o.paths = {"."};
  if (!w.goal.empty())
    o.goal = command_line::to_choice<Goal>(
        "--for", w.goal, {{"step", Goal::kStep}, {"read", Goal::kRead}, {"rw", Goal::kMixed}});
  const auto bytes = [](const char* name, const std::string& word) {
    return command_line::to_bytes(name, word, {64 * base::kMiB, std::uint64_t{1} << 50});
  };
  const std::uint64_t usual_file = o.quick ? base::kGiB / 2 : base::kGiB;
  const std::uint64_t usual_written = (o.quick ? 4 : 16) * base::kGiB;
  o.file_bytes_given = !w.size.empty();
  o.file_bytes =
      w.size.empty() ? usual_file : base::align_up(bytes("--size", w.size), base::kHugePage);
  o.most_written_bytes =
      w.most_written.empty() ? usual_written : bytes("--max-write", w.most_written);
  o.most_seconds = w.runtime.empty()
                       ? (o.quick ? 30.0 : 120.0)
                       : command_line::to_seconds("--runtime", w.runtime, {1, 86400.0});
  if (o.json == "-" && o.write == "-")
    throw Fault{"stdout cannot take two documents", "Give files, or one - alone"};
}
}  // namespace

int run_with_tune_options(int argc, const char* const* argv,
                          const std::function<int(const TuneOptions&)>& run) {
  TuneOptions options;
  Words words;
  CLI::App app(kDescription, kTuneName);
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, options, words);
  app.get_option("PATH")->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return run_subcommand({.program = kTuneName,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = options.json,
                         .check =
                             [&] {
                               finish(options, words);
                               options.queue = queue_of_environment();
                             },
                         .run = [&] { return run(options); },
                         .lost = "what was measured so far is lost, its files are gone"},
                        argc, argv);
}
}  // namespace headrace::tools
