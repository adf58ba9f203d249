// SPDX-License-Identifier: Apache-2.0
// GPUs and their libraries: presence and version; none is needed, and none is used yet.
#include <fmt/core.h>

#include "doctor/rows.hpp"
#include "doctor/shared_library.hpp"
#include "platform/gpus.hpp"
#include "program/cuda_version.hpp"

namespace headrace::tools {
namespace {
Row gpus_row(const platform::GpuFacts& facts) {
  Row row{.name = "GPUs", .value = "none found", .findings = {{"gpu", facts.gpus.size()}}};
  row.detail = "Headrace computes on the CPU so far";
  row.values["gpus"] = Json::array();
  std::string models;
  for (const platform::Gpu& gpu : facts.gpus) {
    models += fmt::format("{}{} at {}", models.empty() ? "" : ", ", gpu.model, gpu.address);
    if (gpu.driver.empty()) models += " (no driver)";
    Json json = {{"address", gpu.address}, {"model", gpu.model}, {"driver", gpu.driver}};
    if (gpu.link) {
      json["max_speed_gt"] = gpu.link->max_speed_gt;
      json["max_width"] = gpu.link->max_width;
      // Idle GPUs slow their links down, so the speed of the moment says nothing.
      json["width"] = gpu.link->width;
    }
    row.values["gpus"].push_back(json);
  }
  if (!models.empty()) row.value = models;
  if (!facts.bus_readable) {
    row.value.clear();
    row.mark = Mark::kUnknown;
    row.findings[0].amount.reset();
  }
  return row;
}

Row driver_row(const platform::GpuFacts& facts) {
  Row row{.name = "NVIDIA driver", .value = facts.nvidia_driver};
  row.values["version"] = facts.nvidia_driver;
  if (row.value.empty()) row.value = "none seen";
  return row;
}

// NCCL writes 22705 for 2.27.5, and 2804 for 2.8.4 before 2.9.
std::string nccl_version(int code) {
  const int major = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / major, code % major / 100, code % 100);
}

Row library_row(const char* name, const char* finding, const char* library, const char* function,
                std::string (*version)(int)) {
  const LibraryTrial trial = try_library(library, function);
  Row row{.name = name, .value = "not found"};
  row.findings = {{finding, trial.loads ? 1u : 0u}};
  row.values = {{"library", library}, {"loads", trial.loads}, {"version_code", trial.version}};
  if (trial.loads) row.value = trial.version > 0 ? version(trial.version) : "loads";
  if (!trial.error.empty()) row.detail = trial.error;
  return row;
}
}  // namespace

Section gpu_section(const std::string& root) {
  const platform::GpuFacts facts = platform::gpu_facts(root);
  return {.title = "GPUs (not needed)",
          .path = "",
          .rows = {gpus_row(facts), driver_row(facts),
                   library_row("CUDA driver", "cuda", "libcuda.so.1", "cuDriverGetVersion",
                               cuda_version_text),
                   library_row("NCCL", "nccl", "libnccl.so.2", "ncclGetVersion", nccl_version)}};
}
}  // namespace headrace::tools
