// SPDX-License-Identifier: Apache-2.0
// machine.hpp: what a result was measured on: the machine, the build, and what makes either unfit.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::tools {
// A line of a report: "memory", "31.3 GiB".
struct Fact {
  std::string name;
  std::string value;
};

std::vector<Fact> machine_facts();
std::vector<Fact> build_facts();
// One line each: assertions, sanitizers, a machine that is busy with something else.
std::vector<std::string> doubts();

// User and system time of this process so far.
double cpu_seconds();

// What this process holds now; 0 where the kernel does not say.
struct Held {
  std::uint64_t memory_bytes = 0;  // resident
  std::uint32_t open_files = 0;    // without the one that lists them
  std::uint32_t threads = 0;
};
Held held_now();
// The most of each.
Held most_of(const std::vector<Held>& all);
}  // namespace headrace::tools
