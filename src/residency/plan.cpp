// SPDX-License-Identifier: Apache-2.0
#include "residency/plan.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.hpp"
#include "base/sizes.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "residency/plan_rows.hpp"
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

namespace {
constexpr std::uint64_t kFrameBytes = 256 * base::kKiB;
constexpr std::uint64_t kScratchBytes = 256 * base::kKiB;
// What ranks take from each other at a time.
constexpr std::uint64_t kExchangeBytes = 32 * base::kMiB;
// Of an update on the device: one chunk comes back while one is updated and one goes there, each
// copy long enough that what it costs to begin one does not count.
constexpr std::uint32_t kDeviceUpdateSlots = 3;
constexpr std::uint64_t kDeviceUpdateElements = 1 << 20;
constexpr const char* kDeviceUpdateRow = "updates on the device";

// What the planner is free to choose.
struct Choice {
  std::uint32_t update_slots = 1;
  std::uint32_t gather_slots = 1;
  std::vector<bool> weight_resident;  // per group
  std::vector<bool> record_resident;  // per tile
};

class Planner {
 public:
  explicit Planner(const PlanInputs& inputs)
      : in_(inputs), part_(*inputs.partition), groups_(part_.group_sections.size()) {
    const Settings& s = in_.settings;
    gather_slots_ = s.prefetch_groups + 1;
    drives_ = in_.drives;
    if (drives_.empty()) drives_.resize(std::max<std::size_t>(1, s.nvme_paths.size()));
    choice_.weight_resident.assign(groups_, s.offload_parameters != OffloadDevice::kNvme);
    choice_.record_resident.assign(part_.tiles.size(), s.offload_optimizer != OffloadDevice::kNvme);
    for (std::size_t g = 0; g < groups_; ++g) {
      if (in_.groups[g].keep_bound) choice_.weight_resident[g] = true;
    }
  }

  // With nothing resident and one slot of each kind; or, as slots may be larger than what they save
  // in a small model, with everything resident. The latter only where a budget lets plans choose.
  std::uint64_t smallest() const {
    const std::uint64_t moving = host_bytes(choice_);
    return budget() == 0 ? moving : std::min(moving, host_bytes(all_resident()));
  }

  Plan run() {
    fit_device();
    const std::uint64_t limit = budget();
    const std::uint64_t ceiling = in_.machine_left_bytes;
    const std::uint64_t moving = host_bytes(choice_), resident = host_bytes(all_resident());
    const std::uint64_t smallest = limit == 0 ? moving : std::min(moving, resident);
    if ((limit != 0 && smallest > limit) || (ceiling != 0 && smallest > ceiling))
      refuse(smallest, limit);
    const bool all = limit != 0 && resident <= limit &&
                     (resident <= moving || host_bytes(with_slots(all_resident(), 0)) <= limit);
    if (all) choice_ = all_resident();
    if (widen(limit != 0 ? limit : ceiling) && limit != 0) fill(limit);
    Plan plan = lay_out(choice_);
    if (ceiling != 0 && plan.report.host_bytes > ceiling) refuse_beyond_machine(plan, limit);
    if (plan.report.nvme_bytes > 0 && plan.report.host_bytes > resident)
      plan.warning = larger_than_resident(plan, resident);
    plan.report.host_budget_bytes = limit;
    plan.report.smallest_host_bytes = smallest;
    plan.report.host_left_bytes = ceiling;
    if (ceiling != 0) plan.report.host_left_source = in_.machine_limit_source;
    return plan;
  }

