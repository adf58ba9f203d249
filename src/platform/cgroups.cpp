// SPDX-License-Identifier: Apache-2.0
#include "platform/cgroups.hpp"

#include <algorithm>
#include <optional>

#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
struct CgroupMount {
  std::string
      group;  // the group that the mount point shows: "/" unless bind-mounted or in a namespace
  std::string folder;  // the mount point
};

// mountinfo writes blanks and backslashes as \040 and so on.
std::string unescape_octal(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 3);
    if (text[i] == '\\' && digits.size() == 3 &&
        digits.find_first_not_of("01234567") == std::string_view::npos) {
      plain.push_back(
          static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0')));
      i += 3;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

bool lists(std::string_view comma_separated, std::string_view word) {
  const auto words = split(comma_separated, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// `controller` empty: the version 2 hierarchy.
std::optional<CgroupMount> find_mount(std::string_view mountinfo, std::string_view controller) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    // "36 35 0:30 GROUP FOLDER OPTIONS [FIELDS] - TYPE SOURCE SUPER_OPTIONS"
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto before = split(line.substr(0, dash), ' ');
    const auto after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.empty()) continue;
    const bool wanted = controller.empty() ? after[0] == "cgroup2"
                                           : after[0] == "cgroup" && after.size() >= 3 &&
                                                 lists(after[2], controller);
    if (wanted) return CgroupMount{unescape_octal(before[3]), unescape_octal(before[4])};
  }
  return std::nullopt;
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
        controller.empty() ? line.starts_with("0::") : lists(controllers, controller);
    if (wanted) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

// The group's path below the mount point; "" where the mount does not show it (another namespace),
// so that the mount point's own limits still count.
std::string path_below(const CgroupMount& mount, std::string group) {
  if (group.find("..") != std::string::npos) return "";
  if (mount.group != "/") {
    const bool below = group == mount.group || group.starts_with(mount.group + "/");
    if (!below) return "";
    group.erase(0, mount.group.size());
  }
  while (!group.empty() && group.back() == '/') group.pop_back();
  return group;
}

void add_levels(std::vector<CgroupLevel>& levels, int version, const std::string& cgroup,
                const std::string& mountinfo, std::string_view controller) {
  const auto group = find_group(cgroup, controller);
  const auto mount = find_mount(mountinfo, controller);
  if (!group || !mount) return;
  std::string below = path_below(*mount, *group);
  const std::string top = mount->folder == "/" ? "" : mount->folder;
  for (;;) {
    levels.push_back({top + below, version});
    if (below.empty()) return;
    below.erase(below.rfind('/'));
  }
}
}  // namespace

std::vector<CgroupLevel> cgroup_levels(std::string_view controller, const std::string& root) {
  const std::string cgroup = read_text(root + "/proc/self/cgroup").value_or("");
  const std::string mountinfo = read_text(root + "/proc/self/mountinfo").value_or("");
  std::vector<CgroupLevel> levels;
  add_levels(levels, 2, cgroup, mountinfo, "");
  add_levels(levels, 1, cgroup, mountinfo, controller);
  return levels;
}
}  // namespace headrace::platform
