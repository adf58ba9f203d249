// SPDX-License-Identifier: Apache-2.0
#include "update_options.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>

#include "headrace/version.hpp"

namespace headrace::bench {
namespace {
constexpr const char* kDescription =
    "Measures the update phase of a step with optimizer state on NVMe against what the drive does "
    "without\nany work in between: bytes read / raw read bandwidth + bytes written / raw write "
    "bandwidth.\nEach round measures all of it; rounds run forwards and backwards in turn.\n";
constexpr const char* kFooter =
    "\nNeeds about 2 bytes of memory per parameter, 14 more without --no-memory, and 20 bytes of "
    "drive.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 3 the named queue is not "
    "to be had,\n4 --require-ratio was missed, 128 + n ended by signal n.\n";

void add_work_options(CLI::App& app, UpdateOptions& o) {
  app.add_option("--parameters", o.parameters, "bf16 parameters, in blocks of 12.6 million")
      ->check(CLI::Range(std::uint64_t{65536}, std::uint64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--rounds", o.rounds, "Rounds, after one to warm up")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_flag("--parameters-nvme", o.parameters_on_nvme, "Parameters on NVMe as well");
  app.add_flag("!--no-memory", o.in_memory, "Leave out the same step in memory");
  app.add_option("--nvme", o.folder, "Folder on the drive")->capture_default_str();
  app.add_option("--json", o.json, "File for the report; - is stdout");
  app.add_option("--require-ratio", o.require_ratio,
                 "End with 4 if the median of update / bound is above this");
}

void add_setting_options(CLI::App& app, UpdateOptions& o) {
  const char* group = "Settings (defaults: the engine's)";
  Settings& s = o.settings;
  app.add_option("--tile", s.tile_elements, "Elements per tile, a multiple of 65536")
      ->group(group)
      ->capture_default_str();
  app.add_option("--slots", s.update_slots, "Tiles in memory at once")
      ->group(group)
      ->capture_default_str();
  app.add_option("--threads", s.update_threads, "Update threads; 0: what the machine leaves")
      ->group(group)
      ->capture_default_str();
  const std::map<std::string, IoQueueKind> queues = {{"auto", IoQueueKind::kAuto},
                                                     {"uring", IoQueueKind::kUring},
                                                     {"threads", IoQueueKind::kThreads}};
  app.add_option("--queue", s.io_queue, "auto, uring or threads")
      ->envname("HEADRACE_IO_QUEUE")
      ->transform(CLI::Transformer(queues))
      ->group(group);
  app.add_option("--block", s.io_block_bytes, "Bytes of one request")
      ->group(group)
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--depth", s.queue_depth, "Requests in flight")
      ->group(group)
      ->capture_default_str();
  app.add_option("--submit-batch", s.submit_batch, "Requests per submit")
      ->group(group)
      ->capture_default_str();
  const std::map<std::string, Checksums> switches = {{"on", Checksums::kOn},
                                                     {"off", Checksums::kOff}};
  app.add_option("--checksums", s.checksums, "on or off")
      ->transform(CLI::Transformer(switches))
      ->group(group);
}

void finish(UpdateOptions& o) {
  Settings& s = o.settings;
  s.nvme_paths = {o.folder};
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = o.parameters_on_nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  if (o.require_ratio && !(std::isfinite(*o.require_ratio) && *o.require_ratio > 0)) {
    throw CLI::ValidationError("--require-ratio", "a number above 0 is wanted");
  }
  // Taken into account above; the engine would put it before --queue.
  ::unsetenv("HEADRACE_IO_QUEUE");
}

// Found even on a command line that does not parse, since its failure is reported there.
std::string json_target(int argc, const char* const* argv) {
  std::string target;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json" && i + 1 < argc) target = argv[i + 1];
    if (word.starts_with("--json=")) target = word.substr(7);
  }
  return target;
}
}  // namespace

ParsedUpdateOptions parse_update_options(int argc, const char* const* argv) {
  UpdateOptions options;
  CLI::App app(kDescription, "update_bench");
  app.footer(kFooter);
  // A wrapper may append its user's words to its own: the last one holds.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", std::string("update_bench (headrace) ") + headrace::version());
  add_work_options(app, options);
  add_setting_options(app, options);
  ParsedUpdateOptions result;
  result.json = json_target(argc, argv);
  try {
    app.parse(argc, argv);
    finish(options);
    result.options = std::move(options);
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();
  } catch (const CLI::CallForVersion& version) {
    result.text = version.what() + std::string("\n");
  } catch (const CLI::ParseError& error) {
    result.text = std::string(error.what()) + "; nothing was measured. See update_bench --help.";
    result.exit_code = 2;
  }
  return result;
}
}  // namespace headrace::bench