 private:
  std::uint64_t budget() const {
    if (in_.settings.host_budget_auto) return in_.machine_left_bytes / 10 * 9;
    return in_.settings.host_budget_bytes;
  }
  Choice all_resident() const {
    Choice all = choice_;
    all.weight_resident.assign(groups_, true);
    all.record_resident.assign(part_.tiles.size(), true);
    return all;
  }
  static std::string larger_than_resident(const Plan& plan, std::uint64_t resident);
  std::string smaller_tiles(std::uint64_t smallest, std::uint64_t limit) const;
  std::string more_on_nvme(std::uint64_t smallest) const;
  // As many gather slots as are asked for and the device's budget has room for. Throws where one is
  // too many.
  void fit_device() {
    const std::uint64_t budget = in_.settings.device_budget_bytes;
    if (budget == 0 || in_.device_shares_host_memory) return;
    for (;; --gather_slots_) {
      lay_out_memory(scratch_, with_slots(choice_, 0));
      if (scratch_.report.device_bytes <= budget) return;
      if (gather_slots_ == 1) refuse_device(budget);
    }
  }
  [[noreturn]] void refuse_device(std::uint64_t budget) const;
  [[noreturn]] void refuse_beyond_machine(const Plan& plan, std::uint64_t limit) const;
  std::uint64_t host_bytes(const Choice& choice) const {
    lay_out_memory(scratch_, choice);
    return scratch_.report.host_bytes;
  }

  Choice with_slots(Choice choice, std::uint32_t give_up) const {
    const std::uint32_t update = in_.settings.update_slots;
    const std::uint32_t gather = gather_slots_;
    choice.update_slots = std::max(1u, update > give_up ? update - give_up : 1);
    choice.gather_slots = std::max(1u, gather > give_up ? gather - give_up : 1);
    return choice;
  }
  // As many slots as the settings ask for and the room allows: overlap before residency. Whether
  // it has room for all of them.
  bool widen(std::uint64_t room) {
    const std::uint32_t most = std::max(in_.settings.update_slots, gather_slots_);
    for (std::uint32_t give_up = 0; give_up < most; ++give_up) {
      const Choice next = with_slots(choice_, give_up);
      if (room == 0 || host_bytes(next) <= room) {
        choice_ = next;
        return give_up == 0;
      }
    }
    return false;
  }

  // Keeps in memory what the budget has room for: the longest beginning of one order.
  void fill(std::uint64_t room) {
    Choice all = choice_;
    all.weight_resident.assign(groups_, true);
    Room left(memory_of(all), room);
    if (left.fits(0)) {  // parameters, and then state; that all of it fits has been ruled out
      choice_ = all;
      for (const std::size_t t : spread(part_.tiles.size())) {
        if (choice_.record_resident[t] || is_frozen(part_.tiles[t])) continue;
        if (!left.fits(layout_of(part_.tiles[t], Tier::kHost).size_bytes)) return;
        choice_.record_resident[t] = true;
      }
      return;
    }
    left = Room(memory_of(choice_), room);
    for (const std::size_t g : groups_in_order()) {
      if (choice_.weight_resident[g]) continue;
      std::uint64_t bytes = 0;
      for (const std::uint32_t s : part_.group_sections[g]) {
        const Section& section = part_.sections[s];
        bytes += align_up(section.shard_elements * size_bytes(section.dtype), kIoAlignment);
      }
      if (!left.fits(bytes)) return;
      choice_.weight_resident[g] = true;
    }
  }
  Plan memory_of(const Choice& choice) const {
    Plan plan;
    lay_out_memory(plan, choice);
    return plan;
  }
  // What more an arena may hold. Slots that shrink with it are not counted.
  class Room {
   public:
    Room(const Plan& plan, std::uint64_t room)
        : arena_(plan.arena_used_bytes),
          rest_(plan.report.host_bytes - plan.arena_bytes),
          room_(room) {}
    bool fits(std::uint64_t more) {
      arena_ += more;
      return align_up(arena_, base::kHugePage) + rest_ <= room_;
    }

   private:
    std::uint64_t arena_, rest_, room_;
  };

