// SPDX-License-Identifier: Apache-2.0
// The kernel, and limits that are neither memory nor CPU.
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <optional>

#include "base/units.hpp"
#include "doctor/rows.hpp"

namespace headrace::tools {
namespace {
std::optional<std::uint64_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : std::uint64_t{limit.rlim_cur};
}

Row kernel_row() {
  utsname name{};
  if (::uname(&name) != 0) return {.name = "kernel", .value = "", .mark = Mark::kUnknown};
  return {.name = "kernel",
          .value = fmt::format("{} {} {}", name.sysname, name.release, name.machine),
          .values = {{"release", name.release}, {"machine", name.machine}}};
}

Row open_files_row() {
  constexpr std::uint64_t kFew = 256;
  const auto limit = soft_limit(RLIMIT_NOFILE);
  Row row{.name = "open files", .value = "", .findings = {{"nofile", limit}}};
  if (!limit) {
    row.mark = Mark::kUnknown;
    return row;
  }
  row.value = *limit == kNoLimit ? "unlimited" : std::to_string(*limit);
  row.values["limit"] = *limit == kNoLimit ? Json() : Json(*limit);
  if (*limit >= kFew) return row;
  row.mark = Mark::kNote;
  row.consequence = "a trainer with many data files may meet it; Headrace needs some ten";
  row.fix = "ulimit -n 1024";
  return row;
}

Row file_size_row() {
  const auto limit = soft_limit(RLIMIT_FSIZE);
  Row row{.name = "file size", .value = "unlimited"};
  if (!limit) {
    row = {.name = "file size", .value = "", .mark = Mark::kUnknown};
  } else if (*limit != kNoLimit) {
    row.mark = Mark::kGap;
    row.value = fmt::format("at most {}", base::format_bytes(*limit));
    row.consequence = "a run whose swap file is larger is refused";
    row.fix = "ulimit -f unlimited";
    row.values["limit_bytes"] = *limit;
  }
  return row;
}

}  // namespace

Section system_section() {
  return {.title = "System", .path = "", .rows = {kernel_row(), open_files_row(), file_size_row()}};
}
}  // namespace headrace::tools
