// SPDX-License-Identifier: Apache-2.0
// memory_facts.hpp: the machine's memory, its huge pages and NUMA nodes, and every limit on it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::platform {
struct NumaNode {
  std::uint32_t number = 0;
  std::string cpus;  // "0-15,32-47"; empty: a node of memory alone
  std::uint64_t memory_bytes = 0;
};

// What could not be read is empty.
struct MemoryFacts {
  std::optional<std::uint64_t> total_bytes, available_bytes;
  // Of transparent huge pages the word in force: "always", "madvise", "never"; "defer+madvise".
  std::string huge_pages, huge_pages_defrag;
  std::vector<NumaNode> nodes;  // by number
};
// `root` prefixes /proc and /sys: for tests.
MemoryFacts memory_facts(const std::string& root = "");

// A limit that a control group of this process or an ancestor sets.
struct MemoryCap {
  std::string folder, file;  // "/sys/fs/cgroup/job", "memory.max"
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;  // clean file cache left out: it is given back
};
// From this process's own group up; groups without a limit are left out.
std::vector<MemoryCap> memory_caps(const std::string& root = "");
}  // namespace headrace::platform