  // The smallest first, so that one large group holds up no other; equal ones spread out, so that
  // between two that are fetched there is one that is not.
  std::vector<std::size_t> groups_in_order() const {
    std::vector<std::size_t> order = spread(groups_);
    std::vector<std::uint64_t> bytes(groups_, 0);
    for (const Section& section : part_.sections)
      bytes[section.group] += section.shard_elements * size_bytes(section.dtype);
    std::ranges::stable_sort(order, {}, [&](std::size_t g) { return bytes[g]; });
    return order;
  }
  // 0 .. count - 1 by their bits read backwards: every beginning of it is spread evenly.
  static std::vector<std::size_t> spread(std::size_t count) {
    std::vector<std::size_t> order;
    order.reserve(count);
    const std::size_t end = std::bit_ceil(std::max<std::size_t>(1, count));
    for (std::size_t i = 0, at = 0; i < end; ++i) {
      if (at < count) order.push_back(at);
      std::size_t bit = end >> 1;
      for (; bit > 0 && (at & bit) != 0; bit >>= 1) at ^= bit;
      at |= bit;
    }
    return order;
  }

  bool is_frozen(const Tile& tile) const { return part_.sections[tile.section].frozen; }
  RecordLayout layout_of(const Tile& tile, Tier tier) const {
    const DType dtype = part_.sections[tile.section].dtype;
    return record_layout(optimizer_cpu::state_streams(in_.settings, dtype), tile.elements, tier);
  }

  Plan lay_out(const Choice& choice) const;
  void lay_out_memory(Plan& plan, const Choice& choice) const;
  void lay_out_residents(Plan& plan, const Choice& choice) const;
  // Over all groups: bytes of the largest, and how many are gathered into slots.
  struct Groups {
    std::uint64_t largest = 0, largest_gathered = 0, largest_bucket = 0, largest_gradients = 0;
    std::uint32_t gathered = 0, bound = 0;
  };
  void lay_out_slots(Plan& plan, const Choice& choice) const;
  Groups measure_groups(Plan& plan, const Choice& choice) const;
  void lay_out_bucket(Plan& plan, std::uint64_t largest) const;
  void lay_out_gathers(Plan& plan, const Choice& choice, const Groups& groups) const;
  void lay_out_tiles(Plan& plan, const Choice& choice) const;
  void lay_out_device_updates(Plan& plan) const;
  void count_nvme(Plan& plan) const;
  bool deferred(const Plan& plan) const;
  enum class Turn { kToBackward, kToForward };
  std::uint64_t bytes_still_gathered(const Plan& plan, Turn turn) const;
  Range take(Plan& plan, std::uint64_t bytes, const char* row, const char* tier = "host") const;
  [[noreturn]] void refuse(std::uint64_t smallest, std::uint64_t limit) const;

  const PlanInputs& in_;
  const partition::Partition& part_;
  const std::size_t groups_;
  std::vector<DriveInputs> drives_;
  Choice choice_;
  std::uint32_t gather_slots_ = 0;  // at most; the settings' and those of the device's budget
  mutable Plan scratch_;            // the memory of what is only tried
};

Range Planner::take(Plan& plan, std::uint64_t bytes, const char* row, const char* tier) const {
  bytes = align_up(bytes, kIoAlignment);
  const Range range{plan.arena_bytes, bytes};
  plan.arena_bytes += bytes;
  add_row(plan, row, tier, bytes);
  return range;
}

void Planner::lay_out_residents(Plan& plan, const Choice& choice) const {
  // One after another, so that a group's sections of one dtype are one buffer.
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    SectionPlan& out = plan.sections[s];
    out.weight = choice.weight_resident[section.group] ? Tier::kHost : Tier::kNvme;
    if (out.weight == Tier::kHost)
      out.resident_weight =
          take(plan, section.shard_elements * size_bytes(section.dtype), "parameters");
  }
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    if (section.frozen) continue;
    SectionPlan& out = plan.sections[s];
    const bool sums = part_.world_size > 1 || in_.groups[section.group].repeated_gradients;
    out.gradient_dtype = sums ? DType::kF32 : section.dtype;
    out.gradient = take(plan, section.shard_elements * size_bytes(out.gradient_dtype), "gradients");
  }
  const std::uint64_t before_state = plan.arena_bytes;
  for (std::size_t t = 0; t < part_.tiles.size(); ++t) {
    const Tile& tile = part_.tiles[t];
    TilePlan& out = plan.tiles[t];
    const bool frozen = is_frozen(tile);
    out.record = choice.record_resident[t] || frozen ? Tier::kHost : Tier::kNvme;
    if (!frozen) out.layout = layout_of(tile, out.record);
    out.weight_bytes = tile.elements * size_bytes(part_.sections[tile.section].dtype);
    if (out.record == Tier::kHost) {
      out.resident_record = {plan.arena_bytes, align_up(out.layout.size_bytes, kIoAlignment)};
      plan.arena_bytes += out.resident_record.size_bytes;
    }
  }
  add_row(plan, "optimizer state", "host", plan.arena_bytes - before_state);
}

