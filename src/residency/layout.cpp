// SPDX-License-Identifier: Apache-2.0
#include "residency/layout.hpp"

#include <algorithm>
#include <utility>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "swap/record.hpp"

namespace headrace::residency {
using base::align_up;
using base::kIoAlignment;
using partition::Section;
using partition::Tile;

RecordLayout record_layout(const optimizer_cpu::StateStreams& streams, std::uint64_t elements,
                           Tier tier) {
  RecordLayout layout;
  layout.header_bytes = tier == Tier::kNvme ? swap::kHeaderBytes : 0;
  layout.streams = streams.count;
  std::uint64_t at = layout.header_bytes;
  for (std::uint32_t s = 0; s < streams.count; ++s) {
    layout.stream_offset_bytes[s] = at;
    layout.stream_bytes[s] =
        base::ceil_div(elements, base::kScaleElements) * streams.stream[s].bytes_per_scale;
    at += align_up(layout.stream_bytes[s], kIoAlignment);
  }
  layout.size_bytes = at;
  return layout;
}

TileExtents extents_of(const Plan& plan, const partition::Partition& partition, std::size_t t) {
  const TilePlan& tile = plan.tiles[t];
  const bool weight_nvme = plan.sections[partition.tiles[t].section].weight == Tier::kNvme;
  return {.record_bytes = tile.record == Tier::kNvme ? tile.layout.size_bytes : 0,
          .weight_bytes = weight_nvme ? align_up(tile.weight_bytes, kIoAlignment) : 0};
}

TileExtents stored_extents(const Plan& plan, const partition::Partition& partition, std::size_t t) {
  if (!plan.durable()) return extents_of(plan, partition, t);
  return {.record_bytes = plan.tiles[t].layout.size_bytes,
          .weight_bytes = align_up(plan.tiles[t].weight_bytes, kIoAlignment),
          .slots = partition.section_of(static_cast<std::uint32_t>(t)).frozen ? 1u : 2u};
}

void add_row(Plan& plan, const char* what, const char* tier, std::uint64_t bytes) {
  if (bytes == 0) return;
  auto& rows = plan.report.rows;
  const auto same = std::ranges::find_if(
      rows, [&](const PlanRow& r) { return r.what == what && r.tier == tier; });
  if (same != rows.end()) {
    same->bytes += bytes;
  } else {
    rows.push_back({what, tier, bytes});
  }
}

bool keeps_joined(const PlanInputs& in) {
  return in.partition->world_size > 1 && in.settings.zero_stage < 3;
}

partition::Wire wire_of(const PlanInputs& in) {
  if (in.partition->world_size == 1) return {};
  return {.packed_parameters = in.settings.zero_quantized_weights,
          .packed_gradients = in.settings.zero_quantized_gradients};
}

std::uint32_t node_ranks(const PlanInputs& in) {
  const std::uint32_t ranks = in.settings.zero_hpz_partition_size;
  const bool copies = ranks > 1 && ranks < in.partition->world_size;
  return copies && !has_slot_per_group(in) ? ranks : 0;
}

std::uint32_t reduce_ranks(const PlanInputs& in) {
  const std::uint32_t ranks = in.settings.hierarchical_reduce_ranks;
  return ranks > 1 && in.partition->world_size > 1 ? ranks : 0;
}

bool has_slot_per_group(const PlanInputs& in) {
  return keeps_joined(in) ||
         (!in.device_shares_host_memory && in.settings.offload_parameters == OffloadDevice::kNone);
}

namespace {
constexpr std::uint64_t kFrameBytes = 256 * base::kKiB;
constexpr const char* kTrainersMemory = "host (yours)";
// The bytes that ranks take from each other at a time.
constexpr std::uint64_t kExchangeBytes = 32 * base::kMiB;
// Of an update on the device: one chunk comes back while one is updated and one goes there, each
// copy long enough that what it costs to begin one does not count.
constexpr std::uint32_t kDeviceUpdateSlots = 3;
constexpr std::uint64_t kDeviceUpdateElements = 1 << 20;

// One plan on its way from nothing; each step takes what it needs from the end of the arena.
class Layout {
 public:
  Layout(const PlanInputs& inputs, const Choice& choice)
      : in_(inputs), part_(*inputs.partition), choice_(choice) {
    plan_.sections.resize(part_.sections.size());
    plan_.tiles.resize(part_.tiles.size());
    plan_.group_in_place.resize(part_.group_sections.size());
    plan_.group_bytes.resize(part_.group_sections.size());
  }

