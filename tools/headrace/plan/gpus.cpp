// SPDX-License-Identifier: Apache-2.0
// gpus.cpp: a machine's GPUs as CUDA shows them, and as `headrace bench copy` measured them.
#include <fmt/core.h>

#include <algorithm>

#include "bench/json_fields.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"
#include "plan/machines.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kOption = "--copy-json";

// Of the largest pinned copies, both ways at once: bytes per second each way.
double rate_each_way(const JsonFields& report) {
  std::uint64_t largest = 0;
  double rate = 0;
  for (const JsonFields& row : report.elements("rows")) {
    if (row.text("kind") != "copies" || row.text("way") != "both" || row.text("memory") != "pinned")
      continue;
    if (row.whole("bytes") < largest) continue;
    largest = row.whole("bytes");
    rate = row.at("bytes_per_second").number("median") / 2;
  }
  if (!(rate >= 1e6 && rate <= 1e15)) report.refuse("has no rate of pinned copies both ways");
  return rate;
}

Json copy_document(const std::string& path, const JsonOrigin& origin) {
  try {
    return Json::parse(text_of_file(kOption, path));
  } catch (const Json::exception& error) {
    JsonFields({}, origin).refuse(std::string("is not JSON: ") + error.what());
  }
}
}  // namespace

void take_gpus_here(Machine& machine, std::uint32_t wanted) {
  const CudaFacts facts = cuda_facts();
  std::uint32_t usable = 0;
  std::uint64_t least_bytes = 0;
  std::string name;
  for (const CudaGpu& gpu : facts.gpus) {
    if (!gpu.served || usable == wanted) continue;
    least_bytes = usable == 0 ? gpu.memory_bytes : std::min(least_bytes, gpu.memory_bytes);
    if (usable++ == 0) name = gpu.name;
  }
  if (usable < wanted) {
    const std::string cause = facts.missing.substr(0, facts.missing.find(": "));
    throw Error(Code::kInvalidArgument,
                fmt::format("--gpus {}, and this machine has {} that can be used{}; nothing was "
                            "planned. Give fewer, or another --machine.",
                            wanted, usable, facts.missing.empty() ? "" : ": " + cause));
  }
  machine.gpus = usable;
  machine.gpu_memory_bytes = least_bytes;
  machine.source += "; " + name;
}

void take_copy_report(Machine& machine, const std::string& path) {
  const JsonOrigin origin{.name = fmt::format("{} '{}'", kOption, path),
                          .consequence = "nothing was planned",
                          .fix = "Give what headrace bench copy wrote with --json"};
  const Json json = copy_document(path, origin);
  const JsonFields report(json, origin);
  if (report.text("program") != "headrace bench copy") report.refuse("is no report of bench copy");
  if (json.contains("error") && !json.contains("rows")) report.refuse("is of a run that failed");
  machine.link = {rate_each_way(report), "measured: " + path + ", both ways at once"};
  machine.gpu_memory_bytes = report.at("gpu").whole("memory_bytes");
  machine.gpus = std::max(machine.gpus, 1u);
  machine.source += "; " + report.at("gpu").text("name");
}
}  // namespace headrace::tools
