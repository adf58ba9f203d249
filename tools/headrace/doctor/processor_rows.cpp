// SPDX-License-Identifier: Apache-2.0
// The processor: what the update kernels use of it, and how much of it this process may use.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "doctor/rows.hpp"
#include "headrace/error.hpp"
#include "machine/cpu_facts.hpp"
#include "optimizer_cpu/update.hpp"
#include "platform/machine.hpp"

namespace headrace::tools {
namespace {

// Those that are worth knowing of for training state; not all are used.
constexpr std::array kFeatures{"avx2",     "fma",      "f16c",        "avx512f",  "avx512bw",
                               "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16", "vaes"};

Row processor_row(const CpuFacts& cpu) {
  if (cpu.threads == 0) return {.name = "processor", .value = "", .mark = Mark::kUnknown};
  Row row{.name = "processor", .value = cpu.model.empty() ? "no model given" : cpu.model};
  row.detail = fmt::format("{} threads", cpu.threads);
  row.values = {{"model", cpu.model}, {"threads", cpu.threads}};
  return row;
}

Row features_row(const CpuFacts& cpu) {
  Row row{.name = "features", .value = ""};
  row.findings = {{"amx_bf16", cpu.flags.empty()     ? std::nullopt
                               : cpu.has("amx_bf16") ? std::optional<std::uint64_t>(1)
                                                     : std::optional<std::uint64_t>(0)}};
  row.values["flags"] = Json::array();
  for (const char* feature : kFeatures) {
    if (!cpu.has(feature)) continue;
    row.value += fmt::format("{}{}", row.value.empty() ? "" : " ", feature);
    row.values["flags"].push_back(feature);
  }
  if (cpu.flags.empty()) row.mark = Mark::kUnknown;
  if (row.value.empty() && row.mark == Mark::kOk) row.value = "none beyond x86-64";
  return row;
}

Row kernel_choice_row() {
  Row row{.name = "update kernel", .value = ""};
  for (const auto set : {Simd::kAvx2, Simd::kAvx512}) {
    row.findings.push_back({name_of(set), kernels::runs_here(set) ? 1u : 0u});
  }
  try {
    const Simd chosen = kernels::choose_instruction_set();
    row.value = name_of(chosen);
    row.values["instruction_set"] = name_of(chosen);
    if (chosen != Simd::kScalar) return row;
    row.mark = Mark::kNote;
    row.consequence = "updates take several times the CPU time of AVX2; the results are the same";
    row.fix = kernels::runs_here(Simd::kAvx2)
                  ? "unset HEADRACE_SIMD"
                  : "a CPU with AVX2, or in a virtual machine a CPU model that shows it (host)";
  } catch (const Error& error) {
    row.mark = Mark::kGap;
    row.value = "none";
    row.detail = error.what();
    row.consequence = "no run can start";
    row.fix = "unset HEADRACE_SIMD";
  }
  return row;
}

Row usable_row(const CpuFacts& cpu, const std::string& root) {
  Row row{.name = "usable CPUs", .value = ""};
  try {
    const platform::Limit usable = platform::usable_cpus(1, root);
    row.value = fmt::format("{} ({})", usable.value, usable.source);
    row.values = {{"cpus", usable.value}, {"source", usable.source}};
    row.findings = {{"cpus", usable.value}};
    if (usable.value > 1 || cpu.threads <= 1) return row;
    row.mark = Mark::kNote;
    row.consequence = "one CPU does the training, the updates and the I/O in turn";
    row.fix = "more CPUs: taskset, --cpus of the container, --cpus-per-task of Slurm";
  } catch (const Error& error) {
    row = {.name = "usable CPUs", .value = "refused", .mark = Mark::kGap};
    row.findings = {{"cpus", std::nullopt}};
    row.detail = error.what();
    row.consequence = "no run can start";
    row.fix = "unset SLURM_CPUS_PER_TASK";
  }
  return row;
}

}  // namespace

Section processor_section(const std::string& root) {
  const CpuFacts cpu = cpu_facts(root);
  return {
      .title = "Processor",
      .path = "",
      .rows = {processor_row(cpu), features_row(cpu), kernel_choice_row(), usable_row(cpu, root)}};
}
}  // namespace headrace::tools
