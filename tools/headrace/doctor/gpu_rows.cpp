// SPDX-License-Identifier: Apache-2.0
// GPUs, what the build has for them, and their libraries; none is needed.
#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "doctor/shared_library.hpp"
#include "machine/gpus.hpp"
#include "program/cuda_version.hpp"

namespace headrace::tools {
namespace {
Row gpus_row(const GpuFacts& facts) {
  Row row{.name = "GPUs", .value = "none found"};
  row.values["gpus"] = Json::array();
  std::string models;
  for (const Gpu& gpu : facts.gpus) {
    models += fmt::format("{}{} at {}", models.empty() ? "" : ", ", gpu.model, gpu.address);
    if (gpu.driver.empty()) models += " (no driver)";
    if (gpu.model == "AMD") row.detail = "of AMD's none is served";
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
  }
  return row;
}

constexpr const char* kCpu = "the device is the CPU";

bool is_nvidia(const Gpu& gpu) { return gpu.model != "AMD"; }

Row build_row(const CudaFacts& facts) {
  Row row{.name = "CUDA build", .value = "no CUDA part"};
  row.values = {{"built", facts.built},
                {"runtime_version", facts.runtime_version},
                {"architectures", facts.architectures}};
  if (facts.built) {
    row.value = fmt::format("{}, kernels for {}", cuda_version_text(facts.runtime_version),
                            facts.architectures);
  }
  return row;
}

// "cause: the device is the CPU. What helps.", as CudaFacts tells it, as the parts of a row.
void tell_missing(Row& row, const std::string& missing) {
  const std::size_t colon = missing.find(": ");
  row.detail = missing.substr(0, colon);
  row.consequence = kCpu;
  if (colon == std::string::npos) return;
  row.fix = missing.substr(colon + 2);
  const std::string told = std::string(kCpu) + ". ";
  if (row.fix.starts_with(told)) row.fix.erase(0, told.size());
  if (row.fix.ends_with('.')) row.fix.pop_back();
}

const char* const kBuildForThese =
    "build on this machine with -DHEADRACE_CUDA_ARCHITECTURES=native";

Row cuda_gpu_row(const CudaGpu& gpu) {
  Row row{.name = fmt::format("cuda:{}", gpu.ordinal)};
  row.value = fmt::format("{} at {}, {}, compute {}.{}, {} copy engine{}", gpu.name, gpu.pci_bus_id,
                          base::format_bytes(gpu.memory_bytes), gpu.compute_major,
                          gpu.compute_minor, gpu.copy_engines, gpu.copy_engines == 1 ? "" : "s");
  if (gpu.numa_node >= 0) row.value += fmt::format(", next to memory node {}", gpu.numa_node);
  if (gpu.served) return row;
  row.mark = Mark::kGap;
  row.detail = "the build has no kernels for its compute capability";
  row.consequence = "an engine does not take it";
  row.fix = kBuildForThese;
  return row;
}

Json gpu_values(const CudaGpu& gpu) {
  Json json = {{"ordinal", gpu.ordinal},
               {"name", gpu.name},
               {"address", gpu.pci_bus_id},
               {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
               {"memory_bytes", gpu.memory_bytes},
               {"copy_engines", gpu.copy_engines},
               {"numa_node", nullptr},
               {"served", gpu.served}};
  if (gpu.numa_node >= 0) json["numa_node"] = gpu.numa_node;
  return json;
}

// A machine without a GPU lacks nothing.
Row usable_row(const CudaFacts& facts, const GpuFacts& plugged) {
  const auto served =
      static_cast<std::uint64_t>(std::ranges::count_if(facts.gpus, &CudaGpu::served));
  Row row{.name = "usable GPUs", .value = "none", .findings = {{"gpu", served}}};
  row.values = {{"usable", served},
                {"driver_version", facts.driver_version},
                {"missing", facts.missing},
                {"gpus", Json::array()}};
  for (const CudaGpu& gpu : facts.gpus) row.values["gpus"].push_back(gpu_values(gpu));
  const bool any_there = std::ranges::any_of(plugged.gpus, is_nvidia) || facts.driver_version > 0;
  if (!facts.missing.empty() && any_there) {
    row.mark = Mark::kGap;
    tell_missing(row, facts.missing);
  } else if (!facts.missing.empty()) {
    row.detail = facts.missing;
  } else if (served == 0) {
    row.mark = Mark::kGap;
    row.detail = "the build has kernels for none of them";
    row.consequence = kCpu;
    row.fix = kBuildForThese;
  } else {
    row.value =
        fmt::format("{}, driver for CUDA {}", served, cuda_version_text(facts.driver_version));
  }
  return row;
}

// NCCL writes 22705 for 2.27.5, and 2804 for 2.8.4 before 2.9.
std::string nccl_version(int code) {
  const int major = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / major, code % major / 100, code % 100);
}

Row library_row(const char* name, const char* finding, const char* library,
                const LibraryTrial& trial, std::string (*version)(int)) {
  Row row{.name = name, .value = "not found"};
  row.findings = {{finding, trial.loads ? 1u : 0u}};
  row.values = {{"library", library}, {"loads", trial.loads}, {"version_code", trial.version}};
  if (trial.loads) row.value = trial.version > 0 ? version(trial.version) : "loads";
  if (!trial.error.empty()) row.detail = trial.error;
  return row;
}
}  // namespace

std::vector<Row> cuda_rows(const CudaFacts& facts, const GpuFacts& plugged) {
  std::vector<Row> rows{build_row(facts), usable_row(facts, plugged)};
  for (const CudaGpu& gpu : facts.gpus) rows.push_back(cuda_gpu_row(gpu));
  return rows;
}

Section gpu_section(const std::string& root) {
  const GpuFacts plugged = gpu_facts(root);
  const LibraryTrial driver = try_library("libcuda.so.1", "cuDriverGetVersion");
  const LibraryTrial nccl = try_library("libnccl.so.2", "ncclGetVersion");
  Section section{.title = "GPUs (not needed)", .path = "", .rows = {}};
  std::vector<Row>& rows = section.rows;
  rows = {gpus_row(plugged),
          library_row("CUDA driver", "cuda", "libcuda.so.1", driver, cuda_version_text)};
  if (driver.harmful) {
    rows.push_back({.name = "usable GPUs",
                    .value = "not tried",
                    .mark = Mark::kUnknown,
                    .detail = "the CUDA driver does not stand being loaded",
                    .findings = {{"gpu", std::nullopt}}});
  } else {
    for (Row& row : cuda_rows(cuda_facts(CudaLook::kWithoutContext), plugged))
      rows.push_back(std::move(row));
  }
  rows.push_back(library_row("NCCL", "nccl", "libnccl.so.2", nccl, nccl_version));
  return section;
}
}  // namespace headrace::tools
