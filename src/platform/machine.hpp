// SPDX-License-Identifier: Apache-2.0
// machine.hpp: the CPUs and memory of this machine that the process may use, and the limit that
// determines each.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::platform {
struct Limit {
  std::uint64_t value = 0;
  std::string source;  // "cgroup memory.max of /sys/fs/cgroup/job", "MemAvailable in
                       // /proc/meminfo", "CPU affinity", ...
  std::string place;   // for memory: processes of a machine with the same place share it
};

// Equal for all processes of a running machine, including its containers, and for no others.
std::string machine_identity(const std::string& root = "");
// Names the CPUs that this process may run on, and its control group if that has a quota. Processes
// of a machine with the same identity share them.
std::string cpu_identity(const std::string& root = "");

// A memory limit that a control group of this process or an ancestor sets.
struct MemoryCap {
  std::string folder, file;  // "/sys/fs/cgroup/job", "memory.max"
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;  // without clean file cache, which the kernel can reclaim
};
// Starts with this process's own group; leaves out groups without a limit.
std::vector<MemoryCap> memory_caps(const std::string& root = "");

// The source of memory_left() that limits what is mapped, not what is used.
inline constexpr const char* kAddressSpace = "limit on address space (ulimit -v)";
// The least of three amounts: what the cgroup (v1 or v2, this one and every ancestor: max and high)
// leaves beyond its current use, what RLIMIT_AS leaves beyond what is mapped, and MemAvailable.
// Leaves out amounts that it cannot read. `root`, for tests, prefixes all paths.
Limit memory_left(const std::string& root = "");

// The least of three counts, at least 1: CPU affinity and cgroup CPU quota (v1, v2, all ancestors;
// rounded up), both divided by the `ranks` that share them, and SLURM_CPUS_PER_TASK, which is per
// rank. Throws kSettings if that variable is neither empty nor a number above 0.
Limit usable_cpus(std::uint32_t ranks = 1, const std::string& root = "");

// The CPUs that this process may run on, per NUMA node that has any of them. At most one list if
// there is no choice.
std::vector<std::vector<int>> usable_cpus_by_node(const std::string& root = "");

// "6.1.0-18-amd64"; empty if the kernel does not say.
std::string kernel_release();

// The resident set of this process and its high-water mark, in bytes (VmRSS, VmHWM of
// /proc/self/status); 0 if unreadable.
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();
}  // namespace headrace::platform
