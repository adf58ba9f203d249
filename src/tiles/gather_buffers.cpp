// SPDX-License-Identifier: Apache-2.0
#include "tiles/gather_buffers.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "tiles/device_passed.hpp"

namespace headrace::tiles {
using swap::Priority;

async::Task<> GatherBuffers::until_filled(Buffer& buffer, const async::GiveUp* give_up) {
  while (buffer.state == State::kFilling && !async::given_up(give_up))
    co_await buffer.filled.changed();
}

void GatherBuffers::wake() noexcept {
  for (Buffer& buffer : buffers_) buffer.filled.wake();
}

GatherBuffers::GatherBuffers(const Parts& parts)
    : p_(parts),
      buffers_(parts.plan.gather_slots),
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
  const std::uint64_t bytes = p_.plan.gather_slot_bytes, all_bytes = buffers_.size() * bytes;
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
                      std::to_string(buffers_.size()) + " gather slots of " +
                      base::format_bytes(bytes) +
                      ", as planned; nothing was trained. Set headrace.device_budget_bytes to what "
                      "is free there, or headrace.prefetch_groups to less");
    }
    device_bytes_ = all_bytes;
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) buffers_[b].memory = memory + b * bytes;
}

GatherBuffers::~GatherBuffers() {
  wait_quietly(copies_);
  if (device_bytes_ > 0) p_.device.deallocate(buffers_.front().memory, device_bytes_);
  p_.device.destroy_stream(copies_);
}

std::optional<std::uint32_t> GatherBuffers::find(GroupId group) const noexcept {
  for (std::uint32_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].state != State::kFree && buffers_[b].group == group) return b;
  }
  return std::nullopt;
}

bool GatherBuffers::likely_next(GroupId group) const noexcept {
  const std::size_t end = std::min(last_step_.size(), cursor_ + p_.prefetch_groups);
  return std::find(last_step_.begin() + static_cast<std::ptrdiff_t>(std::min(cursor_, end)),
                   last_step_.begin() + static_cast<std::ptrdiff_t>(end),
                   group) != last_step_.begin() + static_cast<std::ptrdiff_t>(end);
}

// A free buffer, or one whose cached group nobody holds; with `keep_next` not one that is needed
// soon.
std::optional<std::uint32_t> GatherBuffers::find_free(bool keep_next) const noexcept {
  std::optional<std::uint32_t> cached;
  for (std::uint32_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    if (buffer.state == State::kFree && buffer.leases == 0) return b;
    if (buffer.state == State::kReady && buffer.leases == 0 &&
        !(keep_next && likely_next(buffer.group)))
      cached = b;
  }
  return cached;
}

async::Task<std::uint32_t> GatherBuffers::free_buffer(GroupId wanted,
                                                      const async::GiveUp* give_up) {
  for (;;) {
    std::optional<std::uint32_t> found = find_free(true);
    if (!found) found = find_free(false);
    if (found) {
      Buffer& buffer = buffers_[*found];
      buffer.state = State::kFree;
      buffer.error = nullptr;
      co_return *found;
    }
    // A prefetch under way will be nobody's when it ends.
    Buffer* filling = nullptr;
    for (Buffer& buffer : buffers_) {
      if (buffer.state == State::kFilling) filling = &buffer;
    }
    if (filling == nullptr) break;
    co_await until_filled(*filling, give_up);
    if (async::given_up(give_up)) give_up->refuse();
  }
  std::string holders;
  for (const Buffer& buffer : buffers_) {
    holders += (holders.empty() ? "'" : ", '") + p_.registry.group(buffer.group).name + "'";
  }
  throw Error(Code::kOutOfBudget,
              "gather of group '" + p_.registry.group(wanted).name + "': all " +
                  std::to_string(buffers_.size()) + " gather buffers are leased, by " + holders +
                  "; release one first, or set headrace.prefetch_groups to more");
}

