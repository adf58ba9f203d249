// SPDX-License-Identifier: Apache-2.0
// cpu_facts.hpp: the name and features of this processor.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::tools {
// A fact that could not be read is empty or 0.
struct CpuFacts {
  std::string vendor = {}, model = {};  // "AuthenticAMD"; "AMD EPYC 9654 96-Core Processor"
  std::uint32_t threads = 0;
  std::vector<std::string> flags = {};  // as /proc/cpuinfo names them: "avx2", "avx512bw"
  bool has(const std::string& flag) const;
};
// Reads /proc/cpuinfo. `root` prefixes it: for tests.
CpuFacts cpu_facts(const std::string& root = "");
}  // namespace headrace::tools
