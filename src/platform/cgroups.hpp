// SPDX-License-Identifier: Apache-2.0
// cgroups.hpp: finds the control groups of this process: its own and every visible ancestor.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace headrace::platform {
struct CgroupLevel {
  std::string folder;  // the folder with its files, without `root`: "/sys/fs/cgroup/job"
  int version = 2;     // 1 or 2
};

// The levels that limit `controller` ("memory", "cpu"), from this process's own group up to the
// mount point of its hierarchy. Reads /proc/self/cgroup and /proc/self/mountinfo under `root`. A
// machine with both versions mounted yields both; one without either yields none.
std::vector<CgroupLevel> cgroup_levels(std::string_view controller, const std::string& root);
}  // namespace headrace::platform
