// SPDX-License-Identifier: Apache-2.0
#include "adapter_options.hpp"

#include "bench_program.hpp"
#include "command_line/command_line.hpp"
#include "measure/paired_ratio.hpp"

namespace headrace::tools {
namespace {
using command_line::add_number;
using command_line::add_real;
using command_line::Range;

constexpr const char* kDescription =
    "Measures the cost of the LibTorch adapter when nothing moves: forward and backward of a GPT "
    "with all state\nin memory, through headrace::torch::Offload and with LibTorch alone. "
    "Each round runs both twice, in the order\na b b a; the roles of a and b change from round to "
    "round.\n";
constexpr const char* kFooter =
    "\nCPU seconds include all threads of the process.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 4 --at-most was missed, "
    "128 + n ended\nby signal n.\n";

void add_options(CLI::App& app, AdapterOptions& o) {
  const auto add = [&](const char* name, std::uint32_t& to, const Range<std::uint64_t>& allowed,
                       const char* text) {
    add_number(app, name, to, allowed, text)->default_str(std::to_string(to));
  };
  add("--layers", o.layers, {1, 1000}, "Transformer blocks");
  add("--hidden", o.hidden, {64, 16384, 64}, "Width, a multiple of 64: a head has 64");
  add("--batch", o.batch, {1, 4096}, "Sequences");
  add("--seq", o.sequence, {1, 65536}, "Bytes of a sequence");
  add("--rounds", o.rounds, {kLeastRatios, 100000}, "Rounds, after one to warm up");
  add("--threads", o.threads, {0, 1024}, "Torch's threads; 0: torch decides");
  app.add_option("--json", o.json, "File for the report; - is stdout");
  add_real(app, "--at-most", o.at_most, {1e-9, 1e9},
           "Exit with 4 if an upper bound, of CPU or of wall time, is above this");
}
}  // namespace

int run_with_adapter_options(int argc, const char* const* argv,
                             const std::function<int(const AdapterOptions&)>& run) {
  AdapterOptions options;
  return run_bench_program({.name = "adapter_bench",
                            .description = kDescription,
                            .footer = kFooter,
                            .json = options.json,
                            .add_options = [&](CLI::App& app) { add_options(app, options); },
                            .check = [](const CLI::App&) {},
                            .run = [&] { return run(options); }},
                           argc, argv);
}
}  // namespace headrace::tools
