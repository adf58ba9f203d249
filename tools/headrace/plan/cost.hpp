// SPDX-License-Identifier: Apache-2.0
// cost.hpp: predicts the seconds of a plan's step from the rates of a machine: pure arithmetic, no
// I/O.
//
// Forward and backward are played group by group: a lane each for the drives, the link to the
// device, the network and compute; a group is fetched when prefetch reaches it and a gather slot is
// free, and used when it is there. The update is a pipeline of tiles, bounded by the busiest of
// drives, update threads and slots; on the device also by the link and the host's memory, while the
// threads have only checksums. A lane with less to do never makes a step longer, so with a
// larger budget, whose plan moves a part of what the smaller one's does, no prediction rises.
//
// A commit of a durable engine writes what lives in memory beside the passes of the next step. That
// step's update waits for its end. With a store a larger budget moves no more bytes either, but may
// take longer: the update reads and writes less, the commit writes more.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "partition/partition.hpp"
#include "residency/plan.hpp"

namespace headrace::tools {
// One rank's share of a machine, in bytes, elements or operations per second. Where 0 is allowed,
// the work takes no time.
struct Rates {
  double nvme_read = 0, nvme_write = 0;  // summed over drives; 0 only where the plan has no NVMe
  double nvme_mixed = 0;      // both directions together, in equal parts; 0: one after the other
  double memory = 0;          // what the CPU reads and writes
  double update = 0;          // elements by all update threads
  double update_checked = 0;  // ... of tiles whose checksums are verified and computed; 0: `update`
  double verify = 0;          // bytes of gathered weights compared with their checksums
  double flops = 0;           // of the trainer, as it reaches them
  double backward_flops = 0;  // ... in backward; 0: `flops`
  double link = 0;            // host to device, each way; 0 where the device shares host memory
  double network = 0;         // into this rank from other machines
  double peers = 0;           // into this rank from the others of its machine
  double call = 0;            // seconds that a collective call takes without bytes
  double transport = 0;       // that a core carries into this rank; 0: no core does
  double flush = 0;           // seconds until the drives have kept what was written
};

// The trainer's work on one group and one micro-batch.
struct GroupWork {
  double forward_flops = 0, backward_flops = 0;
  double summed_bytes = 0;  // of activations, in each pass, over the ranks of tensor parallelism
  double saved_bytes = 0;   // of activations that wait for backward, if they are checkpointed
};

struct StepWork {
  std::vector<GroupWork> groups;
  double tokens = 0;  // of one micro-batch of this rank
  std::uint32_t micro_batches = 1;
  bool checkpointing = false;         // backward computes forward again
  bool saved_in_host_memory = false;  // what is saved for it crosses the link, both ways
  std::uint32_t prefetch_groups = 2;
  std::uint32_t ranks_ahead = 1;  // groups that the ranks join before they are used
  bool checksums = true;
  bool device_shares_host_memory = true;
  std::uint32_t update_threads = 1;   // that Rates::update is the speed of
  std::uint32_t machines = 1;         // that the ranks are spread over evenly
  std::uint32_t tensor_parallel = 1;  // ranks of a machine that compute a micro-batch together
};

// Copies go both ways at once.
enum class StepLane : std::uint8_t {
  kCompute,
  kNvmeRead,
  kNvmeWrite,
  kUpdate,
  kCopyToDevice,
  kCopyToHost,
  kNetwork
};
inline constexpr std::size_t kStepLanes = 7;
enum class Bound : std::uint8_t { kCompute, kNvme, kUpdate, kCopies, kNetwork, kMemory, kWaiting };

struct PhaseCost {
  double seconds = 0;
  double host_memory = 0;  // seconds that it is busy with an update on the device
  // Seconds; NVMe reads and writes add up to the drives' time.
  std::array<double, kStepLanes> busy{};
  double& of(StepLane lane) noexcept { return busy[static_cast<std::size_t>(lane)]; }
  double of(StepLane lane) const noexcept { return busy[static_cast<std::size_t>(lane)]; }
  double nvme_seconds() const noexcept;
  // The busiest lane; kWaiting where all are idle for more than half of the phase.
  Bound bound() const noexcept;
};

// One commit; all 0 without a store.
struct CommitCost {
  double written_bytes = 0;   // what lives in memory, and the commit records
  double seconds = 0;         // with the drives to itself
  double waited_seconds = 0;  // per step, on average: what the next step's passes do not hide
};

// A stretch of work of one lane.
struct Span {
  StepLane lane = StepLane::kCompute;
  std::uint32_t group = 0;
  double begin = 0, end = 0;  // seconds from the step's start
};

struct Prediction {
  PhaseCost forward, backward, update;  // of all micro-batches
  double hidden_seconds = 0;            // of forward or a deferred update, while the other went on
  CommitCost commit;
  double step_seconds = 0;
  bool updates_on_device = false;
  Bound bound = Bound::kCompute;  // of the phases that take the most of the step
  // Tokens per micro-batch from which on what may overlap is hidden behind compute: the reads of
  // forward and backward, and a deferred update. 0: nothing is moved.
  double free_tokens = 0;
  double nvme_read_bytes = 0, nvme_written_bytes = 0;  // per step
  double network_bytes = 0;  // per step, into this rank from other machines
  // Per step, what a rank sends to the others: on average, and the rank that sends most.
  double sent_bytes = 0, most_sent_bytes = 0;
  double sent_to_other_nodes = 0;  // of sent_bytes, with nodes
  std::vector<Span> spans;         // of the first micro-batch and the update, if asked for
};

// kSeconds: neither spans, nor the bytes that each of many ranks sends.
enum class Spans { kNone, kKeep, kSeconds };

// Where updates may be here or there, the faster of both. `plan` was made for `partition`;
// `work.groups` has one entry per group.
Prediction predict(const residency::Plan& plan, const partition::Partition& partition,
                   const StepWork& work, const Rates& rates, Spans spans = Spans::kNone);

// Seconds that drives take for so many bytes in both directions at once.
double nvme_seconds(const Rates& rates, double read_bytes, double written_bytes);

const char* name_of(StepLane lane) noexcept;  // "NVMe read"
const char* name_of(Bound bound) noexcept;    // "NVMe"
}  // namespace headrace::tools
