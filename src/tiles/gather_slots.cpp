// SPDX-License-Identifier: Apache-2.0
#include "tiles/gather_slots.hpp"

#include <algorithm>
#include <exception>
#include <string>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::tiles {
using swap::Priority;

GatherSlots::GatherSlots(const Parts& parts)
    : p_(parts),
      device_memory_(p_.device,
                     p_.plan.gather_slot_memory.size_bytes > 0
                         ? 0
                         : p_.plan.gather_bytes + p_.plan.packed_bytes,
                     std::to_string(p_.plan.gather_slots) + " gather slots of " +
                         (p_.plan.slot_per_group ? "up to " : "") +
                         base::format_bytes(p_.plan.gather_slot_bytes),
                     p_.plan.slot_per_group
                         ? "Free device memory, or let fewer parameters stay there: set "
                           "zero_optimization.stage to 3 and offload_param.device to cpu or nvme"
                         : "Set headrace.device_budget_bytes to what is free there, or "
                           "headrace.prefetch_groups to less"),
      copies_(p_.device, p_.conductor),
      hand_overs_(p_.partition, p_.plan, p_.device.shares_host_memory() ? nullptr : &copies_),
      node_shards_(p_.partition, p_.plan, p_.arena, p_.device),
      group_fill_({p_.partition, p_.plan, p_.arena, p_.tiles, p_.pending, hand_overs_, node_shards_,
                   copies_, p_.device.shares_host_memory()}),
      order_(p_.prefetch_groups) {
  std::uint32_t next = 0;
  for (const bool in_place : p_.plan.group_in_place) {
    if (p_.plan.slot_per_group) own_slots_.push_back(in_place ? 0 : next++);
  }
  make_slots();
}

void GatherSlots::make_slots() {
  std::byte* const memory = device_bytes() > 0
                                ? device_memory_.data()
                                : p_.arena.range(p_.plan.gather_slot_memory.offset_bytes, 0).data();
  for (const std::uint64_t offset : p_.plan.gather_slot_offset_bytes)
    slots_.emplace_back(p_.device, memory + offset);
}

std::byte* GatherSlots::packed_memory() const noexcept {
  if (device_bytes() > 0) return device_memory_.data() + p_.plan.gather_bytes;
  return p_.arena.range(p_.plan.packed_memory.offset_bytes, 0).data();
}

std::optional<std::uint32_t> GatherSlots::find(GroupId group) const noexcept {
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].holds(group)) return s;
  }
  return std::nullopt;
}

// The group's own slot. Or a free one, or one whose cached group nobody holds; with `keep_next` not
// one that is needed soon.
std::optional<std::uint32_t> GatherSlots::find_free(GroupId wanted, bool keep_next) const noexcept {
  if (!own_slots_.empty()) {
    const std::uint32_t own = own_slots_[wanted.index];
    if (slots_[own].leased() || slots_[own].filling()) return std::nullopt;
    return own;
  }
  std::optional<std::uint32_t> cached;
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    const GatherSlot& slot = slots_[s];
    if (slot.leased() || slot.filling()) continue;
    if (slot.is_free()) return s;
    if (!keep_next || !order_.expects(slot.group())) cached = s;
  }
  return cached;
}

async::Task<std::uint32_t> GatherSlots::free_slot(GroupId wanted, const async::GiveUp* give_up) {
  for (;;) {
    std::optional<std::uint32_t> found = find_free(wanted, true);
    if (!found) found = find_free(wanted, false);
    if (found) {
      slots_[*found].drop();
      co_return *found;
    }
    // A fill under way that nobody has leased leaves its slot to this gather. After one that is
    // leased, this looks again.
    GatherSlot* filling = nullptr;
    for (GatherSlot& slot : slots_) {
      if (slot.filling()) filling = &slot;
    }
    if (filling == nullptr) refuse_all_leased(wanted);
    co_await filling->until_filled(give_up);
    if (async::given_up(give_up)) give_up->refuse();
  }
}