void Planner::lay_out_slots(Plan& plan, const Choice& choice) const {
  const Groups groups = measure_groups(plan, choice);
  if (groups.gathered > 0) lay_out_gathers(plan, choice, groups);
  if (part_.world_size > 1) {
    lay_out_bucket(plan, groups.largest_bucket);
  }
  lay_out_tiles(plan, choice);
  if (!in_.device_shares_host_memory)
    plan.load_staging = take(plan, groups.largest, "load staging");
  plan.scratch = take(plan, kScratchBytes, "scratch");
  add_row(plan, "gradients in the trainer's hands", "host (yours)", groups.largest_gradients);
}

// Ranks exchange a bucket in parts of whole blocks, so that what they take from each other is the
// same for any group and any number of ranks.
void Planner::lay_out_bucket(Plan& plan, std::uint64_t largest) const {
  std::uint64_t shard = 0;
  for (const Section& section : part_.sections) {
    if (!section.frozen) shard = std::max(shard, section.shard_elements);
  }
  const std::uint64_t part = kExchangeBytes / sizeof(float) / part_.world_size;
  plan.exchange_elements = std::min(
      shard, std::max(part / base::kBlockElements, std::uint64_t{1}) * base::kBlockElements);
  plan.exchange_offset_bytes = largest;
  plan.bucket_bytes = largest + (part_.world_size - 1) * plan.exchange_elements * sizeof(float);
  if (in_.device_shares_host_memory) {
    plan.bucket_memory = take(plan, plan.bucket_bytes, "gradient bucket");
  } else {
    add_row(plan, "gradient bucket", "device", plan.bucket_bytes);
  }
}

Planner::Groups Planner::measure_groups(Plan& plan, const Choice& choice) const {
  Groups groups;
  for (std::size_t g = 0; g < groups_; ++g) {
    std::uint64_t bytes = 0, bucket = 0, gradients = 0;
    for (const std::uint32_t s : part_.group_sections[g]) {
      const Section& section = part_.sections[s];
      bytes += align_up(section.buffer_elements * size_bytes(section.dtype), kIoAlignment);
      if (section.frozen) continue;
      bucket += align_up(section.buffer_elements * size_bytes(plan.sections[s].gradient_dtype),
                         kIoAlignment);
      gradients += section.elements * size_bytes(section.dtype);
    }
    plan.group_bytes[g] = bytes;
    plan.group_in_place[g] =
        in_.device_shares_host_memory && part_.world_size == 1 && choice.weight_resident[g];
    groups.largest = std::max(groups.largest, bytes);
    groups.largest_bucket = std::max(groups.largest_bucket, bucket);
    groups.largest_gradients = std::max(groups.largest_gradients, gradients);
    if (plan.group_in_place[g]) continue;
    groups.largest_gathered = std::max(groups.largest_gathered, bytes);
    ++groups.gathered;
    if (in_.groups[g].keep_bound) ++groups.bound;
  }
  return groups;
}

void Planner::lay_out_gathers(Plan& plan, const Choice& choice, const Groups& groups) const {
  const bool shares = in_.device_shares_host_memory;
  // Parameters that are to stay on a device with memory of its own have a slot each.
  const bool all_bound = !shares && in_.settings.offload_parameters == OffloadDevice::kNone;
  plan.gather_slots =
      all_bound ? groups.gathered : std::min(groups.gathered, choice.gather_slots + groups.bound);
  plan.gather_slot_bytes = groups.largest_gathered;
  const std::uint64_t bytes = plan.gather_slots * plan.gather_slot_bytes;
  if (shares) {
    plan.gather_slot_memory = take(plan, bytes, "gather slots");
  } else {
    add_row(plan, "gather slots", "device", bytes);
  }
}

