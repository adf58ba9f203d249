// SPDX-License-Identifier: Apache-2.0
#include "machine/memory_facts.hpp"

#include <algorithm>

#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::bracketed;
using platform::named_number;
using platform::names_in;
using platform::parse_number;
using platform::read_line;
using platform::read_number;
using platform::read_text;
using platform::split;

namespace {
constexpr std::uint64_t kKiB = 1024;  // every size in these files has that unit

std::optional<std::uint64_t> kib_line(const std::string& text, const char* name) {
  const auto kib = named_number(text, name);
  return kib ? std::optional(*kib * kKiB) : std::nullopt;
}

// What follows `prefix` up to a suffix of letters: "node1".
std::optional<std::uint64_t> number_in_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  return parse_number(name.substr(0, name.find_first_not_of("0123456789")));
}

// Its lines begin with "Node 0 ".
std::uint64_t node_bytes(const std::string& meminfo) {
  for (const std::string_view line : split(meminfo, '\n')) {
    const std::size_t at = line.find("MemTotal:");
    if (at != std::string_view::npos)
      return named_number(line.substr(at), "MemTotal").value_or(0) * kKiB;
  }
  return 0;
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<NumaNode> nodes;
  for (const std::string& name : names_in(folder)) {
    const auto number = number_in_name(name, "node");
    const auto meminfo = read_text(folder + "/" + name + "/meminfo");
    if (!number || !meminfo) continue;
    nodes.push_back({static_cast<std::uint32_t>(*number),
                     read_line(folder + "/" + name + "/cpulist").value_or(""),
                     node_bytes(*meminfo)});
  }
  std::ranges::sort(nodes, {}, &NumaNode::number);
  return nodes;
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
  facts.nodes = numa_nodes(root);
  return facts;
}
}  // namespace headrace::tools
