// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/units.hpp"
#include "headrace/stats.hpp"
#include "residency/plan.hpp"

namespace headrace {
namespace {
// "  /mnt/a: 66.7 % (2 GiB), read 3.21 GB/s, write 2.90 GB/s"
std::string drives_text(const std::vector<DriveReport>& drives) {
  std::string text;
  for (const DriveReport& drive : drives) {
    char share[32], speed[96] = "";
    std::snprintf(share, sizeof share, "%.1f %%", 100 * drive.share);
    if (drive.read_bytes_per_second > 0) {
      std::snprintf(speed, sizeof speed, ", measured: read %.2f GB/s, write %.2f GB/s",
                    drive.read_bytes_per_second * 1e-9, drive.write_bytes_per_second * 1e-9);
    }
    text += "  " + drive.path + ": " + share + " (" + base::format_bytes(drive.bytes) + ")" +
            speed + "\n";
  }
  return text;
}
}  // namespace

std::string PlanReport::to_text() const {
  std::string text;
  char line[160];
  const auto add = [&](const char* what, const char* tier, std::uint64_t bytes) {
    std::snprintf(line, sizeof line, "  %-34s %-13s %12s %18llu\n", what, tier,
                  base::format_bytes(bytes).c_str(), static_cast<unsigned long long>(bytes));
    text += line;
  };
  std::snprintf(line, sizeof line, "  %-34s %-13s %12s %18s\n", "what", "tier", "size", "bytes");
  text += line;
  for (const PlanRow& row : rows) add(row.what.c_str(), row.tier.c_str(), row.bytes);
  add("sum", "host", host_bytes);
  if (device_bytes != 0) add("sum", "device", device_bytes);
  if (nvme_bytes != 0) add("sum", "nvme", nvme_bytes);
  if (save_bytes != 0) add("more, during save_checkpoint()", "host", save_bytes);
  if (load_bytes != 0) add("more, during load_checkpoint()", "host", load_bytes);
  if (drives.size() > 1) text += drives_text(drives);
  return text;
}
}  // namespace headrace

namespace headrace::residency {
std::string summary(const Plan& plan) {
  const PlanReport& report = plan.report;
  const auto percent = [](double share) {
    char text[16];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
    return std::string(text);
  };
  const auto slots = [](std::uint32_t count, const char* kind, std::uint64_t bytes) {
    if (count == 0) return std::string();
    return std::string("; ") + kind + " slots " + std::to_string(count) + " x " +
           base::format_bytes(bytes);
  };
  std::string text = "plan: " + std::to_string(report.parameters) + " parameters; host " +
                     base::format_bytes(report.host_bytes);
  if (report.host_budget_bytes != 0)
    text += " of " + base::format_bytes(report.host_budget_bytes) + " budget";
  if (report.host_left_bytes != 0) {
    text += ", " + base::format_bytes(report.host_left_bytes) + " left (" +
            report.host_left_source + ")";
  }
  if (report.device_bytes != 0) text += ", device " + base::format_bytes(report.device_bytes);
  if (report.nvme_bytes != 0) text += ", nvme " + base::format_bytes(report.nvme_bytes);
  text += "; in memory " + percent(report.resident_share_of_parameters) + " of parameters, " +
          percent(report.resident_share_of_state) + " of optimizer state";
  return text + slots(plan.gather_slots, "gather", plan.gather_slot_bytes) +
         slots(plan.update_slots, "update", plan.update_slot_bytes) +
         (plan.deferred ? "; updates deferred" : "");
}

std::string what_changes_results(const Plan& plan) {
  const partition::Wire& wire = plan.wire;
  if (!wire.packed_parameters && !wire.packed_gradients && plan.reduce_ranks == 0) return "";
  std::string text;
  if (wire.packed_parameters || wire.packed_gradients) {
    text = std::string("results are not exact: ranks send ") +
           (wire.packed_parameters ? "parameters in 8 bits" : "") +
           (wire.packed_parameters && wire.packed_gradients ? " and " : "") +
           (wire.packed_gradients ? "gradients in 4 bits" : "") +
           "; they are the same for any number of ranks but one";
  }
  if (plan.reduce_ranks == 0) return text;
  return text + (text.empty() ? "" : ". Also, ") + "gradients are summed in nodes of " +
         std::to_string(plan.reduce_ranks) +
         " ranks first: results are the same for any number of such nodes, and differ in their "
         "last bits from those of other nodes and of one rank";
}
}  // namespace headrace::residency
