// SPDX-License-Identifier: Apache-2.0
#include "machine/cpu_facts.hpp"

#include <algorithm>
#include <utility>

#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::read_text;
using platform::split;
using platform::trimmed;

namespace {
// "model name	: AMD EPYC": the two sides of the colon.
std::pair<std::string_view, std::string_view> cpuinfo_line(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {};
  return {trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1))};
}
}  // namespace

bool CpuFacts::has(const std::string& flag) const {
  return std::ranges::find(flags, flag) != flags.end();
}

CpuFacts cpu_facts(const std::string& root) {
  CpuFacts facts;
  const std::string text = read_text(root + "/proc/cpuinfo").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    const auto [name, value] = cpuinfo_line(line);
    if (name == "processor") ++facts.threads;
    if (name == "vendor_id") facts.vendor = value;
    if (name == "model name" && facts.model.empty()) facts.model = value;
    if (name != "flags" || !facts.flags.empty()) continue;
    for (const std::string_view flag : split(value, ' ')) facts.flags.emplace_back(flag);
  }
  return facts;
}
}  // namespace headrace::tools