async::Task<GatherBuffers::Acquired> GatherBuffers::acquire(GroupId group,
                                                            const async::GiveUp* give_up) {
  record(group);
  std::optional<std::uint32_t> found = find(group);
  if (found) {
    prefetched_.fetch_add(1, std::memory_order_relaxed);
  } else {
    on_demand_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t free = co_await free_buffer(group, give_up);
    found = find(group);  // another gather may have begun to fill one meanwhile
    if (!found) {
      found = free;
      start_fill(free, group, Priority::kDemand);
    }
  }
  Buffer& buffer = buffers_[*found];
  // Held from here, so that no prefetch takes it while this call waits.
  buffer.leases.fetch_add(1);
  prefetch();
  p_.updates.want(group);
  co_await until_filled(buffer, give_up);
  if (buffer.state == State::kFilling) {  // it goes on, as one that was read ahead
    buffer.leases.fetch_sub(1);
    give_up->refuse();
  }
  if (buffer.error) {
    const std::exception_ptr error = buffer.error;
    if (buffer.leases.fetch_sub(1) == 1) buffer.error = nullptr;
    std::rethrow_exception(error);
  }
  // A fill that stalled, of any group, may have left this buffer to a write yet to come.
  try {
    p_.tiles.refuse_after_stall("gather");
  } catch (...) {
    buffer.leases.fetch_sub(1);
    throw;
  }
  co_return Acquired{*found, buffer.updated};
}

async::Task<std::uint32_t> GatherBuffers::claim_empty(GroupId group) {
  co_await forget(group);
  const std::uint32_t index = co_await free_buffer(group);
  buffers_[index].leases.fetch_add(1);
  buffers_[index].group = group;
  co_return index;
}

void GatherBuffers::wait_quietly(Stream stream) noexcept {
  try {
    p_.device.synchronize(stream);
  } catch (const std::exception&) {
    // Nothing more can be asked of a device that fails here.
  }
}

void GatherBuffers::release(std::uint32_t index, Stream stream) noexcept {
  Buffer& buffer = buffers_[index];
  if (!p_.device.shares_host_memory()) {
    // Where a stream cannot be marked it is waited for: it may be gone, and its work with it; a
    // device that has failed says so at the next fill.
    try {
      note_reader(buffer, stream);
    } catch (const std::exception&) {
      wait_quietly(stream);
    }
  }
  buffer.leases.fetch_sub(1);
}

// One event per stream: a later one covers what came before. Where there are too many streams, this
// one also waits for another's work and stands for both.
void GatherBuffers::note_reader(Buffer& buffer, Stream stream) {
  const std::lock_guard lock(mutex_);
  Reader* const end = buffer.readers.data() + buffer.reader_count;
  Reader* reader = std::find_if(buffer.readers.data(), end, [&](const Reader& other) {
    return other.stream.handle == stream.handle;
  });
  if (reader == buffer.readers.data() + kReadersMax) {
    reader = buffer.readers.data();
    p_.device.wait(stream, reader->event);
  }
  *reader = {stream, p_.device.record(stream)};
  if (reader == end) ++buffer.reader_count;
}

void GatherBuffers::wait_until_there(std::uint32_t index, Stream stream) {
  if (const Event there = buffers_[index].there; there.id != 0) p_.device.wait(stream, there);
}

void GatherBuffers::wait_for_readers(std::uint32_t index, Stream stream) {
  const std::lock_guard lock(mutex_);
  const Buffer& buffer = buffers_[index];
  for (std::size_t r = 0; r < buffer.reader_count; ++r)
    p_.device.wait(stream, buffer.readers[r].event);
}

void GatherBuffers::set_joined(std::uint32_t index, Stream stream) {
  buffers_[index].there = p_.device.record(stream);
  buffers_[index].joined = true;
}

void GatherBuffers::start_fill(std::uint32_t index, GroupId group, Priority priority) {
  Buffer& buffer = buffers_[index];
  buffer.state = State::kFilling;
  buffer.group = group;
  buffer.joined = false;
  buffer.there = {};
  buffer.error = nullptr;
  buffer.takes_update = p_.updates.passes_left(group);
  fills_.spawn(fill(index, priority));
}

async::Task<> GatherBuffers::fill(std::uint32_t index, Priority priority) {
  Buffer& buffer = buffers_[index];
  async::TaskGroup reads;
  std::exception_ptr error;
  try {
    if (!p_.device.shares_host_memory()) {
      wait_for_readers(index, copies_);
      const std::lock_guard lock(mutex_);
      buffer.reader_count = 0;
    }
    if (buffer.takes_update) {
      co_await take_update(buffer.group);
      buffer.updated = std::chrono::steady_clock::now();
      buffer.takes_update = false;
    }
    for (const std::uint32_t section : p_.partition.group_sections[buffer.group.index]) {
      co_await fill_section(index, section, priority, reads);
    }
  } catch (...) {
    error = std::current_exception();
  }
  try {
    co_await reads.join();
    if (!p_.device.shares_host_memory()) buffer.there = p_.device.record(copies_);
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  buffer.takes_update = false;
  if (error) forget_hand_overs(buffer.group);
  buffer.error = error;
  buffer.state = error ? State::kFree : State::kReady;
  buffer.filled.wake();
}

// Ends when the group's new weights are known: handed over, in memory, or on their way to NVMe.
async::Task<> GatherBuffers::take_update(GroupId group) {
  p_.updates.expect(group);
  co_await p_.updates.until_passed(group, Waiting::kInTurn);
}

void GatherBuffers::forget_hand_overs(GroupId group) noexcept {
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    std::fill_n(handed_over_.begin() + section.first_tile, section.tiles, 0);
  }
}