  Plan run() && {
    plan_.wire = wire_of(in_);
    add_weights();
    plan_.node_ranks = node_ranks(in_);
    if (plan_.node_ranks > 0) add_node_shards();
    plan_.reduce_ranks = reduce_ranks(in_);
    add_gradients();
    add_records();
    const Groups groups = measure_groups();
    if (groups.gathered > 0) add_gather_slots(groups);
    if (plan_.wire.packed_parameters) add_packed_parameters();
    if (part_.world_size > 1) add_bucket(groups);
    add_tile_slots();
    if (!in_.device_shares_host_memory) plan_.load_staging = take(groups.largest, "load staging");
    plan_.scratch = take(kScratchBytes, "scratch");
    plan_.commit_record = take(in_.commit_bytes, "commit record");
    if (in_.settings.background_save_bytes_per_second > 0) add_background_save();
    plan_.registration_bytes = in_.registration_bytes;
    plan_.commit_every = in_.durable() ? in_.settings.durable_every : 0;
    add_row("gradients in the trainer's hands", kTrainersMemory, groups.largest_gradients);
    add_what_is_not_cut();
    sum_up();
    return std::move(plan_);
  }

 private:
  // Over all groups: bytes of the largest, and how many are gathered into slots.
  struct Groups {
    std::uint64_t largest = 0, largest_gathered = 0, largest_bucket = 0, largest_gradients = 0;
    std::uint32_t gathered = 0, bound = 0;
  };

  void add_row(const char* what, const char* tier, std::uint64_t bytes) {
    residency::add_row(plan_, what, tier, bytes);
  }
  Range take(std::uint64_t bytes, const char* row) {
    bytes = align_up(bytes, kIoAlignment);
    const Range range{plan_.arena_bytes, bytes};
    plan_.arena_bytes += bytes;
    add_row(row, "host", bytes);
    return range;
  }
  // Of the arena, or of a device with memory of its own: then no range.
  Range take_for_device(std::uint64_t bytes, const char* row) {
    if (in_.device_shares_host_memory) return take(bytes, row);
    add_row(row, "device", bytes);
    return {};
  }

  void add_weights();
  void add_node_shards();
  void add_gradients();
  void add_records();
  Groups measure_groups();
  void add_gather_slots(const Groups& groups);
  void add_packed_parameters();
  std::uint64_t exchanged_parts() const;
  void add_bucket(const Groups& groups);
  void add_tile_slots();
  void add_device_updates();
  void add_background_save();
  void add_what_is_not_cut();
  void sum_up();

  const PlanInputs& in_;
  const partition::Partition& part_;
  const Choice& choice_;
  Plan plan_;
};

// One after another, so that a group's sections of one dtype are one buffer.
void Layout::add_weights() {
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    SectionPlan& out = plan_.sections[s];
    const std::uint64_t bytes = section.shard.elements * size_bytes(section.dtype);
    out.weight = choice_.weight_resident[section.group] ? Tier::kHost : Tier::kNvme;
    out.lends_weights = in_.groups[section.group].lends_weights;
    if (out.lends_weights) {
      add_row("parameters that are lent", kTrainersMemory, bytes);
    } else if (out.weight == Tier::kHost) {
      out.resident_weight = take(bytes, "parameters");
    }
  }
}

void Layout::add_node_shards() {
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    const partition::Shard kept =
        part_.node_shard(section, part_.rank % plan_.node_ranks, plan_.node_ranks);
    plan_.sections[s].node_shard =
        take(kept.elements * size_bytes(section.dtype), "parameters kept for the node");
  }
}

void Layout::add_gradients() {
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    if (section.frozen) continue;
    SectionPlan& out = plan_.sections[s];
    const bool sums = part_.world_size > 1 || in_.groups[section.group].repeated_gradients;
    out.gradient_dtype = sums ? DType::kF32 : section.dtype;
    const std::uint64_t bytes = section.shard.elements * size_bytes(out.gradient_dtype);
    if (in_.groups[section.group].lends_gradients) {
      add_row("gradients that are lent", kTrainersMemory, bytes);
    } else {
      out.gradient = take(bytes, "gradients");
    }
  }
}

void Layout::add_records() {
  for (std::size_t t = 0; t < part_.tiles.size(); ++t) {
    const Tile& tile = part_.tiles[t];
    const Section& section = part_.sections[tile.section];
    TilePlan& out = plan_.tiles[t];
    out.record = choice_.record_resident[t] || section.frozen ? Tier::kHost : Tier::kNvme;
    if (!section.frozen) {
      out.layout = record_layout(optimizer_cpu::state_streams(in_.settings, section.dtype),
                                 tile.elements, in_.durable() ? Tier::kNvme : out.record);
    }
    out.weight_bytes = tile.elements * size_bytes(section.dtype);
    if (out.record == Tier::kHost)
      out.resident_record = take(out.layout.size_bytes, "optimizer state");
  }
}