// The slots that tiles pass through: for updates here, on the device, and on their way to it.
void Planner::lay_out_tiles(Plan& plan, const Choice& choice) const {
  std::uint64_t largest_transfer = 0, largest_update = 0;
  for (std::size_t t = 0; t < part_.tiles.size(); ++t) {
    const TilePlan& tile = plan.tiles[t];
    const bool weight_nvme = plan.sections[part_.tiles[t].section].weight == Tier::kNvme;
    const std::uint64_t weight = weight_nvme ? tile.weight_bytes : 0;
    const std::uint64_t record = tile.record == Tier::kNvme ? tile.layout.size_bytes : 0;
    largest_update = std::max(largest_update, record + weight);  // of a frozen one for load, store
    largest_transfer = std::max(largest_transfer, weight);
  }
  if (largest_update > 0) {
    plan.update_slots = choice.update_slots;
    plan.update_slot_bytes = largest_update;
    plan.update_slot_memory = take(plan, plan.update_slots * largest_update, "update slots");
  }
  if (in_.settings.update_on != UpdateOn::kCpu) lay_out_device_updates(plan);
  if (in_.device_shares_host_memory || largest_transfer == 0) return;
  plan.transfer_slots = choice.gather_slots + 1;
  plan.transfer_slot_bytes = largest_transfer;
  plan.transfer_slot_memory = take(plan, plan.transfer_slots * largest_transfer, "transfer slots");
}

void Planner::lay_out_device_updates(Plan& plan) const {
  for (std::size_t s = 0; s < part_.sections.size(); ++s) {
    const Section& section = part_.sections[s];
    if (section.frozen || section.tiles == 0) continue;
    const std::uint64_t elements = std::min(
        {kDeviceUpdateElements, part_.tile_elements, part_.tiles[section.first_tile].elements});
    const auto array = [&](std::uint64_t bytes) { return align_up(bytes, kDeviceAlignment); };
    std::uint64_t bytes = array(elements * size_bytes(section.dtype)) +
                          array(elements * size_bytes(plan.sections[s].gradient_dtype));
    const auto streams = optimizer_cpu::state_streams(in_.settings, section.dtype);
    for (const auto& stream : streams.all())
      bytes += array(base::ceil_div(elements, base::kScaleElements) * stream.bytes_per_scale);
    plan.device_update_elements = std::max(plan.device_update_elements, elements);
    plan.device_update_slot_bytes = std::max(plan.device_update_slot_bytes, bytes);
  }
  if (plan.device_update_elements == 0) return;
  plan.update_on = in_.settings.update_on;
  plan.device_update_slots = kDeviceUpdateSlots;
  add_row(plan, kDeviceUpdateRow, "device",
          plan.device_update_slots * plan.device_update_slot_bytes);
}

void Planner::count_nvme(Plan& plan) const {
  PlanReport& report = plan.report;
  const std::uint64_t passes = in_.settings.gradient_accumulation_steps;
  std::uint64_t state_bytes = 0, state_resident = 0, weight_bytes = 0, weight_resident = 0;
  std::uint64_t state_nvme = 0, weight_nvme = 0;
  for (std::size_t t = 0; t < part_.tiles.size(); ++t) {
    const TilePlan& tile = plan.tiles[t];
    const auto [record, weight] = extents_of(plan, part_, t);
    state_nvme += record;
    weight_nvme += weight;
    const bool updated = !is_frozen(part_.tiles[t]);
    // An update that is deferred hands its weights to the next forward pass.
    const std::uint64_t reads = 2 * passes + (updated && !plan.deferred ? 1 : 0);
    report.nvme_read_bytes_per_step += static_cast<double>(record + reads * weight);
    if (updated) report.nvme_written_bytes_per_step += static_cast<double>(record + weight);
    state_bytes += tile.layout.size_bytes;
    state_resident += record == 0 ? tile.layout.size_bytes : 0;
    weight_bytes += tile.weight_bytes;
    weight_resident += weight == 0 ? tile.weight_bytes : 0;
  }
  add_row(plan, "optimizer state", "nvme", state_nvme);
  add_row(plan, "parameters", "nvme", weight_nvme);
  report.nvme_read_bytes_per_step -=
      static_cast<double>(passes * bytes_still_gathered(plan, Turn::kToBackward) +
                          (passes - 1) * bytes_still_gathered(plan, Turn::kToForward));
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  report.resident_share_of_state = share(state_resident, state_bytes);
  report.resident_share_of_parameters = share(weight_resident, weight_bytes);
}

