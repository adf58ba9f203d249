// SPDX-License-Identifier: Apache-2.0
#include "tiles/gather_slots.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "tiles/device_passed.hpp"

namespace headrace::tiles {
using swap::Priority;

async::Task<> GatherSlots::until_filled(Slot& slot, const async::GiveUp* give_up) {
  while (slot.state == State::kFilling && !async::given_up(give_up)) co_await slot.filled.changed();
}

void GatherSlots::wake() noexcept {
  for (Slot& slot : slots_) slot.filled.wake();
}

GatherSlots::GatherSlots(const Parts& parts)
    : p_(parts),
      slots_(parts.plan.gather_slots),
      transfers_(parts.arena.range(parts.plan.transfer_slot_memory.offset_bytes,
                                   parts.plan.transfer_slot_memory.size_bytes),
                 parts.plan.transfer_slots, parts.plan.transfer_slot_bytes) {
  handed_over_.resize(p_.partition.tiles.size());
  section_offset_.resize(p_.partition.sections.size());
  for (const auto& sections : p_.partition.group_sections) {
    std::uint64_t at = 0;
    for (const std::uint32_t s : sections) {
      const partition::Section& section = p_.partition.sections[s];
      section_offset_[s] = at;
      at += base::align_up(section.buffer_elements * size_bytes(section.dtype), base::kIoAlignment);
    }
  }
  const std::uint64_t bytes = p_.plan.gather_slot_bytes, all_bytes = slots_.size() * bytes;
  std::byte* memory = nullptr;
  copies_ = p_.device.create_stream();
  if (p_.plan.gather_slot_memory.size_bytes > 0) {
    memory = p_.arena.range(p_.plan.gather_slot_memory.offset_bytes, all_bytes).data();
  } else if (all_bytes > 0) {
    memory = static_cast<std::byte*>(p_.device.allocate(all_bytes));
    if (memory == nullptr) {
      p_.device.destroy_stream(copies_);
      throw Error(Code::kOutOfBudget,
                  std::string("device ") + p_.device.name() + " has no room for " +
                      std::to_string(slots_.size()) + " gather slots of " +
                      base::format_bytes(bytes) +
                      ", as planned; nothing was trained. Set headrace.device_budget_bytes to what "
                      "is free there, or headrace.prefetch_groups to less");
    }
    device_bytes_ = all_bytes;
  }
  for (std::size_t b = 0; b < slots_.size(); ++b) slots_[b].memory = memory + b * bytes;
}

GatherSlots::~GatherSlots() {
  wait_quietly(copies_);
  if (device_bytes_ > 0) p_.device.deallocate(slots_.front().memory, device_bytes_);
  p_.device.destroy_stream(copies_);
}

std::optional<std::uint32_t> GatherSlots::find(GroupId group) const noexcept {
  for (std::uint32_t b = 0; b < slots_.size(); ++b) {
    if (slots_[b].state != State::kFree && slots_[b].group == group) return b;
  }
  return std::nullopt;
}

bool GatherSlots::likely_next(GroupId group) const noexcept {
  const std::size_t end = std::min(last_step_.size(), cursor_ + p_.prefetch_groups);
  return std::find(last_step_.begin() + static_cast<std::ptrdiff_t>(std::min(cursor_, end)),
                   last_step_.begin() + static_cast<std::ptrdiff_t>(end),
                   group) != last_step_.begin() + static_cast<std::ptrdiff_t>(end);
}

// A free slot, or one whose cached group nobody holds; with `keep_next` not one that is needed
// soon.
std::optional<std::uint32_t> GatherSlots::find_free(bool keep_next) const noexcept {
  std::optional<std::uint32_t> cached;
  for (std::uint32_t b = 0; b < slots_.size(); ++b) {
    const Slot& slot = slots_[b];
    if (slot.state == State::kFree && slot.leases == 0) return b;
    if (slot.state == State::kReady && slot.leases == 0 && !(keep_next && likely_next(slot.group)))
      cached = b;
  }
  return cached;
}

async::Task<std::uint32_t> GatherSlots::free_slot(GroupId wanted, const async::GiveUp* give_up) {
  for (;;) {
    std::optional<std::uint32_t> found = find_free(true);
    if (!found) found = find_free(false);
    if (found) {
      Slot& slot = slots_[*found];
      slot.state = State::kFree;
      slot.error = nullptr;
      co_return *found;
    }
    // A prefetch under way will be nobody's when it ends.
    Slot* filling = nullptr;
    for (Slot& slot : slots_) {
      if (slot.state == State::kFilling) filling = &slot;
    }
    if (filling == nullptr) break;
    co_await until_filled(*filling, give_up);
    if (async::given_up(give_up)) give_up->refuse();
  }
  std::string holders;
  for (const Slot& slot : slots_) {
    holders += (holders.empty() ? "'" : ", '") + p_.registry.group(slot.group).name + "'";
  }
  throw Error(Code::kOutOfBudget,
              "gather of group '" + p_.registry.group(wanted).name + "': all " +
                  std::to_string(slots_.size()) + " gather slots are leased, by " + holders +
                  "; release one first, or set headrace.prefetch_groups to more");
}

async::Task<GatherSlots::Acquired> GatherSlots::acquire(GroupId group,
                                                        const async::GiveUp* give_up) {
  record(group);
  std::optional<std::uint32_t> found = find(group);
  if (found) {
    prefetched_.fetch_add(1, std::memory_order_relaxed);
  } else {
    on_demand_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t free = co_await free_slot(group, give_up);
    found = find(group);  // another gather may have begun to fill one meanwhile
    if (!found) {
      found = free;
      start_fill(free, group, Priority::kDemand);
    }
  }
  Slot& slot = slots_[*found];
  // Held from here, so that no prefetch takes it while this call waits.
  slot.leases.fetch_add(1);
  prefetch();
  p_.updates.want(group);
  co_await until_filled(slot, give_up);
  if (slot.state == State::kFilling) {  // it goes on, as one that was read ahead
    slot.leases.fetch_sub(1);
    give_up->refuse();
  }
  if (slot.error) {
    const std::exception_ptr error = slot.error;
    if (slot.leases.fetch_sub(1) == 1) slot.error = nullptr;
    std::rethrow_exception(error);
  }
  // A fill that stalled, of any group, may have left this slot to a write yet to come.
  try {
    p_.tiles.refuse_after_stall("gather");
  } catch (...) {
    slot.leases.fetch_sub(1);
    throw;
  }
  co_return Acquired{*found, slot.updated};
}

async::Task<std::uint32_t> GatherSlots::claim_empty(GroupId group) {
  co_await forget(group);
  const std::uint32_t index = co_await free_slot(group);
  slots_[index].leases.fetch_add(1);
  slots_[index].group = group;
  co_return index;
}

void GatherSlots::wait_quietly(Stream stream) noexcept {
  try {
    p_.device.synchronize(stream);
  } catch (const std::exception&) {
    // Nothing more can be asked of a device that fails here.
  }
}

void GatherSlots::release(std::uint32_t index, Stream stream) noexcept {
  Slot& slot = slots_[index];
  if (!p_.device.shares_host_memory()) {
    // Where a stream cannot be marked it is waited for: it may be gone, and its work with it; a
    // device that has failed says so at the next fill.
    try {
      note_reader(slot, stream);
    } catch (const std::exception&) {
      wait_quietly(stream);
    }
  }
  slot.leases.fetch_sub(1);
}

// One event per stream: a later one covers what came before. Where there are too many streams, this
// one also waits for another's work and stands for both.
void GatherSlots::note_reader(Slot& slot, Stream stream) {
  const std::lock_guard lock(mutex_);
  Reader* const end = slot.readers.data() + slot.reader_count;
  Reader* reader = std::find_if(slot.readers.data(), end, [&](const Reader& other) {
    return other.stream.handle == stream.handle;
  });
  if (reader == slot.readers.data() + kReadersMax) {
    reader = slot.readers.data();
    p_.device.wait(stream, reader->event);
  }
  *reader = {stream, p_.device.record(stream)};
  if (reader == end) ++slot.reader_count;
}

void GatherSlots::wait_until_there(std::uint32_t index, Stream stream) {
  if (const Event there = slots_[index].there; there.id != 0) p_.device.wait(stream, there);
}

void GatherSlots::wait_for_readers(std::uint32_t index, Stream stream) {
  const std::lock_guard lock(mutex_);
  const Slot& slot = slots_[index];
  for (std::size_t r = 0; r < slot.reader_count; ++r) p_.device.wait(stream, slot.readers[r].event);
}

void GatherSlots::set_joined(std::uint32_t index, Stream stream) {
  slots_[index].there = p_.device.record(stream);
  slots_[index].joined = true;
}

void GatherSlots::start_fill(std::uint32_t index, GroupId group, Priority priority) {
  Slot& slot = slots_[index];
  slot.state = State::kFilling;
  slot.group = group;
  slot.joined = false;
  slot.there = {};
  slot.error = nullptr;
  slot.takes_update = p_.updates.passes_left(group);
  fills_.spawn(fill(index, priority));
}

async::Task<> GatherSlots::fill(std::uint32_t index, Priority priority) {
  Slot& slot = slots_[index];
  async::TaskGroup reads;
  std::exception_ptr error;
  try {
    if (!p_.device.shares_host_memory()) {
      wait_for_readers(index, copies_);
      const std::lock_guard lock(mutex_);
      slot.reader_count = 0;
    }
    if (slot.takes_update) {
      co_await take_update(slot.group);
      slot.updated = std::chrono::steady_clock::now();
      slot.takes_update = false;
    }
    for (const std::uint32_t section : p_.partition.group_sections[slot.group.index]) {
      co_await fill_section(index, section, priority, reads);
    }
  } catch (...) {
    error = std::current_exception();
  }
  try {
    co_await reads.join();
    if (!p_.device.shares_host_memory()) slot.there = p_.device.record(copies_);
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  slot.takes_update = false;
  if (error) forget_hand_overs(slot.group);
  slot.error = error;
  slot.state = error ? State::kFree : State::kReady;
  slot.filled.wake();
}

// Ends when the group's new weights are known: handed over, in memory, or on their way to NVMe.
async::Task<> GatherSlots::take_update(GroupId group) {
  p_.updates.expect(group);
  co_await p_.updates.until_passed(group, Waiting::kInTurn);
}

void GatherSlots::forget_hand_overs(GroupId group) noexcept {
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    std::fill_n(handed_over_.begin() + section.first_tile, section.tiles, 0);
  }
}

HandOver GatherSlots::hand_over_of(std::uint32_t tile) noexcept {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const partition::Section& section = p_.partition.sections[cut.section];
  if (p_.plan.sections[cut.section].weight != Tier::kNvme) return {};
  const auto found = std::ranges::find_if(slots_, [&](const Slot& slot) {
    return slot.takes_update && slot.group.index == section.group;
  });
  if (found == slots_.end()) return {};
  std::byte* const place =
      found->memory + section_offset_[cut.section] + cut.first_element * size_bytes(section.dtype);
  if (p_.device.shares_host_memory()) return {.by_pass = place};
  return {.by_device = place};
}

void GatherSlots::hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight) {
  if (to.by_device != nullptr) {
    const std::uint64_t bytes = p_.plan.tiles[tile].weight_bytes;
    p_.device.copy(copies_, to.by_device, weight, bytes);
    copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  handed_over_[tile] = 1;
}

async::Task<> GatherSlots::fill_section(std::uint32_t index, std::uint32_t section_index,
                                        Priority priority, async::TaskGroup& reads) {
  const partition::Section& section = p_.partition.sections[section_index];
  const std::uint64_t element_bytes = size_bytes(section.dtype);
  std::byte* const base = slots_[index].memory + section_offset_[section_index];
  if (p_.plan.sections[section_index].weight == Tier::kHost) {
    const std::uint64_t bytes = section.shard_elements * element_bytes;
    p_.device.copy(copies_, base + p_.partition.shard_first_element(section) * element_bytes,
                   p_.tiles.resident_weight(section_index), bytes);
    copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    co_return;
  }
  for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
    if (std::exchange(handed_over_[t], 0) != 0) continue;
    reads.spawn(fill_tile(t, base + p_.partition.tiles[t].first_element * element_bytes, priority));
  }
}

