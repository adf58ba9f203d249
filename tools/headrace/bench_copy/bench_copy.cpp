// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/bench_copy.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "bench_copy/buffers.hpp"
#include "bench_copy/copy_report.hpp"
#include "bench_copy/options.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"
#include "measure/measured_on.hpp"
#include "platform/machine.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/report_parts.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kDescription =
    "Measures copies between host memory and an NVIDIA GPU: to the device, to the host, both at "
    "once; pinned\nand pageable memory. Rounds are interleaved, and what arrives is compared. No "
    "drive is touched.\n";

// Default sizes that do not fit become fewer, which is a warning; those asked for are refused.
void fit_to_memory(const Device& device, CopyBenchOptions& options,
                   std::vector<std::string>& warnings) {
  const platform::Limit left = platform::memory_left();
  const auto needed = [&] {
    return CopyBuffers::needed(device, options.contest.buffer_bytes()).host_bytes;
  };
  // An eighth is left to everything else.
  const auto fits = [&] { return needed() <= left.value - left.value / 8; };
  const std::string why =
      fmt::format("copies of {} need {} of memory, and {} leaves {}",
                  base::format_bytes(options.contest.sizes.back()), base::format_bytes(needed()),
                  left.source, base::format_bytes(left.value));
  while (!options.sizes_given && !fits() && options.contest.sizes.size() > 1) {
    options.contest.sizes.pop_back();
    if (fits()) {
      warnings.push_back(fmt::format("{}; {} are the largest; free some for more", why,
                                     base::format_bytes(options.contest.sizes.back())));
    }
  }
  if (!fits()) {
    throw Error(Code::kOutOfBudget,
                why + "; nothing was measured. Free memory, or give smaller --sizes.");
  }
}

std::string announcement(const Device& device, const CopyContestOptions& contest) {
  const CopyBuffers::Needed needed = CopyBuffers::needed(device, contest.buffer_bytes());
  const std::size_t rows = contest.transfers().size();
  return fmt::format(
      "This takes about {:.0f} s, {} of memory ({} of it pinned) and {} of the GPU's beside the "
      "driver's own, for {} row{}.\n",
      contest.about_seconds(), base::format_bytes(needed.host_bytes),
      base::format_bytes(needed.pinned_bytes), base::format_bytes(needed.device_bytes), rows,
      rows == 1 ? "" : "s");
}

CopyContest measured(Device& device, const CopyContestOptions& options) {
  ProgressLine line;
  return measure_copies(device, options, [&](const std::string& what, double share) {
    line.show(fmt::format("{:3.0f} %  {}", 100 * share, what));
  });
}

int report(const CopyBenchOptions& options, const MeasuredOn& about, const Json& gpu,
           const CopyContest& contest) {
  const ExitCode code = contest.mismatches > 0                              ? kFailed
                        : !rows_below(contest, options.least_share).empty() ? kMissed
                                                                            : kDone;
  Json json = document(kBenchCopyName, about);
  json["exit_code"] = static_cast<int>(code);
  json.update(gpu);
  json.update(copies_json(contest, options.least_share));
  json["warnings"] = about.warnings;
  command_line::write_report(options.json, dump(json));
  if (code == kFailed) {
    tell(
        "{}: other bytes arrived than were sent, in {} measurements; the GPU, its link or memory "
        "damages data; do not train on it before it is found. First: {}\n",
        kBenchCopyName, contest.mismatches, contest.first_mismatch);
  }
  return code;
}

int run(CopyBenchOptions options, MeasuredOn about, const Failing& failing) {
  const CudaFacts facts = cuda_facts();
  CudaOptions cuda;
  cuda.ordinal = options.gpu;
  std::shared_ptr<Device> device;
  try {
    if (!facts.missing.empty()) throw Error(Code::kUnsupported, facts.missing);
    device = make_cuda_device(cuda);
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    return failing.fail(kLacking, code_name(error.code()),
                        std::string("nothing was measured: ") + error.what());
  }
  const CudaGpu& gpu = facts.gpus.at(static_cast<std::size_t>(options.gpu));
  const std::optional<GpuLink> link = gpu_link(gpu.pci_bus_id, gpu_facts());
  fit_to_memory(*device, options, about.warnings);
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  print_to(out, "{}{}{}", fact_lines("machine", about.machine), fact_lines("build", about.build),
           fact_lines("gpu", gpu_lines(facts, gpu, link)));
  tell("{}", announcement(*device, options.contest));
  const CopyContest contest = measured(*device, options.contest);
  print_to(out, "{}", copies_text(contest, link, options.least_share));
  for (const std::string& warning : about.warnings) print_to(out, "WARNING: {}\n", warning);
  return report(options, about, gpu_json(facts, gpu, link), contest);
}
}  // namespace

int bench_copy(int argc, const char* const* argv) {
  CopyBenchOptions options;
  CopyBenchWords words;
  CLI::App app(kDescription, kBenchCopyName);
  add_copy_options(app, options, words);
  return run_subcommand({.program = kBenchCopyName,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = options.json,
                         .check =
                             [&] {
                               finish_copy_options(options, words);
                               command_line::check_report_target(options.json);
                             },
                         .run =
                             [&] {
                               return run(options, begin_measurement(kBenchCopyName, argc, argv),
                                          Failing(kBenchCopyName, options.json));
                             }},
                        argc, argv);
}
}  // namespace headrace::tools
