// SPDX-License-Identifier: Apache-2.0
// headrace/stats.hpp: the engine's counts of bytes, requests and seconds, and its plan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {
// One path of headrace.nvme_paths, and what is stored there.
struct DriveReport {
  std::string path;
  std::uint64_t bytes = 0;  // stored there, without the spare extent
  double share = 0;         // of the bytes on all drives
  // Speeds as freeze() measured them, on all drives at the same time. 0: not measured (there is
  // only one drive, shares were given, or there is little to swap), or the drive failed.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
};

// Traffic to and from one drive.
struct DriveStats {
  DriveReport plan;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  double read_busy_seconds = 0;  // time with at least one read in flight
  double write_busy_seconds = 0;
};

// How long trainer threads waited before a group could be used.
struct GroupWait {
  std::string group;
  double seconds = 0;
  // The part of `seconds` spent on the group's deferred update; the rest was for reads and copies.
  double update_seconds = 0;
};

// Calls of one kind that an engine made on its Collective: their number, the bytes that they sent
// to the other ranks, and the time that they took on the calling threads.
struct CollectiveCalls {
  std::uint64_t calls = 0;
  std::uint64_t sent_bytes = 0;
  double seconds = 0;
  // Of sent_bytes, those to the ranks of other nodes, with zero_hpz_partition_size or
  // hierarchical_reduce_ranks; else 0.
  std::uint64_t sent_to_other_nodes_bytes = 0;
};

// Totals since freeze. For one step, subtract two snapshots, each taken after Engine::finish_step()
// if updates are deferred. Byte counts include only transfers that the I/O queues have completed.
struct Stats {
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_written_bytes = 0;
  std::uint64_t nvme_reads = 0;  // requests
  std::uint64_t nvme_writes = 0;
  // Requests repeated after a short transfer, EAGAIN or EINTR, or a failed extent.
  std::uint64_t nvme_retries = 0;
  double nvme_read_busy_seconds = 0;  // time with at least one read in flight, summed over drives
  double nvme_write_busy_seconds = 0;
  std::uint64_t copied_to_device_bytes = 0;
  double update_compute_seconds = 0;          // summed over update threads
  double update_wall_seconds = 0;             // time with at least one tile being updated
  std::uint64_t steps_updated_on_device = 0;  // Settings::update_on
  std::uint64_t steps_skipped = 0;            // because a gradient was not finite
  std::uint64_t gathers = 0;
  std::uint64_t gathers_in_place = 0;    // of resident bytes: no copy, no thread switch
  std::uint64_t gathers_prefetched = 0;  // the group was in a slot, or on its way there
  std::uint64_t gathers_on_demand = 0;
  double gather_wait_seconds = 0;         // time that trainer threads were blocked in gather
  double gather_wait_update_seconds = 0;  // the part of it spent on deferred updates
  // With several ranks, and including freeze(): all collective calls, and those of each kind. Their
  // time includes waits for other ranks and for the bytes. Over NCCL, the bytes are transferred
  // later, on the stream.
  std::uint64_t collective_calls = 0;
  std::uint64_t collective_sent_bytes = 0;
  std::uint64_t collective_sent_to_other_nodes_bytes = 0;  // CollectiveCalls says when
  double collective_seconds = 0;
  CollectiveCalls all_gathers;  // of weights
  CollectiveCalls all_to_alls;  // of gradients
  CollectiveCalls exchanges;    // of what the ranks tell each other
  // With several ranks (docs/ranks.md, "What overlaps with computation"): how often a trainer's
  // call met the other ranks; gathers that were joined before the trainer called them; steps whose
  // gathers and reductions all followed the order of a step before; and steps and passes in which
  // some rank left that order.
  std::uint64_t rank_meetings = 0;
  std::uint64_t gathers_joined_ahead = 0;
  std::uint64_t steps_followed = 0;
  std::uint64_t rank_departures = 0;
  // With several ranks: the time that trainer threads were blocked because of other ranks or the
  // bytes between them, by the call that they made. Calls that a rank makes ahead of its trainer
  // count in collective_seconds, and here only as far as the trainer waits for them.
  double gather_wait_ranks_seconds = 0;    // not in gather_wait_seconds
  double gradient_wait_ranks_seconds = 0;  // add_gradient()
  double step_wait_ranks_seconds = 0;
  double others_wait_ranks_seconds = 0;  // calls that end the recorded order, such as a hash
  std::vector<GroupWait> waits;          // longest first; omits groups that nobody waited for
  // The memory that the engine holds now. The arena, device memory and coroutine frames count as
  // allocated; tables on the heap count with their sizes in the plan. The sum is within 2 % of the
  // memory that the allocator has handed out.
  std::uint64_t engine_bytes = 0;
  std::string io_queue;         // "uring", "aio" or "threads"; empty without NVMe
  std::string io_queue_reason;  // why no preferred queue is used; empty if one is
  // What the queue has registered, such as "registered buffers and files", and why it has not
  // registered the rest. Empty for queues that register nothing.
  std::string io_queue_details;
  bool direct_io = false;
  std::vector<DriveStats> drives;  // in the order of the paths; empty without NVMe
  // Threads that work on an update. If there are at least two, one of them is the trainer's thread,
  // which waits in step().
  std::uint32_t update_threads = 0;
  std::string update_threads_source;  // the limit or setting that determines their number
};

// One row of the memory plan.
struct PlanRow {
  std::string what;  // "gradients", "update slots", ...
  std::string tier;  // "device", "host", "nvme", or "host (yours)" for memory the trainer will hold
  std::uint64_t bytes = 0;
};

struct PlanReport {
  std::vector<PlanRow> rows;
  std::uint64_t host_bytes = 0;  // sum of "host" and, where memory is shared, "device"
  std::uint64_t device_bytes = 0;
  std::uint64_t nvme_bytes = 0;
  // Host memory that is taken beside host_bytes while save_checkpoint() or load_checkpoint() runs.
  std::uint64_t save_bytes = 0, load_bytes = 0;
  // "host (yours)": gradients the trainer holds before the engine takes them.
  std::uint64_t trainer_bytes = 0;
  std::uint64_t host_budget_bytes = 0;    // 0: none given
  std::uint64_t smallest_host_bytes = 0;  // of the smallest possible plan
  std::uint64_t parameters = 0;
  // Groups that can be gathered at a time, beside those that need no slot. Each of several ranks
  // has a number of its own.
  std::uint32_t gather_slots = 0;
  double resident_share_of_state = 0;  // the share of the optimizer state that stays in memory
  double resident_share_of_parameters = 0;
  bool deferred_updates = false;  // step() returns with updates pending (Settings::update_mode)
  // For a step of gradient_accumulation_steps forward and backward passes. Each pass uses every
  // group once.
  double nvme_read_bytes_per_step = 0;
  double nvme_written_bytes_per_step = 0;
  // Parameters and gradients that this rank sends to the others, the latter in the dtypes of the
  // former.
  double sent_bytes_per_step = 0;
  // Of these, what goes to the ranks of other nodes, with zero_hpz_partition_size or
  // hierarchical_reduce_ranks; else 0.
  double sent_to_other_nodes_bytes_per_step = 0;
  // The memory that was left for this process when the plan was made, and the limit that determined
  // it: a cgroup's (with its path), RLIMIT_AS or MemAvailable. 0: no limit could be read.
  std::uint64_t host_left_bytes = 0;
  std::string host_left_source;
  std::vector<DriveReport> drives;  // in the order of the paths; empty without NVMe
  std::string to_text() const;      // an aligned table
};
}  // namespace headrace
