// SPDX-License-Identifier: Apache-2.0
#include "residency/plan.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "residency/layout.hpp"
#include "residency/plan_refusals.hpp"

namespace headrace::residency {
namespace {
using base::align_up;

// 0 .. count - 1 by their bits read backwards: every beginning of it is spread evenly.
std::vector<std::size_t> spread(std::size_t count) {
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

// Whether anything is read from a drive. A store's copies of what is in memory are not.
bool moves(const Plan& plan) {
  return std::ranges::any_of(plan.sections,
                             [](const SectionPlan& one) { return one.weight == Tier::kNvme; }) ||
         std::ranges::any_of(plan.tiles,
                             [](const TilePlan& one) { return one.record == Tier::kNvme; });
}

// The room that an arena has left. Slots that shrink with it are not counted.
class Room {
 public:
  Room(const Plan& plan, std::uint64_t room)
      : arena_(plan.arena_used_bytes),
        rest_(plan.report.host_bytes - plan.arena_bytes),
        room_(room) {}
  // Whether so much more fits; it is taken then.
  bool fits(std::uint64_t more) {
    arena_ += more;
    return align_up(arena_, base::kHugePage) + rest_ <= room_;
  }

 private:
  std::uint64_t arena_, rest_, room_;
};

// Chooses residents and slots: the most that the budgets have room for.
class Planner {
 public:
  explicit Planner(const PlanInputs& inputs) : in_(inputs), part_(*inputs.partition) {
    const Settings& s = in_.settings;
    gather_slots_ = s.prefetch_groups + 1;
    // Ranks that follow an order reduce one while the trainer fills the other.
    if (s.rank_agreement == RankOrder::kTrace) buckets_ = Plan::kMostBuckets;
    choice_.record_resident.assign(part_.tiles.size(), s.offload_optimizer != OffloadDevice::kNvme);
    const bool resident = s.offload_parameters != OffloadDevice::kNvme;
    for (const GroupTraits& group : in_.groups)
      choice_.weight_resident.push_back(resident || group.weights_stay());
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
      refuse_host(in_, choice_, plan_of(moving == smallest ? choice_ : all_resident()), limit);
    // What the budget must be so that all stays in memory.
    const std::uint64_t for_all =
        resident <= moving ? resident : host_bytes(with_slots(all_resident(), 0));
    if (limit != 0 && for_all <= limit) choice_ = all_resident();
    if (widen(limit != 0 ? limit : ceiling) && limit != 0) fill(limit);
    Plan plan = plan_of(choice_);
    if (ceiling != 0 && plan.report.host_bytes > ceiling) refuse_beyond_machine(in_, plan, limit);
    if (moves(plan) && plan.report.host_bytes > for_all)
      plan.warning = larger_than_resident(plan, for_all);
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
    all.weight_resident.assign(all.weight_resident.size(), true);
    all.record_resident.assign(all.record_resident.size(), true);
    return all;
  }
  std::uint64_t host_bytes(const Choice& choice) const {
    return lay_out(in_, choice).report.host_bytes;
  }
  Plan plan_of(const Choice& choice) const;
  void fit_device();
  Choice with_slots(Choice choice, std::uint32_t give_up) const;
  bool widen(std::uint64_t room);
  void fill(std::uint64_t room);
  void keep_records(Room left);
  void keep_weights(Room left);

  const PlanInputs& in_;
  const partition::Partition& part_;
  Choice choice_;
  // At most: the settings', and those that the device's budget has room for.
  std::uint32_t gather_slots_ = 0, buckets_ = 1;
};

Plan Planner::plan_of(const Choice& choice) const {
  Plan plan = lay_out(in_, choice);
  add_traffic(plan, in_);
  std::vector<DriveInputs> drives = in_.drives;
  if (drives.empty()) drives.resize(std::max<std::size_t>(1, in_.settings.nvme_paths.size()));
  deal_again(plan, part_, in_.settings.nvme_paths, drives);
  plan.report.parameters = part_.parameter_elements;
  plan.report.gather_slots = plan.gather_slots;
  return plan;
}

// As many gather slots as are asked for and the device has room for. Two of these are worth
// more than a second bucket. Throws where one slot is too many.
void Planner::fit_device() {
  const std::uint64_t budget = in_.settings.device_budget_bytes;
  if (in_.device_shares_host_memory) return;
  const std::uint64_t left = in_.device_left_bytes;
  if (left > 0 && lay_out(in_, with_slots(choice_, 0)).report.device_bytes > left) buckets_ = 1;
  if (budget == 0) return;
  const std::uint32_t asked = gather_slots_;
  for (;; --gather_slots_) {
    const Plan plan = lay_out(in_, with_slots(choice_, 0));
    if (plan.report.device_bytes <= budget) return;
    if (buckets_ > 1 && gather_slots_ <= 2) {
      buckets_ = 1;
      gather_slots_ = asked + 1;
    }
    if (gather_slots_ == 1) refuse_device(in_, plan);
  }
}

Choice Planner::with_slots(Choice choice, std::uint32_t give_up) const {
  const std::uint32_t update = in_.settings.update_slots;
  choice.update_slots = update > give_up ? update - give_up : 1;
  choice.gather_slots = gather_slots_ > give_up ? gather_slots_ - give_up : 1;
  choice.buckets = buckets_ > give_up ? buckets_ - give_up : 1;
  return choice;
}

// As many slots as the settings ask for and the room allows: overlap before residency. Whether it
// has room for all of them.
bool Planner::widen(std::uint64_t room) {
  const std::uint32_t most = std::max(in_.settings.update_slots, gather_slots_);
  for (std::uint32_t give_up = 0; give_up < most; ++give_up) {
    Choice next = with_slots(choice_, give_up);
    if (room != 0 && host_bytes(next) > room) continue;
    choice_ = std::move(next);
    return give_up == 0;
  }
  return false;
}

// Keeps in memory what the budget has room for, the longest beginning of one order: parameters,
// and where all of them fit, state. That all of that fits too has been ruled out.
//
// Example: a model of 8 groups of 1 GiB of weights and 5 GiB of state each. 3 GiB beyond the slots
// keep the weights of three groups; 13 GiB keep all weights, and the state of every eighth tile.
void Planner::fill(std::uint64_t room) {
  Choice all = choice_;
  all.weight_resident.assign(all.weight_resident.size(), true);
  Room left(lay_out(in_, all), room);
  if (!left.fits(0)) return keep_weights(Room(lay_out(in_, choice_), room));
  choice_ = std::move(all);
  keep_records(left);
}

void Planner::keep_records(Room left) {
  for (const std::size_t t : spread(part_.tiles.size())) {
    const partition::Section& section = part_.section_of(static_cast<std::uint32_t>(t));
    if (choice_.record_resident[t] || section.frozen) continue;
    const auto streams = optimizer_cpu::state_streams(in_.settings, section.dtype);
    const Tier laid = in_.durable() ? Tier::kNvme : Tier::kHost;
    if (!left.fits(record_layout(streams, part_.tiles[t].elements, laid).size_bytes)) return;
    choice_.record_resident[t] = true;
  }
}

// The smallest group first, so that one large group holds up no other; equal ones spread out, so
// that between two that are fetched there is one that is not.
void Planner::keep_weights(Room left) {
  std::vector<std::uint64_t> bytes(in_.groups.size(), 0), aligned(in_.groups.size(), 0);
  for (const partition::Section& section : part_.sections) {
    const std::uint64_t one = section.shard.elements * size_bytes(section.dtype);
    bytes[section.group] += one;
    aligned[section.group] += align_up(one, base::kIoAlignment);
  }
  std::vector<std::size_t> order = spread(in_.groups.size());
  std::ranges::stable_sort(order, {}, [&](std::size_t g) { return bytes[g]; });
  for (const std::size_t g : order) {
    if (choice_.weight_resident[g]) continue;
    if (!left.fits(aligned[g])) return;
    choice_.weight_resident[g] = true;
  }
}

// With "auto", the device updates if it has room for update slots beside the gather slots.
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
  refuse_nodes(inputs);
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

std::vector<Range> living_ranges(const Plan& plan) {
  std::vector<Range> ranges;
  const auto add = [&](const Range& range) {
    if (range.size_bytes > 0) ranges.push_back(range);
  };
  for (const SectionPlan& section : plan.sections) add(section.resident_weight);
  for (const TilePlan& tile : plan.tiles) add(tile.resident_record);
  add(plan.commit_record);
  return ranges;
}
}  // namespace headrace::residency
