// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/options.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kFooter =
    "\nSizes are powers of 1024: --sizes 1M,16M. --require-share applies to pinned copies of at "
    "least "
    "4 MiB (else\nto the largest), and to gradients.\n"
    "\nExit codes: 0 done, 1 the run failed or bytes differed, 2 refused before it started, 3 "
    "there is no such\nGPU that can be used, 4 a --require-share was missed, 128 + n ended by "
    "signal n.\n";
}  // namespace

void add_copy_options(CLI::App& app, CopyBenchOptions& o, CopyBenchWords& w) {
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->type_name(type);
  };
  command_line::add_number(app, "--gpu", o.gpu, {0, 1023}, "Its ordinal, as CUDA counts [0]")
      ->type_name("ORDINAL");
  text("--sizes", "LIST", w.sizes, "Bytes of a copy, 4k to 4G [64k,1M,4M,16M,256M]");
  command_line::add_number(app, "--rounds", o.contest.rounds, {1, 10000},
                           "Rounds, after one to warm up [9]");
  text("--seconds", "TIME", w.seconds, "Length of each measurement [0.05]");
  text("--bytes", "SIZE", w.bytes, "Bytes of each measurement and direction, instead of --seconds");
  app.add_flag("--gradients", o.contest.gradients, "Also how fast gradients land in host memory");
  text("--json", "FILE", o.json, "File for the report; - is stdout");
  text("--require-share", "X", w.share, "Exit with 4 if a share of the link's limit is lower");
}

void finish_copy_options(CopyBenchOptions& o, const CopyBenchWords& w) {
  o.sizes_given = !w.sizes.empty();
  const std::string sizes = o.sizes_given ? w.sizes : "64k,1M,4M,16M,256M";
  for (const std::string& word : command_line::to_list("--sizes", sizes)) {
    o.contest.sizes.push_back(
        command_line::to_bytes("--sizes", word, {4096, 4 * base::kGiB, 4096}));
  }
  std::ranges::sort(o.contest.sizes);
  const auto repeated = std::ranges::unique(o.contest.sizes);
  o.contest.sizes.erase(repeated.begin(), repeated.end());
  if (!w.seconds.empty() && !w.bytes.empty())
    throw command_line::Fault{"--seconds and --bytes both say how long a measurement is",
                              "Give one of them"};
  if (!w.seconds.empty())
    o.contest.sample_seconds = command_line::to_seconds("--seconds", w.seconds, {0.001, 60});
  if (!w.bytes.empty())
    o.contest.sample_bytes = command_line::to_bytes("--bytes", w.bytes, {4096, base::kGiB << 10});
  if (!w.share.empty())
    o.least_share = command_line::to_share("--require-share", w.share, {0.001, 10});
}
}  // namespace headrace::tools
