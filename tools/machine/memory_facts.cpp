// SPDX-License-Identifier: Apache-2.0
#include "machine/memory_facts.hpp"

#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::bracketed;
using platform::named_number;
using platform::read_line;
using platform::read_text;

namespace {
constexpr std::uint64_t kKiB = 1024;  // every size in these files has that unit

std::optional<std::uint64_t> kib_line(const std::string& text, const char* name) {
  const auto kib = named_number(text, name);
  return kib ? std::optional(*kib * kKiB) : std::nullopt;
}
}  // namespace

MemoryFacts memory_facts(const std::string& root) {
  MemoryFacts facts;
  const std::string meminfo = read_text(root + "/proc/meminfo").value_or("");
  facts.total_bytes = kib_line(meminfo, "MemTotal");
  facts.available_bytes = kib_line(meminfo, "MemAvailable");
  const std::string transparent = root + "/sys/kernel/mm/transparent_hugepage/";
  facts.huge_pages = bracketed(read_line(transparent + "enabled").value_or(""));
  facts.huge_pages_defrag = bracketed(read_line(transparent + "defrag").value_or(""));
  return facts;
}
}  // namespace headrace::tools