async::Task<> GatherSlots::fill_tile(std::uint32_t tile, std::byte* target, Priority priority) {
  const std::uint64_t bytes = p_.plan.tiles[tile].weight_bytes;
  co_await p_.updates.until_written(
      {p_.partition.sections[p_.partition.tiles[tile].section].group});
  if (p_.device.shares_host_memory()) {
    co_await p_.tiles.read_weight(tile, {target, bytes}, priority);
    co_return;
  }
  pinned::SlotLease slot = co_await transfers_.acquire();
  co_await p_.tiles.read_weight(tile, slot.bytes().first(bytes), priority);
  p_.device.copy(copies_, target, slot.bytes().data(), bytes);
  copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  co_await device_done();
}

async::Task<> GatherSlots::device_done() { return device_passed(p_.conductor, p_.device, copies_); }

// Keeps the trace and finds this gather in last step's.
void GatherSlots::record(GroupId group) {
  if (this_step_.size() < this_step_.capacity()) this_step_.push_back(group);
  for (std::size_t i = 0; i < last_step_.size(); ++i) {
    const std::size_t at = (cursor_ + i) % last_step_.size();
    if (last_step_[at] == group) {
      cursor_ = at + 1;
      return;
    }
  }
}

void GatherSlots::prefetch() {
  const std::size_t end = std::min(last_step_.size(), cursor_ + p_.prefetch_groups);
  for (std::size_t at = cursor_; at < end; ++at) {
    if (find(last_step_[at])) continue;
    const auto slot = find_free(true);
    if (!slot) return;
    start_fill(*slot, last_step_[at], Priority::kPrefetch);
  }
}

