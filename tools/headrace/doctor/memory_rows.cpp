// SPDX-License-Identifier: Apache-2.0
// Memory: how much is left, which limits hold, on which pages buffers will lie.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "machine/memory_facts.hpp"
#include "machine/process_limits.hpp"
#include "platform/cgroups.hpp"
#include "platform/machine.hpp"

namespace headrace::tools {
namespace {
using base::format_bytes;

Row total_row(const MemoryFacts& memory) {
  Row row{.name = "memory", .value = ""};
  if (!memory.total_bytes) {
    row.mark = Mark::kUnknown;
    return row;
  }
  row.value = format_bytes(*memory.total_bytes);
  row.values = {{"total_bytes", *memory.total_bytes},
                {"available_bytes", or_null(memory.available_bytes)}};
  return row;
}

Row left_row(const std::string& root) {
  constexpr std::uint64_t kLittle = base::kGiB;
  const platform::Limit left = platform::memory_left(root);
  Row row{.name = "usable memory",
          .value = fmt::format("{} ({})", format_bytes(left.value), left.source)};
  row.values = {{"bytes", left.value}, {"source", left.source}};
  row.findings = {{"memory", left.value}};
  // Gradients of bf16 parameters stay in host memory: 2 bytes each, 4 where they are summed.
  row.detail =
      fmt::format("gradients stay there: at 2 bytes each those of {} bf16 parameters would fill it",
                  count_text(static_cast<double>(left.value) / 2));
  if (left.value >= kLittle) return row;
  row.mark = Mark::kNote;
  row.consequence = "only small models can be trained";
  row.fix = left.source.starts_with("cgroup") ? "a higher memory limit of the container or job"
                                              : "end what holds the memory (ps aux --sort -rss)";
  return row;
}

Row caps_row(const std::string& root) {
  const auto caps = platform::memory_caps(root);
  if (caps.empty() && platform::cgroup_levels("memory", root).empty()) {
    return {.name = "cgroup limits",
            .value = "",
            .mark = Mark::kUnknown,
            .detail = "no control group for memory is to be seen"};
  }
  Row row{.name = "cgroup limits", .value = caps.empty() ? "none" : ""};
  row.values["limits"] = Json::array();
  for (const platform::MemoryCap& cap : caps) {
    row.value += fmt::format("{}{} of {}", row.value.empty() ? "" : "; ",
                             format_bytes(cap.used_bytes), format_bytes(cap.limit_bytes));
    row.detail += fmt::format("{}{}/{}", row.detail.empty() ? "" : "; ", cap.folder, cap.file);
    row.values["limits"].push_back({{"folder", cap.folder},
                                    {"file", cap.file},
                                    {"limit_bytes", cap.limit_bytes},
                                    {"used_bytes", cap.used_bytes}});
  }
  return row;
}

Row huge_pages_row(const MemoryFacts& memory) {
  Row row{.name = "huge pages", .value = memory.huge_pages};
  row.values = {{"transparent", memory.huge_pages}, {"defrag", memory.huge_pages_defrag}};
  if (memory.huge_pages.empty()) {
    row.mark = Mark::kUnknown;
    row.findings = {{"huge_pages", std::nullopt}};
    return row;
  }
  const bool to_be_had = memory.huge_pages != "never";
  row.findings = {{"huge_pages", to_be_had ? 1u : 0u}};
  if (!memory.huge_pages_defrag.empty())
    row.detail = fmt::format("defrag {}", memory.huge_pages_defrag);
  if (to_be_had) return row;
  row.mark = Mark::kNote;
  row.consequence =
      "I/O buffers lie on 4 KiB pages: up to half the bandwidth, several times the CPU time";
  row.fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
  return row;
}

Row pools_row(const MemoryFacts& memory) {
  Row row{.name = "hugetlb", .value = ""};
  row.values["pools"] = Json::array();
  std::uint64_t idle = 0;
  for (const HugePagePool& pool : memory.pools) {
    row.values["pools"].push_back(
        {{"page_bytes", pool.page_bytes}, {"pages", pool.pages}, {"free_pages", pool.free_pages}});
    idle += pool.free_pages * pool.page_bytes;
    if (pool.pages == 0) continue;
    row.value += fmt::format("{}{} of {}, {} free", row.value.empty() ? "" : "; ", pool.pages,
                             format_bytes(pool.page_bytes), pool.free_pages);
  }
  if (memory.pools.empty()) row.mark = Mark::kUnknown;
  if (row.value.empty() && !memory.pools.empty()) row.value = "none set aside; none is needed";
  if (idle < base::kGiB) return row;
  row.mark = Mark::kNote;
  row.detail = fmt::format("{} are set aside and used by nobody", format_bytes(idle));
  row.consequence = "Headrace uses transparent huge pages, so it cannot use this memory";
  row.fix = "sudo sysctl vm.nr_hugepages=0, unless another program wants them";
  return row;
}

Row nodes_row(const MemoryFacts& memory) {
  Row row{.name = "NUMA", .value = ""};
  row.values["nodes"] = Json::array();
  for (const NumaNode& node : memory.nodes) {
    row.detail +=
        fmt::format("{}node {}: {}, CPUs {}", row.detail.empty() ? "" : "; ", node.number,
                    format_bytes(node.memory_bytes), node.cpus.empty() ? "none" : node.cpus);
    row.values["nodes"].push_back(
        {{"number", node.number}, {"memory_bytes", node.memory_bytes}, {"cpus", node.cpus}});
  }
  if (memory.nodes.empty()) {
    row.mark = Mark::kUnknown;
  } else {
    const std::size_t count = memory.nodes.size();
    row.value = fmt::format("{} node{}", count, count == 1 ? "" : "s");
    if (count == 1) row.detail.clear();
  }
  return row;
}

Row memlock_row(const std::string& root) {
  constexpr std::uint64_t kAmple = base::kGiB;
  constexpr std::uint64_t kRing = 64 * base::kKiB;  // a ring of its own may count
  Row row{.name = "memlock", .value = ""};
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    row.mark = Mark::kUnknown;
    row.findings = {{"memlock", std::nullopt}};
    return row;
  }
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  const bool exempt = process_limits(root).may_lock_all.value_or(false);
  row.value = unlimited ? "unlimited" : format_bytes(limit.rlim_cur);
  if (exempt && !unlimited) row.value += ", not counted for this user (CAP_IPC_LOCK)";
  row.values = {{"limit_bytes", unlimited ? Json() : Json(std::uint64_t{limit.rlim_cur})},
                {"exempt", exempt}};
  row.findings = {{"memlock", unlimited || exempt ? kNoLimit : std::uint64_t{limit.rlim_cur}}};
  if (unlimited || exempt || limit.rlim_cur >= kAmple) return row;
  row.mark = Mark::kNote;
  row.consequence = limit.rlim_cur < kRing
                        ? "io_uring may be refused (see its row), and registers no buffers"
                        : "io_uring works without registered buffers beyond that; it takes a "
                          "little more CPU time";
  row.fix = "ulimit -l unlimited; of a container: --ulimit memlock=-1";
  return row;
}

Row swap_row(const MemoryFacts& memory) {
  if (!memory.swap_bytes) return {.name = "kernel swap", .value = "", .mark = Mark::kUnknown};
  Row row{.name = "kernel swap", .value = "off"};
  row.values = {{"total_bytes", *memory.swap_bytes},
                {"free_bytes", or_null(memory.swap_free_bytes)}};
  if (*memory.swap_bytes == 0) return row;
  const std::uint64_t free = memory.swap_free_bytes.value_or(*memory.swap_bytes);
  row.value = fmt::format("{} of {} used", format_bytes(*memory.swap_bytes - free),
                          format_bytes(*memory.swap_bytes));
  return row;
}
}  // namespace

Section memory_section(const std::string& root) {
  const MemoryFacts memory = memory_facts(root);
  return {.title = "Memory",
          .path = "",
          .rows = {total_row(memory), left_row(root), caps_row(root), huge_pages_row(memory),
                   pools_row(memory), nodes_row(memory), memlock_row(root), swap_row(memory)}};
}
}  // namespace headrace::tools