Layout::Groups Layout::measure_groups() {
  Groups groups;
  for (std::size_t g = 0; g < part_.group_sections.size(); ++g) {
    std::uint64_t bytes = 0, bucket = 0, gradients = 0;
    for (const std::uint32_t s : part_.group_sections[g]) {
      const Section& section = part_.sections[s];
      plan_.sections[s].joined_offset_bytes = bytes;
      bytes += align_up(section.buffer_elements * size_bytes(section.dtype), kIoAlignment);
      if (section.frozen) continue;
      bucket += align_up(section.buffer_elements * size_bytes(plan_.sections[s].gradient_dtype),
                         kIoAlignment);
      if (!in_.groups[g].lends_gradients) gradients += section.elements * size_bytes(section.dtype);
    }
    plan_.group_bytes[g] = bytes;
    plan_.group_in_place[g] =
        in_.device_shares_host_memory && part_.world_size == 1 && choice_.weight_resident[g];
    groups.largest = std::max(groups.largest, bytes);
    groups.largest_bucket = std::max(groups.largest_bucket, bucket);
    groups.largest_gradients = std::max(groups.largest_gradients, gradients);
    if (plan_.group_in_place[g]) continue;
    groups.largest_gathered = std::max(groups.largest_gathered, bytes);
    ++groups.gathered;
    if (in_.groups[g].keep_bound) ++groups.bound;
  }
  return groups;
}

void Layout::add_gather_slots(const Groups& groups) {
  plan_.slot_per_group = has_slot_per_group(in_);
  plan_.gather_slots = plan_.slot_per_group
                           ? groups.gathered
                           : std::min(groups.gathered, choice_.gather_slots + groups.bound);
  plan_.gather_slot_bytes = groups.largest_gathered;
  const auto add = [&](std::uint64_t bytes) {
    plan_.gather_slot_offset_bytes.push_back(plan_.gather_bytes);
    plan_.gather_bytes += bytes;
  };
  if (plan_.slot_per_group) {
    for (std::size_t g = 0; g < plan_.group_bytes.size(); ++g)
      if (!plan_.group_in_place[g]) add(plan_.group_bytes[g]);
  } else {
    for (std::uint32_t s = 0; s < plan_.gather_slots; ++s) add(plan_.gather_slot_bytes);
  }
  plan_.gather_slot_memory =
      take_for_device(plan_.gather_bytes, keeps_joined(in_) ? "joined parameters" : "gather slots");
}

// One section at a time.
void Layout::add_packed_parameters() {
  for (const Section& section : part_.sections) {
    if (plan_.wire.packs(section))
      plan_.packed_bytes = std::max(plan_.packed_bytes,
                                    plan_.wire.parameter_bytes(section, section.buffer_elements));
  }
  plan_.packed_bytes = align_up(plan_.packed_bytes, kIoAlignment);
  plan_.packed_memory = take_for_device(plan_.packed_bytes, "quantised parameters");
}

// The parts that a reduction has room for at a time.
std::uint64_t Layout::exchanged_parts() const {
  const std::uint64_t ranks = plan_.reduce_ranks;
  return ranks == 0 ? part_.world_size - 1 : ranks - 1 + 2 * (part_.world_size / ranks) - 1;
}

// Ranks exchange a bucket in parts of whole blocks, so that what they take from each other needs no
// more memory for a larger group or more ranks.
void Layout::add_bucket(const Groups& groups) {
  std::uint64_t shard = 0;
  for (const Section& section : part_.sections) {
    if (!section.frozen) shard = std::max(shard, part_.largest_shard_elements(section));
  }
  const std::uint64_t parts = exchanged_parts();
  const std::uint64_t part = kExchangeBytes / sizeof(float) / (parts + 1);
  const std::uint64_t blocks = std::max(part / base::kBlockElements, std::uint64_t{1});
  plan_.exchange_elements = std::min(shard, blocks * base::kBlockElements);
  plan_.buckets = choice_.buckets;
  plan_.exchange_offset_bytes = plan_.buckets * groups.largest_bucket;
  // With two, the one that a rank without gradients would give from may be in use.
  const std::uint64_t with_nothing = parts + (plan_.buckets > 1 ? 1 : 0);
  const std::uint64_t exchanged =
      plan_.wire.packed_gradients
          ? (2 * part_.world_size - 1) *
                    base::packed_bytes(partition::Wire::kGradientBits, plan_.exchange_elements) +
                plan_.exchange_elements * sizeof(float)
          : with_nothing * plan_.exchange_elements * sizeof(float);
  plan_.bucket_bytes = plan_.exchange_offset_bytes + exchanged;
  plan_.bucket_memory = take_for_device(plan_.bucket_bytes,
                                        plan_.buckets > 1 ? "gradient buckets" : "gradient bucket");
}

