// SPDX-License-Identifier: Apache-2.0
// process_limits.hpp: what the kernel lets this process do: limits, policies, where it is confined.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::tools {
// What could not be read is empty.
struct ProcessLimits {
  std::optional<std::uint64_t> seccomp;             // 0 none, 1 strict, 2 a filter
  std::optional<bool> may_lock_all;                 // CAP_IPC_LOCK: locked memory is not counted
  std::optional<std::uint64_t> io_uring_disabled;   // kernel.io_uring_disabled: 0, 1, 2
  std::optional<std::uint64_t> aio_max, aio_taken;  // fs.aio-max-nr and fs.aio-nr, requests
};
// Reads /proc under `root`.
ProcessLimits process_limits(const std::string& root = "");

// "docker", "podman", "kubernetes", "lxc", "systemd-nspawn", ...; empty where nothing shows one,
// which a container may hide.
std::string container_kind(const std::string& root = "");

// A control group's limit on one disk. What it does not limit is empty.
struct IoCap {
  std::string number;  // of the disk, "259:0"
  std::string source;  // "cgroup io.max of /sys/fs/cgroup/job"
  std::optional<std::uint64_t> read_bytes, write_bytes, reads, writes;  // per second
};
// Of this process's own group and every ancestor, versions 1 and 2.
std::vector<IoCap> io_caps(const std::string& root = "");
}  // namespace headrace::tools
