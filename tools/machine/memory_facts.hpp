// SPDX-License-Identifier: Apache-2.0
// memory_facts.hpp: the machine's memory, its huge pages and NUMA nodes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::tools {
// Huge pages that were set aside at one size.
struct HugePagePool {
  std::uint64_t page_bytes = 0, pages = 0, free_pages = 0;
};

struct NumaNode {
  std::uint32_t number = 0;
  std::string cpus;  // "0-15,32-47"; empty: a node of memory alone
  std::uint64_t memory_bytes = 0;
};

// What could not be read is empty.
struct MemoryFacts {
  std::optional<std::uint64_t> total_bytes, available_bytes, swap_bytes, swap_free_bytes;
  // Of transparent huge pages the word in force: "always", "madvise", "never"; "defer+madvise".
  std::string huge_pages, huge_pages_defrag;
  std::vector<HugePagePool> pools;  // of the sizes the machine has
  std::vector<NumaNode> nodes;      // by number
};
// `root` prefixes /proc and /sys: for tests.
MemoryFacts memory_facts(const std::string& root = "");

}  // namespace headrace::tools
