// SPDX-License-Identifier: Apache-2.0
#include "machine/process_limits.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <utility>

#include "platform/cgroups.hpp"
#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::cgroup_levels;
using platform::CgroupLevel;
using platform::named_number;
using platform::parse_number;
using platform::read_line;
using platform::read_number;
using platform::read_text;
using platform::split;
using platform::trimmed;

namespace {
constexpr unsigned kIpcLockBit = 14;  // CAP_IPC_LOCK

std::optional<bool> may_lock_all(const std::string& status) {
  for (const std::string_view line : split(status, '\n')) {
    if (!line.starts_with("CapEff:")) continue;
    const std::string_view digits = trimmed(line.substr(7));
    std::uint64_t set = 0;
    const auto end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, set, 16).ptr != end) return std::nullopt;
    return (set >> kIpcLockBit & 1) != 0;
  }
  return std::nullopt;
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// "259:0 rbps=1048576 wbps=max riops=max wiops=max"
void add_caps_v2(std::vector<IoCap>& caps, const std::string& text, const std::string& source) {
  for (const std::string_view line : split(text, '\n')) {
    const auto words = split(line, ' ');
    if (words.size() < 2) continue;
    IoCap cap{std::string(words[0]), source, {}, {}, {}, {}};
    const auto take = [](std::string_view word, std::string_view key, auto& to) {
      if (word.starts_with(key)) to = parse_number(word.substr(key.size()));
    };
    for (const std::string_view word : words) {
      take(word, "rbps=", cap.read_bytes);
      take(word, "wbps=", cap.write_bytes);
      take(word, "riops=", cap.reads);
      take(word, "wiops=", cap.writes);
    }
    caps.push_back(std::move(cap));
  }
}

// "259:0 1048576", a file per thing that is limited.
void add_caps_v1(std::vector<IoCap>& caps, const std::string& folder, const std::string& root) {
  constexpr std::array kFiles{std::pair{"read_bps_device", &IoCap::read_bytes},
                              std::pair{"write_bps_device", &IoCap::write_bytes},
                              std::pair{"read_iops_device", &IoCap::reads},
                              std::pair{"write_iops_device", &IoCap::writes}};
  for (const auto& [name, field] : kFiles) {
    const std::string file = std::string("blkio.throttle.") + name;
    const std::string text = read_text(root + folder + "/" + file).value_or("");
    for (const std::string_view line : split(text, '\n')) {
      const auto words = split(line, ' ');
      if (words.size() != 2) continue;
      IoCap cap{std::string(words[0]), "cgroup " + file + " of " + folder, {}, {}, {}, {}};
      cap.*field = parse_number(words[1]);
      caps.push_back(std::move(cap));
    }
  }
}
}  // namespace

ProcessLimits process_limits(const std::string& root) {
  ProcessLimits limits;
  const std::string status = read_text(root + "/proc/self/status").value_or("");
  limits.seccomp = named_number(status, "Seccomp");
  limits.may_lock_all = may_lock_all(status);
  limits.io_uring_disabled = read_number(root + "/proc/sys/kernel/io_uring_disabled");
  limits.aio_max = read_number(root + "/proc/sys/fs/aio-max-nr");
  limits.aio_taken = read_number(root + "/proc/sys/fs/aio-nr");
  return limits;
}

std::string container_kind(const std::string& root) {
  if (file_exists(root + "/run/.containerenv")) return "podman";
  if (file_exists(root + "/var/run/secrets/kubernetes.io")) return "kubernetes";
  if (file_exists(root + "/.dockerenv")) return "docker";
  // systemd-nspawn, lxc and others leave their name there.
  if (const auto name = read_line(root + "/run/systemd/container")) return *name;
  const std::string groups = read_text(root + "/proc/self/cgroup").value_or("");
  constexpr std::array kNames{std::pair{"kubepods", "kubernetes"}, std::pair{"libpod", "podman"},
                              std::pair{"docker", "docker"}, std::pair{"lxc", "lxc"}};
  for (const auto& [part, kind] : kNames) {
    if (groups.find(part) != std::string::npos) return kind;
  }
  return "";
}

std::vector<IoCap> io_caps(const std::string& root) {
  std::vector<IoCap> caps;
  for (const CgroupLevel& level : cgroup_levels("blkio", root)) {
    if (level.version == 1) {
      add_caps_v1(caps, level.folder, root);
    } else {
      add_caps_v2(caps, read_text(root + level.folder + "/io.max").value_or(""),
                  "cgroup io.max of " + level.folder);
    }
  }
  return caps;
}
}  // namespace headrace::tools
