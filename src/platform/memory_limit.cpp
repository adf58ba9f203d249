// SPDX-License-Identifier: Apache-2.0
// How much memory is left before a limit of the cgroup, of the process or of the machine is met.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "platform/cgroups.hpp"
#include "platform/machine.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
// Version 1 writes "no limit" as the largest multiple of the page size below 2^63, whatever that is
// here.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;

// The files of each version. The kernel drops a group's clean file cache before the limit hurts, so
// the cache does not count as used.
struct MemoryFiles {
  std::vector<const char*> limits;
  const char* usage;
  const char* cache;  // its line in memory.stat
};
const MemoryFiles& files_of(int version) {
  static const MemoryFiles kVersion1{
      {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"};
  static const MemoryFiles kVersion2{
      {"memory.max", "memory.high"}, "memory.current", "inactive_file"};
  return version == 1 ? kVersion1 : kVersion2;
}

std::uint64_t used_bytes(const std::string& folder, const MemoryFiles& files) {
  const std::uint64_t usage = read_number(folder + "/" + files.usage).value_or(0);
  const auto stat = read_text(folder + "/memory.stat");
  const std::uint64_t cache = stat ? named_number(*stat, files.cache).value_or(0) : 0;
  return usage - std::min(usage, cache);
}

void take_least(std::optional<Limit>& least, std::uint64_t value, const std::string& source) {
  if (!least || value < least->value) least = Limit{value, source, source};
}
}  // namespace

std::vector<MemoryCap> memory_caps(const std::string& root) {
  std::vector<MemoryCap> caps;
  for (const CgroupLevel& level : cgroup_levels("memory", root)) {
    const MemoryFiles& files = files_of(level.version);
    for (const char* name : files.limits) {
      const auto limit = read_number(root + level.folder + "/" + name);
      if (!limit || *limit >= kUnlimited) continue;
      caps.push_back({level.folder, name, *limit, used_bytes(root + level.folder, files)});
    }
  }
  return caps;
}

Limit memory_left(const std::string& root) {
  std::optional<Limit> least;
  for (const MemoryCap& cap : memory_caps(root)) {
    take_least(least, cap.limit_bytes - std::min(cap.limit_bytes, cap.used_bytes),
               "cgroup " + cap.file + " of " + cap.folder);
  }
  const auto meminfo = read_text(root + "/proc/meminfo");
  if (const auto available = meminfo ? named_number(*meminfo, "MemAvailable") : std::nullopt) {
    take_least(least, *available * 1024, "MemAvailable in /proc/meminfo");
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const auto status = read_text(root + "/proc/self/status");
    const std::uint64_t mapped =
        status ? named_number(*status, "VmSize").value_or(0) * 1024 : std::uint64_t{0};
    take_least(least, space.rlim_cur - std::min<std::uint64_t>(space.rlim_cur, mapped),
               kAddressSpace);
    if (least->source == kAddressSpace) least->place += std::to_string(::getpid());
  }
  if (least) return *least;
  const long pages = std::max(0L, ::sysconf(_SC_AVPHYS_PAGES));
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {static_cast<std::uint64_t>(pages) * page_bytes, "free pages (sysconf)", "memory"};
}
}  // namespace headrace::platform
