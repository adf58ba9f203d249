// SPDX-License-Identifier: Apache-2.0
// plan.hpp: decides where everything lives and how many bytes that takes. It moves and allocates
// nothing. It is a pure function, so the engine, a simulator and a command-line tool share it. The
// engine divides the arena exactly as `regions` says.
//
// The plan is static. On a periodic trace, keeping what fits is within 2 % of the optimum, where an
// LRU cache gains nothing. A host budget goes first to slots, then to parameters (each byte moves
// four times per step), then to optimizer state (twice). This order does not depend on the budget,
// so a larger one keeps all that a smaller one keeps, and never moves more bytes or takes longer.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "headrace/device.hpp"
#include "headrace/settings.hpp"
#include "headrace/stats.hpp"
#include "headrace/tier.hpp"
#include "optimizer_cpu/state_streams.hpp"
#include "partition/partition.hpp"

namespace headrace::residency {
struct GroupTraits {
  bool repeated_gradients = false;  // gradients are summed in f32
  bool keep_bound = false;          // on the device from freeze to close
  bool lends_gradients = false;     // they stay in the trainer's memory
  bool lends_weights = false;
  // Whether the plan has no choice but to leave its weights in memory.
  bool weights_stay() const noexcept { return keep_bound || lends_weights; }
};

// A path that the plan may store to.
struct DriveInputs {
  double weight = 1;  // its share of the bytes, in proportion; 0: it stores nothing
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  // for the report; 0: not measured
};

struct PlanInputs {
  const partition::Partition* partition = nullptr;
  std::vector<GroupTraits> groups;
  Settings settings;
  std::vector<DriveInputs> drives;  // one per nvme path; empty: all are equal and have room
  bool device_shares_host_memory = true;
  DeviceOverhead device_overhead;  // Device::overhead()
  // What the device has room for, as far as known; 0: unknown. A plan that needs more leaves out
  // the second bucket.
  std::uint64_t device_left_bytes = 0;
  std::uint64_t collective_bytes = 0;    // Collective::host_bytes()
  std::uint64_t bookkeeping_bytes = 0;   // the engine's tables on the heap, outside the arena
  std::uint64_t commit_bytes = 0;        // of a commit record, in whole pages; 0: not durable
  std::uint64_t registration_bytes = 0;  // in a store, in whole pages
  std::uint64_t machine_left_bytes = 0;  // what the machine leaves this process; 0: unknown
  std::string machine_limit_source;
  // smallest_host_bytes() of the same groups with another tile size, for advice; may be empty.
  std::function<std::uint64_t(std::uint64_t tile_elements)> smallest_with_tiles;
  bool durable() const noexcept { return commit_bytes != 0; }
};

// A byte range of the arena.
struct Range {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// Bytes of values in another form than they are stored in, while they are put together.
inline constexpr std::uint64_t kScratchBytes = 256 * base::kKiB;
// Bytes of a checkpoint on their way to its files.
inline constexpr std::uint64_t kSaveBufferBytes = 8 * base::kMiB;
// Of a checkpoint that is read, on their way to the tiles.
inline constexpr std::uint64_t kLoadBufferBytes = 26 * base::kMiB;

// Byte offsets of one tile's state streams.
struct RecordLayout {
  std::uint64_t header_bytes = 0;  // 0 for a record that stays in memory
  std::uint64_t stream_offset_bytes[optimizer_cpu::kMaxStateStreams] = {};
  std::uint64_t stream_bytes[optimizer_cpu::kMaxStateStreams] = {};
  std::uint32_t streams = 0;
  std::uint64_t size_bytes = 0;
};
RecordLayout record_layout(const optimizer_cpu::StateStreams& streams, std::uint64_t elements,
                           Tier tier);

// Each array of an update on the device begins at a multiple of this.
inline constexpr std::uint64_t kDeviceAlignment = 256;

struct SectionPlan {
  Tier weight = Tier::kHost;              // where this rank's shard is
  Range resident_weight;                  // if kHost, and not lent
  bool lends_weights = false;             // in host memory of the trainer
  std::uint64_t joined_offset_bytes = 0;  // position of its group's joined sections
  DType gradient_dtype = DType::kF32;
  Range gradient;    // this rank's shard
  Range node_shard;  // what it keeps for its node (Partition::node_shard), if Plan::node_ranks
};
struct TilePlan {
  Tier record = Tier::kHost;
  Range resident_record;  // if kHost
  RecordLayout layout;
  std::uint64_t weight_bytes = 0;
  std::uint32_t drive = 0;  // for the part on NVMe
  // Weight and record, wherever they are.
  std::uint64_t bytes() const noexcept { return weight_bytes + layout.size_bytes; }
};

struct Plan {
  std::vector<SectionPlan> sections;
  std::vector<TilePlan> tiles;
  bool deferred = false;             // step() returns with updates pending (Settings::update_mode)
  std::vector<bool> group_in_place;  // a gather returns the resident bytes
  std::vector<std::uint64_t>
      group_bytes;  // of its joined sections, each at a multiple of 4096 bytes
  std::uint32_t update_slots = 0;
  std::uint64_t update_slot_bytes = 0;
  Range update_slot_memory;
  // For groups that are not gathered in place. Either each of these has a slot of its own, in their
  // order, or any slot is for any of them.
  std::uint32_t gather_slots = 0;
  bool slot_per_group = false;
  std::uint64_t gather_slot_bytes = 0;                  // of the largest
  std::vector<std::uint64_t> gather_slot_offset_bytes;  // one per slot
  std::uint64_t gather_bytes = 0;                       // of all
  Range gather_slot_memory;                             // empty if they are in device memory
  // How several ranks send parameters and gradients to each other. Packed parameters of a section
  // have room behind the slots: of the device's memory, or of this range.
  partition::Wire wire;
  std::uint64_t packed_bytes = 0;
  Range packed_memory;
  // Several ranks of each node keep a copy of what they have joined in a step. 0: none does.
  std::uint32_t node_ranks = 0;
  // So many ranks add their gradients to each other before sums leave their node. 0: none do.
  std::uint32_t reduce_ranks = 0;
  std::uint32_t transfer_slots = 0;
  std::uint64_t transfer_slot_bytes = 0;
  Range transfer_slot_memory;
  // kDevice and kAuto only with slots. kAuto: the engine has yet to find the faster place.
  UpdateOn update_on = UpdateOn::kCpu;
  // If the device updates: slots in its memory, each for this many elements of a tile.
  std::uint32_t device_update_slots = 0;
  std::uint64_t device_update_elements = 0;
  std::uint64_t device_update_slot_bytes = 0;
  Range load_staging;  // one group, if the device has memory of its own
  // With several ranks: one group's gradients, as f32, in each of `buckets`, and behind them the
  // parts that the other ranks send, at most exchange_elements from each at a time; with several
  // buckets, also a part that is given where this rank has no gradients. Device memory.
  // If gradients are packed, behind the buckets: the packed parts that are given and taken, and one
  // that is unpacked as f32. With reduce_ranks: the parts that the others of the node send, a sum
  // of this node for each node, and those that the other nodes send.
  static constexpr std::uint32_t kMostBuckets = 2;
  std::uint32_t buckets = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t exchange_offset_bytes = 0;
  std::uint64_t exchange_elements = 0;
  Range bucket_memory;                     // empty if it is in device memory
  Range scratch;                           // for joining masters on export
  Range commit_record;                     // if durable
  Range background_save;                   // if set: a tile, scratch, bytes on their way to files
  std::uint64_t saved_tile_bytes = 0;      // of the largest tile with all of its state
  std::uint64_t registration_bytes = 0;    // in a store, on each drive
  std::uint64_t commit_every = 0;          // steps between commits; 0: not durable
  std::uint64_t arena_used_bytes = 0;      // the ranges above
  std::uint64_t arena_bytes = 0;           // rounded up to huge pages
  std::uint64_t frame_bytes = 0;           // coroutine frames
  std::vector<std::uint64_t> drive_bytes;  // size of each swap file
  PlanReport report;
  std::string warning;  // about an outcome of the plan that nobody wants; usually empty
  // Every tile has slots in a store, resident or not.
  bool durable() const noexcept { return commit_every != 0; }
};

// Throws headrace::Error kOutOfBudget with the table, the limit, the smallest sufficient budget,
// and a sufficient tile size if there is one; kInvalidArgument if nodes do not make up the world.
Plan make_plan(const PlanInputs& inputs);

// Assigns the plan's tiles to other drives than those it was made for. That changes their places on
// NVMe, and nothing in memory. `drives` has one entry per nvme path.
void deal_again(Plan& plan, const partition::Partition& partition,
                const std::vector<std::string>& paths, const std::vector<DriveInputs>& drives);

// Lets the CPU update after all: removes the slots on the device and their row.
void leave_out_device_updates(Plan& plan);

// What lives in memory between steps: resident weights and records, and a store's commit record.
std::vector<Range> living_ranges(const Plan& plan);

// The needs of the smallest possible plan, without regard to limits.
std::uint64_t smallest_host_bytes(const PlanInputs& inputs);

// One line: bytes per tier, shares in memory, slots.
std::string summary(const Plan& plan);

// In words, how several ranks change results by what they send. Empty: not at all.
std::string what_changes_results(const Plan& plan);
}  // namespace headrace::residency
