// SPDX-License-Identifier: Apache-2.0
// machine.hpp: the machine and the build of a result, and the facts that make either unfit for
// measuring.
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
// The last of these for a load of the machine; empty if it has a CPU for all of it.
std::string load_doubt(double load, std::uint64_t cpus);

// User and system time of this process so far.
double cpu_seconds();
}  // namespace headrace::tools