// The slots that tiles pass through: for updates here, on the device, and on their way to it.
void Layout::add_tile_slots() {
  std::uint64_t largest_transfer = 0, largest_update = 0;
  for (std::size_t t = 0; t < part_.tiles.size(); ++t) {
    const TilePlan& tile = plan_.tiles[t];
    const bool weight_nvme = plan_.sections[part_.tiles[t].section].weight == Tier::kNvme;
    const std::uint64_t weight = weight_nvme ? tile.weight_bytes : 0;
    const std::uint64_t record = tile.record == Tier::kNvme ? tile.layout.size_bytes : 0;
    largest_update = std::max(largest_update, record + weight);  // of a frozen one for load, store
    largest_transfer = std::max(largest_transfer, weight);
  }
  if (largest_update > 0) {
    plan_.update_slots = choice_.update_slots;
    plan_.update_slot_bytes = largest_update;
    plan_.update_slot_memory = take(plan_.update_slots * largest_update, "update slots");
  }
  if (in_.settings.update_on != UpdateOn::kCpu) add_device_updates();
  if (in_.device_shares_host_memory || largest_transfer == 0) return;
  plan_.transfer_slots = choice_.gather_slots + 1;
  plan_.transfer_slot_bytes = largest_transfer;
  plan_.transfer_slot_memory = take(plan_.transfer_slots * largest_transfer, "transfer slots");
}

// A save beside training takes no update slot: an update would wait for it.
void Layout::add_background_save() {
  for (const TilePlan& tile : plan_.tiles) {
    plan_.saved_tile_bytes = std::max(
        plan_.saved_tile_bytes, tile.layout.size_bytes + align_up(tile.weight_bytes, kIoAlignment));
  }
  plan_.background_save =
      take(plan_.saved_tile_bytes + kScratchBytes + kSaveBufferBytes, "background save");
}

void Layout::add_device_updates() {
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    if (section.frozen || section.tiles == 0) continue;
    const std::uint64_t elements = std::min(
        {kDeviceUpdateElements, part_.tile_elements, part_.tiles[section.first_tile].elements});
    const auto array = [&](std::uint64_t bytes) { return align_up(bytes, kDeviceAlignment); };
    std::uint64_t bytes = array(elements * size_bytes(section.dtype)) +
                          array(elements * size_bytes(plan_.sections[s].gradient_dtype));
    const auto streams = optimizer_cpu::state_streams(in_.settings, section.dtype);
    for (const auto& stream : streams.all())
      bytes += array(base::ceil_div(elements, base::kScaleElements) * stream.bytes_per_scale);
    plan_.device_update_elements = std::max(plan_.device_update_elements, elements);
    plan_.device_update_slot_bytes = std::max(plan_.device_update_slot_bytes, bytes);
  }
  if (plan_.device_update_elements == 0) return;
  plan_.update_on = in_.settings.update_on;
  plan_.device_update_slots = kDeviceUpdateSlots;
  add_row(kDeviceUpdateRow, "device", plan_.device_update_slots * plan_.device_update_slot_bytes);
}

void Layout::add_what_is_not_cut() {
  plan_.arena_used_bytes = plan_.arena_bytes;
  plan_.arena_bytes = align_up(plan_.arena_used_bytes, base::kHugePage);
  add_row("rounding to huge pages", "host", plan_.arena_bytes - plan_.arena_used_bytes);
  plan_.frame_bytes = kFrameBytes;
  add_row("coroutine frames", "host", kFrameBytes);
  add_row("bookkeeping", "host", in_.bookkeeping_bytes);
  add_row("the collective's own", "host", in_.collective_bytes);
  add_row("the device's own", "host", in_.device_overhead.host_bytes);
  add_row("the device's own", "device", in_.device_overhead.device_bytes);
}

void Layout::sum_up() {
  PlanReport& report = plan_.report;
  report.save_bytes = kSaveBufferBytes;
  report.load_bytes = kLoadBufferBytes;
  for (const PlanRow& row : report.rows) {
    if (row.tier == "host") report.host_bytes += row.bytes;
    if (row.tier == "device") report.device_bytes += row.bytes;
    if (row.tier == kTrainersMemory) report.trainer_bytes += row.bytes;
  }
}
}  // namespace

Plan lay_out(const PlanInputs& inputs, const Choice& choice) {
  return Layout(inputs, choice).run();
}
}  // namespace headrace::residency