HandOver GatherBuffers::hand_over_of(std::uint32_t tile) noexcept {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const partition::Section& section = p_.partition.sections[cut.section];
  if (p_.plan.sections[cut.section].weight != Tier::kNvme) return {};
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.takes_update && buffer.group.index == section.group;
  });
  if (found == buffers_.end()) return {};
  std::byte* const place =
      found->memory + section_offset_[cut.section] + cut.first_element * size_bytes(section.dtype);
  if (p_.device.shares_host_memory()) return {.by_pass = place};
  return {.by_device = place};
}

void GatherBuffers::hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight) {
  if (to.by_device != nullptr) {
    const std::uint64_t bytes = p_.plan.tiles[tile].weight_bytes;
    p_.device.copy(copies_, to.by_device, weight, bytes);
    copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  handed_over_[tile] = 1;
}

async::Task<> GatherBuffers::fill_section(std::uint32_t index, std::uint32_t section_index,
                                          Priority priority, async::TaskGroup& reads) {
  const partition::Section& section = p_.partition.sections[section_index];
  const std::uint64_t element_bytes = size_bytes(section.dtype);
  std::byte* const base = buffers_[index].memory + section_offset_[section_index];
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

async::Task<> GatherBuffers::fill_tile(std::uint32_t tile, std::byte* target, Priority priority) {
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

async::Task<> GatherBuffers::device_done() {
  return device_passed(p_.conductor, p_.device, copies_);
}

// Keeps the trace and finds this gather in last step's.
void GatherBuffers::record(GroupId group) {
  if (this_step_.size() < this_step_.capacity()) this_step_.push_back(group);
  for (std::size_t i = 0; i < last_step_.size(); ++i) {
    const std::size_t at = (cursor_ + i) % last_step_.size();
    if (last_step_[at] == group) {
      cursor_ = at + 1;
      return;
    }
  }
}

void GatherBuffers::prefetch() {
  const std::size_t end = std::min(last_step_.size(), cursor_ + p_.prefetch_groups);
  for (std::size_t at = cursor_; at < end; ++at) {
    if (find(last_step_[at])) continue;
    const auto buffer = find_free(true);
    if (!buffer) return;
    start_fill(*buffer, last_step_[at], Priority::kPrefetch);
  }
}

async::Task<> GatherBuffers::forget(GroupId group) {
  if (const auto found = find(group)) {
    Buffer& buffer = buffers_[*found];
    co_await until_filled(buffer);
    if (buffer.leases == 0 && buffer.group == group) buffer.state = State::kFree;
  }
  // A fill ends when its copies are queued; resident bytes are read until the device was there.
  if (!p_.device.shares_host_memory()) co_await device_done();
}

async::Task<> GatherBuffers::invalidate() {
  co_await drain();
  for (Buffer& buffer : buffers_) {
    if (buffer.leases == 0) buffer.state = State::kFree;
  }
}

void GatherBuffers::next_step() {
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

async::Task<> GatherBuffers::drain() { co_await fills_.join(); }

std::optional<GroupId> GatherBuffers::leased_group() const noexcept {
  for (const Buffer& buffer : buffers_) {
    if (buffer.leases.load() != 0) return buffer.group;
  }
  return std::nullopt;
}

bool GatherBuffers::is_leased(GroupId group) const noexcept {
  return std::ranges::any_of(buffers_, [&](const Buffer& buffer) {
    return buffer.leases.load() != 0 && buffer.group == group;
  });
}

GatherCounters GatherBuffers::counters() const noexcept {
  return {prefetched_.load(), on_demand_.load(), copied_bytes_.load()};
}
}  // namespace headrace::tiles
