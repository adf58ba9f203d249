// SPDX-License-Identifier: Apache-2.0
// Memory: how much is left, which limits hold, on which pages buffers will lie.
#include <fmt/core.h>
#include <sys/resource.h>

#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "machine/memory_facts.hpp"
#include "machine/process_limits.hpp"
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
  const bool exempt = may_lock_all(root).value_or(false);
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

}  // namespace

Section memory_section(const std::string& root) {
  const MemoryFacts memory = memory_facts(root);
  return {.title = "Memory",
          .path = "",
          .rows = {total_row(memory), left_row(root), huge_pages_row(memory), memlock_row(root)}};
}
}  // namespace headrace::tools
