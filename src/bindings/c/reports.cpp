// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/reports.hpp"

#include <nlohmann/json.hpp>

namespace headrace::bindings {
namespace {
using nlohmann::ordered_json;

std::string text_of(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json to_object(const DriveReport& drive) {
  return {{"path", drive.path},
          {"bytes", drive.bytes},
          {"share", drive.share},
          {"read_bytes_per_second", drive.read_bytes_per_second},
          {"write_bytes_per_second", drive.write_bytes_per_second}};
}

ordered_json to_object(const CollectiveCalls& calls) {
  return {{"calls", calls.calls},
          {"sent_bytes", calls.sent_bytes},
          {"seconds", calls.seconds},
          {"sent_to_other_nodes_bytes", calls.sent_to_other_nodes_bytes}};
}

ordered_json to_array(const std::vector<DriveStats>& drives) {
  ordered_json array = ordered_json::array();
  for (const DriveStats& drive : drives) {
    ordered_json one = to_object(drive.plan);
    one["nvme_read_bytes"] = drive.read_bytes;
    one["nvme_written_bytes"] = drive.written_bytes;
    one["nvme_read_busy_seconds"] = drive.read_busy_seconds;
    one["nvme_write_busy_seconds"] = drive.write_busy_seconds;
    array.push_back(std::move(one));
  }
  return array;
}

ordered_json to_array(const std::vector<GroupWait>& waits) {
  ordered_json array = ordered_json::array();
  for (const GroupWait& wait : waits) {
    array.push_back({{"group", wait.group},
                     {"seconds", wait.seconds},
                     {"update_seconds", wait.update_seconds}});
  }
  return array;
}
}  // namespace

std::string to_json(const PlanReport& plan) {
  ordered_json drives = ordered_json::array();
  for (const DriveReport& drive : plan.drives) drives.push_back(to_object(drive));
  ordered_json rows = ordered_json::array();
  for (const PlanRow& row : plan.rows) {
    rows.push_back({{"what", row.what}, {"tier", row.tier}, {"bytes", row.bytes}});
  }
  return text_of({{"schema_version", 1},
                  {"rows", std::move(rows)},
                  {"host_bytes", plan.host_bytes},
                  {"device_bytes", plan.device_bytes},
                  {"nvme_bytes", plan.nvme_bytes},
                  {"save_bytes", plan.save_bytes},
                  {"load_bytes", plan.load_bytes},
                  {"trainer_bytes", plan.trainer_bytes},
                  {"host_budget_bytes", plan.host_budget_bytes},
                  {"smallest_host_bytes", plan.smallest_host_bytes},
                  {"parameters", plan.parameters},
                  {"gather_slots", plan.gather_slots},
                  {"resident_share_of_state", plan.resident_share_of_state},
                  {"resident_share_of_parameters", plan.resident_share_of_parameters},
                  {"nvme_read_bytes_per_step", plan.nvme_read_bytes_per_step},
                  {"nvme_written_bytes_per_step", plan.nvme_written_bytes_per_step},
                  {"sent_bytes_per_step", plan.sent_bytes_per_step},
                  {"sent_to_other_nodes_bytes_per_step", plan.sent_to_other_nodes_bytes_per_step},
                  {"host_left_bytes", plan.host_left_bytes},
                  {"host_left_source", plan.host_left_source},
                  {"drives", std::move(drives)}});
}

// Of several ranks.
ordered_json ranks_of(const Stats& stats) {
  return ordered_json(
      {{"collective_calls", stats.collective_calls},
       {"collective_sent_bytes", stats.collective_sent_bytes},
       {"collective_sent_to_other_nodes_bytes", stats.collective_sent_to_other_nodes_bytes},
       {"collective_seconds", stats.collective_seconds},
       {"all_gathers", to_object(stats.all_gathers)},
       {"all_to_alls", to_object(stats.all_to_alls)},
       {"exchanges", to_object(stats.exchanges)},
       {"rank_meetings", stats.rank_meetings},
       {"gathers_joined_ahead", stats.gathers_joined_ahead},
       {"steps_followed", stats.steps_followed},
       {"rank_departures", stats.rank_departures},
       {"gather_wait_ranks_seconds", stats.gather_wait_ranks_seconds},
       {"gradient_wait_ranks_seconds", stats.gradient_wait_ranks_seconds},
       {"step_wait_ranks_seconds", stats.step_wait_ranks_seconds},
       {"others_wait_ranks_seconds", stats.others_wait_ranks_seconds}});
}

std::string to_json(const Stats& stats) {
  ordered_json all = {{"schema_version", 1},
                      {"nvme_read_bytes", stats.nvme_read_bytes},
                      {"nvme_written_bytes", stats.nvme_written_bytes},
                      {"nvme_reads", stats.nvme_reads},
                      {"nvme_writes", stats.nvme_writes},
                      {"nvme_retries", stats.nvme_retries},
                      {"nvme_read_busy_seconds", stats.nvme_read_busy_seconds},
                      {"nvme_write_busy_seconds", stats.nvme_write_busy_seconds},
                      {"copied_to_device_bytes", stats.copied_to_device_bytes},
                      {"update_compute_seconds", stats.update_compute_seconds},
                      {"update_wall_seconds", stats.update_wall_seconds},
                      {"steps_updated_on_device", stats.steps_updated_on_device},
                      {"steps_skipped", stats.steps_skipped},
                      {"gathers", stats.gathers},
                      {"gathers_in_place", stats.gathers_in_place},
                      {"gathers_prefetched", stats.gathers_prefetched},
                      {"gathers_on_demand", stats.gathers_on_demand},
                      {"gather_wait_seconds", stats.gather_wait_seconds},
                      {"gather_wait_update_seconds", stats.gather_wait_update_seconds},
                      {"waits", to_array(stats.waits)},
                      {"engine_bytes", stats.engine_bytes},
                      {"io_queue", stats.io_queue},
                      {"io_queue_reason", stats.io_queue_reason},
                      {"io_queue_details", stats.io_queue_details},
                      {"direct_io", stats.direct_io},
                      {"drives", to_array(stats.drives)},
                      {"update_threads", stats.update_threads},
                      {"update_threads_source", stats.update_threads_source}};
  all.update(ranks_of(stats));
  return text_of(all);
}
}  // namespace headrace::bindings
