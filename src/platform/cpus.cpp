// SPDX-License-Identifier: Apache-2.0
// Which and how many CPUs this process may keep busy.
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "platform/cgroups.hpp"
#include "platform/machine.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
// In rising order; none when the kernel does not say. The set grows until the kernel's own fits:
// machines with more than 1024 CPUs exist.
std::vector<int> affinity_cpus() {
  std::vector<int> allowed;
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(cpus),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(cpus);
    if (::sched_getaffinity(0, size, set.get()) != 0) continue;
    for (int cpu = 0; cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) allowed.push_back(cpu);
    }
    break;
  }
  return allowed;
}

// Of "0-15,32": whether it names `cpu`.
bool names_cpu(std::string_view list, int cpu) {
  return std::ranges::any_of(split(list, ','), [&](std::string_view range) {
    const auto ends = split(range, '-');
    const auto first = ends.empty() ? std::nullopt : parse_number(ends.front());
    const auto last = ends.empty() ? std::nullopt : parse_number(ends.back());
    return first && last && *first <= static_cast<std::uint64_t>(cpu) &&
           static_cast<std::uint64_t>(cpu) <= *last;
  });
}

// Quota over period, rounded up: half a CPU still runs one thread.
std::optional<std::uint64_t> quota_cpus(std::optional<std::uint64_t> quota,
                                        std::optional<std::uint64_t> period) {
  if (!quota || !period || *period == 0) return std::nullopt;
  return std::max<std::uint64_t>(1, base::ceil_div(*quota, *period));
}

std::optional<std::uint64_t> read_quota(const std::string& folder, int version) {
  if (version == 2) {
    const auto text = read_text(folder + "/cpu.max");
    if (!text) return std::nullopt;
    const auto words = split(*text, ' ');
    if (words.size() < 2) return std::nullopt;
    return quota_cpus(parse_number(words[0]), parse_number(words[1]));
  }
  const auto quota = read_text(folder + "/cpu.cfs_quota_us");
  const auto period = read_text(folder + "/cpu.cfs_period_us");
  if (!quota || !period) return std::nullopt;
  return quota_cpus(parse_number(*quota), parse_number(*period));
}

void take_least(Limit& least, std::uint64_t value, const std::string& source) {
  if (least.source.empty() || value < least.value) least = {value, source, ""};
}
Limit undivided_cpus(const std::string& root) {
  Limit host;
  if (const auto cpus = affinity_cpus(); !cpus.empty())
    take_least(host, cpus.size(), "CPU affinity");
  for (const CgroupLevel& level : cgroup_levels("cpu", root)) {
    const auto cpus = read_quota(root + level.folder, level.version);
    const char* name = level.version == 2 ? "cpu.max" : "cpu.cfs_quota_us";
    if (cpus) take_least(host, *cpus, std::string("cgroup ") + name + " of " + level.folder);
  }
  return host.source.empty() ? Limit{1, "no CPU limit could be read", ""} : host;
}

// The CPUs of this task; nothing if Slurm does not say.
std::optional<std::uint64_t> slurm_cpus() {
  const char* const set = std::getenv("SLURM_CPUS_PER_TASK");
  std::string text = set == nullptr ? "" : set;
  if (text.empty()) return std::nullopt;
  const auto cpus = parse_number(text);
  if (cpus && *cpus > 0) return cpus;
  text.resize(std::min<std::size_t>(text.size(), 80));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  throw Error(Code::kSettings, "SLURM_CPUS_PER_TASK='" + text +
                                   "': it must be a number above 0; set it so, or unset it");
}
}  // namespace

std::string machine_identity(const std::string& root) {
  return read_text(root + "/proc/sys/kernel/random/boot_id").value_or("");
}

std::string cpu_identity(const std::string& root) {
  std::string text = undivided_cpus(root).source;
  for (const int cpu : affinity_cpus()) text += " " + std::to_string(cpu);
  return text;
}

Limit usable_cpus(std::uint32_t sharing, const std::string& root) {
  const Limit host = undivided_cpus(root);
  const std::uint64_t ranks = std::max<std::uint32_t>(1, sharing);
  Limit least{std::max<std::uint64_t>(1, host.value / ranks), host.source, ""};
  if (ranks > 1) least.source += ", shared by " + std::to_string(ranks) + " ranks";

  // A task is a rank: this one is not divided again.
  if (const auto cpus = slurm_cpus()) take_least(least, *cpus, "SLURM_CPUS_PER_TASK");
  return least;
}

std::vector<std::vector<int>> usable_cpus_by_node(const std::string& root) {
  const std::vector<int> allowed = affinity_cpus();
  const std::string folder = root + "/sys/devices/system/node/";
  std::map<std::uint64_t, std::string> lists;  // by the node's number: "0-15,32-47"
  for (const std::string& name : names_in(folder)) {
    const auto number = name.starts_with("node") ? parse_number(name.substr(4)) : std::nullopt;
    if (number) lists[*number] = read_line(folder + name + "/cpulist").value_or("");
  }
  std::vector<std::vector<int>> nodes;
  for (const auto& [number, list] : lists) {
    std::vector<int> cpus;
    std::ranges::copy_if(allowed, std::back_inserter(cpus),
                         [&](int cpu) { return names_cpu(list, cpu); });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  return nodes;
}
}  // namespace headrace::platform
