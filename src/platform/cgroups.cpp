// SPDX-License-Identifier: Apache-2.0
#include "platform/cgroups.hpp"

#include <algorithm>
#include <optional>

#include "platform/mounts.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
// `controller` empty: the version 2 hierarchy.
std::optional<Mount> find_hierarchy(const std::vector<Mount>& all, std::string_view controller) {
  const auto wanted = [&](const Mount& mount) {
    return controller.empty()
               ? mount.file_system == "cgroup2"
               : mount.file_system == "cgroup" && lists_word(mount.super_options, controller);
  };
  const auto found = std::ranges::find_if(all, wanted);
  return found == all.end() ? std::nullopt : std::optional(*found);
}

// The process's group in the hierarchy of `controller`, from /proc/self/cgroup
// ("4:cpu,cpuacct:/job", "0::/job").
std::optional<std::string> find_group(std::string_view cgroup, std::string_view controller) {
  for (const std::string_view line : split(cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool wanted =
        controller.empty() ? line.starts_with("0::") : lists_word(controllers, controller);
    if (wanted) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

// The group's path below the mount point; "" where the mount does not show it (another namespace),
// so that the mount point's own limits still count.
std::string path_below(const Mount& mount, std::string group) {
  if (group.find("..") != std::string::npos) return "";
  if (mount.shown != "/") {
    const bool below = group == mount.shown || group.starts_with(mount.shown + "/");
    if (!below) return "";
    group.erase(0, mount.shown.size());
  }
  while (!group.empty() && group.back() == '/') group.pop_back();
  return group;
}

void add_levels(std::vector<CgroupLevel>& levels, int version, const std::string& cgroup,
                const std::vector<Mount>& all, std::string_view controller) {
  const auto group = find_group(cgroup, controller);
  const auto mount = find_hierarchy(all, controller);
  if (!group || !mount) return;
  std::string below = path_below(*mount, *group);
  const std::string top = mount->point == "/" ? "" : mount->point;
  for (;;) {
    levels.push_back({top + below, version});
    if (below.empty()) return;
    below.erase(below.rfind('/'));
  }
}
}  // namespace

std::vector<CgroupLevel> cgroup_levels(std::string_view controller, const std::string& root) {
  const std::string cgroup = read_text(root + "/proc/self/cgroup").value_or("");
  const std::vector<Mount> all = mounts(root);
  std::vector<CgroupLevel> levels;
  add_levels(levels, 2, cgroup, all, "");
  add_levels(levels, 1, cgroup, all, controller);
  return levels;
}
}  // namespace headrace::platform
