// SPDX-License-Identifier: Apache-2.0
// memory_facts.hpp: the machine's memory and its huge pages.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace headrace::tools {
// A fact that could not be read is empty.
struct MemoryFacts {
  std::optional<std::uint64_t> total_bytes, available_bytes;
  // Of transparent huge pages the word in force: "always", "madvise", "never"; "defer+madvise".
  std::string huge_pages, huge_pages_defrag;
};
// `root` prefixes /proc and /sys: for tests.
MemoryFacts memory_facts(const std::string& root = "");
}  // namespace headrace::tools