async::Task<> GatherSlots::forget(GroupId group) {
  if (const auto found = find(group)) {
    Slot& slot = slots_[*found];
    co_await until_filled(slot);
    if (slot.leases == 0 && slot.group == group) slot.state = State::kFree;
  }
  // A fill ends when its copies are queued; resident bytes are read until the device was there.
  if (!p_.device.shares_host_memory()) co_await device_done();
}

async::Task<> GatherSlots::invalidate() {
  co_await drain();
  for (Slot& slot : slots_) {
    if (slot.leases == 0) slot.state = State::kFree;
  }
}

void GatherSlots::next_step() {
  if (!this_step_.empty()) {
    std::swap(last_step_, this_step_);
    this_step_.clear();
  }
  // Room for the longest step expected: recording never allocates in a step.
  const std::size_t room = std::max<std::size_t>(4096, 2 * last_step_.size());
  if (this_step_.capacity() < room) this_step_.reserve(room);
  if (last_step_.capacity() < room) last_step_.reserve(room);
  cursor_ = 0;
  prefetch();
}

async::Task<> GatherSlots::drain() { co_await fills_.join(); }

std::optional<GroupId> GatherSlots::leased_group() const noexcept {
  for (const Slot& slot : slots_) {
    if (slot.leases.load() != 0) return slot.group;
  }
  return std::nullopt;
}

bool GatherSlots::is_leased(GroupId group) const noexcept {
  return std::ranges::any_of(
      slots_, [&](const Slot& slot) { return slot.leases.load() != 0 && slot.group == group; });
}

GatherCounters GatherSlots::counters() const noexcept {
  return {prefetched_.load(), on_demand_.load(), copied_bytes_.load()};
}
}  // namespace headrace::tiles