void GatherSlots::refuse_all_leased(GroupId wanted) const {
  std::string holders;
  for (const GatherSlot& slot : slots_)
    holders += (holders.empty() ? "'" : ", '") + p_.registry.group(slot.group()).name + "'";
  throw Error(Code::kOutOfBudget,
              "gather of group '" + p_.registry.group(wanted).name + "': all " +
                  std::to_string(slots_.size()) + " gather slots are leased, by " + holders +
                  "; release one first, or set headrace.prefetch_groups to more");
}

bool GatherSlots::has_room(GroupId group) const noexcept {
  return find(group) || find_free(group, false) ||
         std::ranges::any_of(slots_, [](const GatherSlot& slot) { return slot.filling(); });
}

async::Task<GatherSlots::Acquired> GatherSlots::acquire(GroupId group,
                                                        const async::GiveUp* give_up) {
  order_.note(group);
  std::optional<std::uint32_t> found = find(group);
  (found ? found_ : on_demand_).fetch_add(1, std::memory_order_relaxed);
  if (!found) {
    const std::uint32_t free = co_await free_slot(group, give_up);
    found = find(group);  // another gather may have begun to fill one meanwhile
    if (!found) start_fill(free, group, Priority::kDemand);
    if (!found) found = free;
  }
  GatherSlot& slot = slots_[*found];
  slot.lease();  // from here, so that no prefetch takes it while this call waits
  try {
    prefetch();
    p_.pending.want(group);
    co_await slot.until_filled(give_up);
    if (slot.filling()) give_up->refuse();
    if (slot.error()) std::rethrow_exception(slot.error());
    // A fill that stalled, of any group, may have left this slot to a write yet to come.
    p_.tiles.refuse_after_stall("gather");
  } catch (...) {
    slot.give_back();
    throw;
  }
  co_return Acquired{*found, slot.updated()};
}

async::Task<std::uint32_t> GatherSlots::claim_empty(GroupId group) {
  co_await forget(group);
  const std::uint32_t index = co_await free_slot(group);
  slots_[index].lease_empty(group);
  co_return index;
}

void GatherSlots::start_fill(std::uint32_t index, GroupId group, Priority priority) {
  slots_[index].begin_fill(group);
  fills_.spawn(group_fill_.run(slots_[index], priority));
}

void GatherSlots::prefetch() {
  for (const GroupId group : order_.expected()) {
    if (find(group)) continue;
    const auto slot = find_free(group, true);
    if (!slot) return;
    start_fill(*slot, group, Priority::kPrefetch);
  }
}

async::Task<> GatherSlots::forget(GroupId group) {
  node_shards_.forget(group);
  if (const auto found = find(group)) {
    GatherSlot& slot = slots_[*found];
    co_await slot.until_filled();
    if (!slot.leased() && slot.group() == group) slot.drop();
  }
  // A fill ends when its copies are queued; resident bytes are read until the device was there.
  if (!p_.device.shares_host_memory()) co_await copies_.until_done();
}

async::Task<> GatherSlots::invalidate() {
  co_await drain();
  node_shards_.forget_all();
  for (GatherSlot& slot : slots_) {
    if (!slot.leased()) slot.drop();
  }
  // As in forget().
  if (!p_.device.shares_host_memory()) co_await copies_.until_done();
}

void GatherSlots::release_memory() noexcept {
  for (GatherSlot& slot : slots_) slot.wait_for_readers(copies_.get());
  copies_.synchronize_quietly();
  slots_.clear();
  device_memory_.release();
}

void GatherSlots::take_memory() {
  device_memory_.take();
  if (slots_.empty()) make_slots();
}

void GatherSlots::next_step() {
  order_.next_step();
  prefetch();
}

void GatherSlots::wake() noexcept {
  for (GatherSlot& slot : slots_) slot.wake();
}

GatherCounters GatherSlots::counters() const noexcept {
  return {found_.load(), on_demand_.load(), copies_.copied_bytes()};
}
}  // namespace headrace::tiles
