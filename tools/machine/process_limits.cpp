// SPDX-License-Identifier: Apache-2.0
#include "machine/process_limits.hpp"

#include <charconv>
#include <utility>

#include "platform/cgroups.hpp"
#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::parse_number;
using platform::read_text;
using platform::split;
using platform::trimmed;

namespace {
constexpr unsigned kIpcLockBit = 14;  // CAP_IPC_LOCK

// "259:0 rbps=1048576 wbps=max riops=max wiops=max"
void add_caps(std::vector<IoCap>& caps, const std::string& text, const std::string& source) {
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

// Version 1: a file for each of the four, with a line for each drive: "259:0 1048576"
void add_throttles(std::vector<IoCap>& caps, const std::string& folder, const std::string& root) {
  constexpr std::pair<const char*, std::optional<std::uint64_t> IoCap::*> kFiles[] = {
      {"read_bps", &IoCap::read_bytes},
      {"write_bps", &IoCap::write_bytes},
      {"read_iops", &IoCap::reads},
      {"write_iops", &IoCap::writes}};
  for (const auto& [name, cap_of] : kFiles) {
    const std::string file = "blkio.throttle." + std::string(name) + "_device";
    const std::string text = read_text(root + folder + "/" + file).value_or("");
    for (const std::string_view line : split(text, '\n')) {
      const auto words = split(line, ' ');
      if (words.size() != 2) continue;
      IoCap cap{std::string(words[0]), "cgroup " + file + " of " + folder, {}, {}, {}, {}};
      cap.*cap_of = parse_number(words[1]);
      caps.push_back(std::move(cap));
    }
  }
}

// Root of a user namespace has every capability in it, and none that the kernel asks for here.
bool has_own_user_namespace(const std::string& root) {
  const auto map = read_text(root + "/proc/self/uid_map");
  return map && !trimmed(*map).ends_with(" 4294967295");
}

}  // namespace

std::optional<bool> may_lock_all(const std::string& root) {
  const std::string status = read_text(root + "/proc/self/status").value_or("");
  for (const std::string_view line : split(status, '\n')) {
    if (!line.starts_with("CapEff:")) continue;
    const std::string_view digits = trimmed(line.substr(7));
    std::uint64_t set = 0;
    const auto end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, set, 16).ptr != end) return std::nullopt;
    return (set >> kIpcLockBit & 1) != 0 && !has_own_user_namespace(root);
  }
  return std::nullopt;
}

std::vector<IoCap> io_caps(const std::string& root) {
  std::vector<IoCap> caps;
  for (const platform::CgroupLevel& level : platform::cgroup_levels("blkio", root)) {
    if (level.version == 1) {
      add_throttles(caps, level.folder, root);
      continue;
    }
    add_caps(caps, read_text(root + level.folder + "/io.max").value_or(""),
             "cgroup io.max of " + level.folder);
  }
  return caps;
}
}  // namespace headrace::tools
