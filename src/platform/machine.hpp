// SPDX-License-Identifier: Apache-2.0
// machine.hpp: how much of this machine the process may use: CPUs and memory, and which limit says
// so.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::platform {
struct Limit {
  std::uint64_t value = 0;
  std::string source;  // "cgroup memory.max of /sys/fs/cgroup/job", "MemAvailable in
                       // /proc/meminfo", "CPU affinity", ...
  std::string place;   // of memory: processes with the same one on a machine share it
};

// The same for all processes of a running machine, its containers too, and for no other.
std::string machine_identity(const std::string& root = "");
// The CPUs that this process may run on, and its control group where that has a quota: processes
// with the same one on a machine share them.
std::string cpu_identity(const std::string& root = "");

// A limit that a control group of this process or an ancestor sets.
struct MemoryCap {
  std::string folder, file;  // "/sys/fs/cgroup/job", "memory.max"
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;  // clean file cache left out: it is given back
};
// From this process's own group up; groups without a limit are left out.
std::vector<MemoryCap> memory_caps(const std::string& root = "");

// The least of: memory the cgroup (v1 or v2, this one and every ancestor: max and high) leaves
// beyond what it uses already, what RLIMIT_AS leaves beyond what is mapped, and MemAvailable. What
// cannot be read is left out. `root` prefixes all paths: for tests.
Limit memory_left(const std::string& root = "");

// The least of: CPU affinity and cgroup CPU quota (v1, v2, all ancestors; rounded up), both divided
// by the `ranks` that share them, and SLURM_CPUS_PER_TASK, which is per rank already; at least 1.
// Throws kSettings for a SLURM_CPUS_PER_TASK that is no number above 0; empty counts as not set.
Limit usable_cpus(std::uint32_t ranks = 1, const std::string& root = "");

// The CPUs that this process may run on, per NUMA node that has any of them. One list, or none,
// where there is nothing to choose.
std::vector<std::vector<int>> usable_cpus_by_node(const std::string& root = "");

// "6.1.0-18-amd64"; empty if the kernel does not say.
std::string kernel_release();

// Resident set and its high-water mark of this process, bytes (VmRSS, VmHWM of /proc/self/status);
// 0 if unreadable.
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();
}  // namespace headrace::platform