// Where there is nothing to overlap with, or no buffer to run ahead into, a deferred update would
// only come later.
bool Planner::deferred(const Plan& plan) const {
  if (in_.settings.update_mode != UpdateMode::kAuto)
    return in_.settings.update_mode == UpdateMode::kDefer;
  const bool weights_swapped = std::ranges::any_of(
      plan.sections, [](const SectionPlan& section) { return section.weight == Tier::kNvme; });
  if (weights_swapped) return plan.gather_slots > 1;
  // Several ranks wait for each other in forward whatever is resident.
  return !in_.device_shares_host_memory || part_.world_size > 1 ||
         std::ranges::any_of(plan.tiles,
                             [](const TilePlan& tile) { return tile.record == Tier::kNvme; });
}

// Where a pass turns, the groups it ended with are still in their buffers: the last ones when
// backward begins, the first ones when the next micro-batch's forward does. Not read again.
std::uint64_t Planner::bytes_still_gathered(const Plan& plan, Turn turn) const {
  std::uint64_t bytes = 0;
  std::uint32_t buffers = plan.gather_slots;
  for (std::size_t i = 0; i < groups_ && buffers > 0; ++i) {
    const std::size_t g = turn == Turn::kToForward ? i : groups_ - 1 - i;
    if (plan.group_in_place[g]) continue;
    --buffers;
    for (const std::uint32_t s : part_.group_sections[g]) {
      if (plan.sections[s].weight != Tier::kNvme) continue;
      const Section& section = part_.sections[s];
      for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
        bytes += align_up(plan.tiles[t].weight_bytes, kIoAlignment);
      }
    }
  }
  return bytes;
}

// Into a plan that may have held another one.
void Planner::lay_out_memory(Plan& plan, const Choice& choice) const {
  std::vector<SectionPlan> sections = std::move(plan.sections);
  std::vector<TilePlan> tiles = std::move(plan.tiles);
  plan = {};
  sections.assign(part_.sections.size(), {});
  tiles.assign(part_.tiles.size(), {});
  plan.sections = std::move(sections);
  plan.tiles = std::move(tiles);
  plan.group_in_place.resize(groups_);
  plan.group_bytes.resize(groups_);
  lay_out_residents(plan, choice);
  lay_out_slots(plan, choice);
  plan.arena_used_bytes = plan.arena_bytes;
  plan.arena_bytes = align_up(plan.arena_used_bytes, base::kHugePage);
  add_row(plan, "rounding to huge pages", "host", plan.arena_bytes - plan.arena_used_bytes);
  plan.frame_bytes = kFrameBytes;
  add_row(plan, "coroutine frames", "host", kFrameBytes);
  add_row(plan, "bookkeeping", "host", in_.bookkeeping_bytes);
  add_row(plan, "the device's own", "host", in_.device_overhead.host_bytes);
  add_row(plan, "the device's own", "device", in_.device_overhead.device_bytes);
  for (const PlanRow& row : plan.report.rows) {
    if (row.tier == "host") plan.report.host_bytes += row.bytes;
    if (row.tier == "device") plan.report.device_bytes += row.bytes;
    if (row.tier == "host (yours)") plan.report.trainer_bytes += row.bytes;
  }
}

