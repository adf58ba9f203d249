// SPDX-License-Identifier: Apache-2.0
// process_limits.hpp: the kernel's limits on this process: locked memory, and the rates of its
// disks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::tools {
// CAP_IPC_LOCK: locked memory is not counted. Nothing where that cannot be read.
std::optional<bool> may_lock_all(const std::string& root = "");

// A control group's limit on one disk. What it does not limit is empty.
struct IoCap {
  std::string number;  // of the disk, "259:0"
  std::string source;  // "cgroup io.max of /sys/fs/cgroup/job"
  std::optional<std::uint64_t> read_bytes, write_bytes, reads, writes;  // per second
};
// Of this process's own group and every ancestor.
std::vector<IoCap> io_caps(const std::string& root = "");
}  // namespace headrace::tools