Plan Planner::lay_out(const Choice& choice) const {
  Plan plan = memory_of(choice);
  plan.deferred = deferred(plan);
  count_nvme(plan);
  deal_again(plan, part_, in_.settings.nvme_paths, drives_);
  plan.report.parameters = part_.parameter_elements;
  plan.report.deferred_updates = plan.deferred;
  return plan;
}

std::string Planner::larger_than_resident(const Plan& plan, std::uint64_t resident) {
  return "offloading takes more host memory than it saves: the plan takes " +
         base::format_bytes_exactly(plan.report.host_bytes) + ", all in memory would take " +
         base::format_bytes_exactly(resident) + "; set headrace.host_budget_bytes to " +
         std::to_string(resident) + " or more, and all stays in memory";
}

std::string table_of(const Plan& plan) {
  std::string table = plan.report.to_text();
  table.pop_back();  // a message ends with its last line
  return "\n" + table;
}

// Whether smaller tiles would do within `limit`, or else how much less they would need.
std::string Planner::smaller_tiles(std::uint64_t smallest, std::uint64_t limit) const {
  if (!in_.smallest_with_tiles) return "";
  std::uint64_t tile = part_.tile_elements, best = 0;
  while (tile > base::kBlockElements && smallest > limit) {
    tile = base::align_up(tile / 2, base::kBlockElements);
    const std::uint64_t bytes = in_.smallest_with_tiles(tile);
    if (bytes >= smallest) continue;
    smallest = bytes;
    best = tile;
  }
  if (best == 0) return "";
  return (smallest <= limit ? "Set headrace.tile_elements to " : "With headrace.tile_elements ") +
         std::to_string(best) + " (it is " + std::to_string(part_.tile_elements) +
         (smallest <= limit ? "), with which " : ") it would be ") + std::to_string(smallest) +
         " bytes (" + base::format_bytes(smallest) + (smallest <= limit ? ") would do. " : "). ");
}

// What could move to a drive and does not, if that would take less memory.
std::string Planner::more_on_nvme(std::uint64_t smallest) const {
  const bool state = in_.settings.offload_optimizer != OffloadDevice::kNvme;
  const bool parameters = in_.settings.offload_parameters != OffloadDevice::kNvme;
  Choice moved = choice_;
  for (std::size_t g = 0; g < groups_; ++g) {
    if (parameters) moved.weight_resident[g] = in_.groups[g].keep_bound;
  }
  if (state) moved.record_resident.assign(part_.tiles.size(), false);
  const std::uint64_t bytes = host_bytes(moved);
  if ((!state && !parameters) || bytes >= smallest) return "";
  return std::string("Set ") + (state ? "zero_optimization.offload_optimizer.device" : "") +
         (state && parameters ? " and " : "") +
         (parameters ? "zero_optimization.offload_param.device" : "") +
         " to nvme, with which it would be " + std::to_string(bytes) + " bytes (" +
         base::format_bytes(bytes) + "). ";
}

void Planner::refuse(std::uint64_t smallest, std::uint64_t limit) const {
  const std::uint64_t left = in_.machine_left_bytes;
  const bool machine = left != 0 && smallest > left;
  const std::string offload = more_on_nvme(smallest);
  const std::string tiles =
      offload.empty() ? smaller_tiles(smallest, machine ? left : limit) : std::string();
  const std::string needed = base::format_bytes_exactly(smallest);
  std::string text = "the least possible plan needs " + needed + " of host memory, and ";
  if (machine) {
    text += base::format_bytes_exactly(left) + " is left (" + in_.machine_limit_source +
            "); nothing was allocated. ";
    text += offload + tiles + (offload.empty() ? "Run" : "Or run") + " where at least " + needed +
            " of memory is left.";
  } else {
    const bool automatic = in_.settings.host_budget_auto;
    text +=
        "the budget is " + base::format_bytes_exactly(limit) +
        (automatic ? " (headrace.host_budget_bytes \"auto\")" : " (headrace.host_budget_bytes)");
    text += "; nothing was allocated. " + offload + tiles +
            (offload.empty() ? "The" : "Without that the") + " smallest budget that would do is " +
            std::to_string(smallest) + " bytes (" + base::format_bytes(smallest) +
            "): set headrace.host_budget_bytes to that or more.";
  }
  const bool moving = host_bytes(choice_) == smallest;
  throw Error(Code::kOutOfBudget, text + table_of(lay_out(moving ? choice_ : all_resident())));
}

void Planner::refuse_device(std::uint64_t budget) const {
  const std::uint64_t least = scratch_.report.device_bytes;
  const bool bound = in_.settings.offload_parameters == OffloadDevice::kNone;
  const bool updates = scratch_.device_update_slots > 0;
  throw Error(Code::kOutOfBudget,
              "the least possible plan needs " + base::format_bytes_exactly(least) +
                  " of the device's memory, and the budget is " +
                  base::format_bytes_exactly(budget) +
                  " (headrace.device_budget_bytes); nothing was allocated. " +
                  (updates ? "With headrace.update_on \"cpu\" it would be " +
                                 base::format_bytes(scratch_.device_update_slots *
                                                    scratch_.device_update_slot_bytes) +
                                 " less. "
                           : "") +
                  (bound ? "Set zero_optimization.offload_param.device to cpu or nvme: parameters "
                           "are on the device whole. Or set"
                         : "Make groups smaller: a gather slot holds the largest. Or set") +
                  " headrace.device_budget_bytes to " + std::to_string(least) + " or more." +
                  table_of(scratch_));
}

void Planner::refuse_beyond_machine(const Plan& plan, std::uint64_t limit) const {
  const std::string left = base::format_bytes_exactly(in_.machine_left_bytes);
  throw Error(Code::kOutOfBudget,
              "the plan for a budget of " + base::format_bytes_exactly(limit) +
                  " (headrace.host_budget_bytes) takes " +
                  base::format_bytes_exactly(plan.report.host_bytes) + " of host memory, and " +
                  left + " is left (" + in_.machine_limit_source +
                  "); nothing was allocated. Set headrace.host_budget_bytes to " +
                  std::to_string(in_.machine_left_bytes) + " or less, or to \"auto\"." +
                  table_of(plan));
}
}  // namespace

namespace {
// With "auto" the device updates where its slots are to be had beside the gather slots.
Plan plan_with_device_updates_or_without(const PlanInputs& inputs) {
  PlanInputs by_cpu = inputs;
  by_cpu.settings.update_on = UpdateOn::kCpu;
  Plan without = Planner(by_cpu).run();
  if (inputs.device_shares_host_memory) return without;
  try {
    Plan with = Planner(inputs).run();
    if (with.gather_slots == without.gather_slots) return with;
  } catch (const Error& error) {
    if (error.code() != Code::kOutOfBudget) throw;
  }
  return without;
}
}  // namespace

Plan make_plan(const PlanInputs& inputs) {
  HEADRACE_CHECK(inputs.groups.size() == inputs.partition->group_sections.size(),
                 "traits for every group");
  if (inputs.settings.update_on == UpdateOn::kAuto)
    return plan_with_device_updates_or_without(inputs);
  if (inputs.settings.update_on == UpdateOn::kDevice && inputs.device_shares_host_memory) {
    throw Error(Code::kUnsupported,
                "headrace.update_on is \"device\", and the device is the CPU; nothing was "
                "allocated. Set it to \"cpu\", or train on a GPU.");
  }
  return Planner(inputs).run();
}

void leave_out_device_updates(Plan& plan) {
  plan.report.device_bytes -= plan.device_update_slots * plan.device_update_slot_bytes;
  std::erase_if(plan.report.rows, [](const PlanRow& row) { return row.what == kDeviceUpdateRow; });
  plan.update_on = UpdateOn::kCpu;
  plan.device_update_slots = 0;
}

std::uint64_t smallest_host_bytes(const PlanInputs& inputs) { return Planner(inputs).smallest(); }
}  // namespace headrace::residency
