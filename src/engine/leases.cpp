// SPDX-License-Identifier: Apache-2.0
#include "engine/leases.hpp"

#include <algorithm>
#include <string>

#include "headrace/error.hpp"

namespace headrace::engine {
Leases::Leases(const Parts& parts)
    : p_(parts),
      in_place_(p_.registry.groups().size()),
      in_slots_(p_.registry.groups().size()),
      waits_(p_.registry.groups().size()),
      packed_(p_.plan, p_.device) {
  give_.reserve(p_.partition.world_size);
  take_.reserve(p_.partition.world_size);
  taking_.leases = this;
  taking_.run = [](async::Work* work) noexcept { static_cast<Take*>(work)->leases->run_take(); };
  if (ranks::SequenceRunner* const runner = p_.gradients.runner()) runner->use_slots(*this);
}

std::uint64_t Leases::bookkeeping_bytes(const partition::Partition& partition) noexcept {
  return partition.group_sections.size() * (2 * sizeof(std::atomic<std::uint32_t>) + sizeof(Wait)) +
         2 * partition.world_size * sizeof(DeviceSpan);
}

void Leases::Wait::add(Clock::time_point began, Clock::time_point updated,
                       Clock::time_point there) noexcept {
  ns.fetch_add(static_cast<std::uint64_t>((there - began).count()));
  update_ns.fetch_add(
      static_cast<std::uint64_t>((std::clamp(updated, began, there) - began).count()));
}

Gathered Leases::gather(GroupId group, Stream stream) {
  if (p_.registry.group(group).lends_weights) {
    throw Error(Code::kWrongState, "gather: group '" + p_.registry.group(group).name +
                                       "' lends its weights, so they are where lend_weights() "
                                       "said. Read them there.");
  }
  p_.values.require_whole(group, "gather");
  // Counted before it can fail: a request for the group predicts as much as a gather does.
  gathers_.fetch_add(1, std::memory_order_relaxed);
  p_.pending.note_use(group);
  const auto span = p_.calls.span("gather", group.index, p_.plan.group_bytes[group.index]);
  return p_.plan.group_in_place[group.index] ? lease_in_place(group, stream)
                                             : lease_slot(group, stream);
}

Gathered Leases::lease_in_place(GroupId group, Stream stream) {
  gathers_in_place_.fetch_add(1, std::memory_order_relaxed);
  if (p_.pending.passes_left(group)) {  // else not even the clock is read
    const auto began = Clock::now();
    p_.calls.until_passed(group, "gather");
    const auto updated = Clock::now();
    waits_[group.index].add(began, updated, updated);
  }
  p_.failure.throw_if_ended("gather");
  in_place_[group.index].fetch_add(1);
  return Gathered(this, group, kInPlace, stream);
}

Gathered Leases::lease_slot(GroupId group, Stream stream) {
  auto began = Clock::now();
  if (p_.partition.world_size > 1) {
    if (auto lease = lease_joined(group, stream, began)) return std::move(*lease);
    began = Clock::now();
  }
  const auto [slot, updated] = p_.calls.run_patiently("gather", [&](const async::GiveUp* give_up) {
    return p_.gather_slots.acquire(group, give_up);
  });
  waits_[group.index].add(began, updated, Clock::now());
  in_slots_[group.index].fetch_add(1);
  Gathered lease(this, group, slot, stream);  // from here it is given back whatever happens
  p_.failure.throw_if_ended("gather");
  if (p_.partition.world_size > 1) {
    meet_and_join(lease);
  } else {
    p_.gather_slots[slot].wait_until_there(stream);
  }
  return lease;
}

std::optional<Gathered> Leases::lease_joined(GroupId group, Stream stream,
                                             Clock::time_point began) {
  const auto one_at_a_time = p_.ranks.lock();
  const ranks::WaitedFor& for_others = p_.gradients.waits().gather;
  const auto before = for_others.spent();
  const std::optional<std::uint32_t> slot = p_.gradients.begin_gather(group);
  if (!slot) return std::nullopt;
  // Without what is counted as gather_wait_ranks_seconds.
  waits_[group.index].add(began, began, Clock::now() - (for_others.spent() - before));
  in_slots_[group.index].fetch_add(1);
  Gathered lease(this, group, *slot, stream);
  p_.failure.throw_if_ended("gather");
  p_.gather_slots[*slot].wait_until_there(stream);
  return lease;
}

// The other ranks' shards. Every gather meets them, joined already or not: which slots still hold
// a group depends on time and on leases, so it differs between ranks.
void Leases::meet_and_join(const Gathered& lease) {
  const auto one_at_a_time = p_.ranks.lock();
  const ranks::WaitedFor::Span span(p_.gradients.waits().gather);
  const ranks::RankAgreement agreed =
      p_.gradients.meet_for_gather(lease.group_, lacks(lease.slot_));
  join(lease.slot_, lease.group_, agreed.joins[0], lease.stream_);
  p_.gradients.end_gather(lease.group_, agreed);
}

void Leases::start_to_take(GroupId group, Taker& taker) noexcept {
  taking_.group = group;
  taking_.taker = &taker;
  p_.calls.post(taking_);
}

void Leases::run_take() noexcept {
  try {
    p_.gather_slots.run_until_drained(take(taking_.group));
  } catch (const std::exception&) {  // no memory for it
    taking_.taker->taken(std::nullopt);
  }
}

async::Task<> Leases::take(GroupId group) {
  std::optional<std::uint32_t> slot;
  try {
    if (p_.gather_slots.has_room(group)) slot = (co_await p_.gather_slots.acquire(group)).slot;
  } catch (const std::exception&) {
    // The trainer's own gather finds it again, and throws it.
  }
  taking_.taker->taken(slot);
}

ranks::Join Leases::lacks(std::uint32_t slot) const noexcept {
  if (p_.gather_slots[slot].joined()) return ranks::Join::kNone;
  return p_.gather_slots[slot].has_node_shard() ? ranks::Join::kWithinNode : ranks::Join::kAll;
}

void Leases::join(std::uint32_t index, GroupId group, ranks::Join what, Stream stream) {
  p_.ranks.carry_out([&] { join_agreed(index, group, what, stream); });
}

void Leases::join_agreed(std::uint32_t index, GroupId group, ranks::Join what, Stream stream) {
  tiles::GatherSlot& slot = p_.gather_slots[index];
  // Another rank has slept, and lost what it kept for its node.
  if (what == ranks::Join::kAll && !slot.joined() && slot.has_node_shard())
    p_.calls.run_apart([&] { return p_.gather_slots.add_own_shard(index); });
  slot.wait_until_there(stream);
  if (what == ranks::Join::kNone) return;
  // Joined again for another rank: the same bytes once more, but not while they are read.
  if (slot.joined()) slot.wait_for_readers(stream);
  for (const std::uint32_t s : p_.partition.group_sections[group.index])
    join_section(s, group, what, slot.memory() + p_.plan.sections[s].joined_offset_bytes, stream);
  tiles::NodeShards& nodes = p_.gather_slots.node_shards();
  if (nodes.used() && !nodes.holds(group)) nodes.keep(group, slot.memory(), stream);
  slot.set_joined(stream);  // only now: a gather that failed is joined again
}

void Leases::join_section(std::uint32_t index, GroupId group, ranks::Join what, std::byte* memory,
                          Stream stream) {
  const partition::Section& section = p_.partition.sections[index];
  const std::uint64_t element_bytes = size_bytes(section.dtype);
  const auto span_of = [&](const partition::Shard& shard) {
    return DeviceSpan{memory + shard.first_element * element_bytes, shard.elements * element_bytes};
  };
  const bool packs = p_.plan.wire.packs(section) && what == ranks::Join::kAll;
  const auto passed = [&](const partition::Shard& shard) {
    return packs ? packed_.packed(shard) : span_of(shard);
  };
  if (packs) {
    packed_.begin(section, memory, p_.gather_slots.packed_memory(), stream);
    packed_.pack(section.shard);
  }
  if (p_.plan.node_ranks == 0) {
    give_.clear();
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r)
      give_.push_back(passed(p_.partition.shard_of(section, r)));
    p_.ranks.collective().all_gather(p_.ranks.next("gather of ", group), stream, give_);
  } else if (what == ranks::Join::kAll) {
    spread_to_nodes(section, group, passed, stream);
  }
  if (packs) unpack_taken(section);
  if (p_.plan.node_ranks > 0) join_within_node(section, group, span_of, stream);
}

// This rank's own shard, too, if it is among them; else it comes from the rank that keeps it.
void Leases::unpack_taken(const partition::Section& section) {
  for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
    if (p_.plan.node_ranks == 0 || keeps(p_.partition.rank, r))
      packed_.unpack(p_.partition.shard_of(section, r));
  }
  packed_.end();
}

// With nodes: whether a rank keeps the shard of another for its node.
bool Leases::keeps(std::uint32_t rank, std::uint32_t shard) const noexcept {
  const std::uint32_t nodes = p_.partition.world_size / p_.plan.node_ranks;
  return rank % p_.plan.node_ranks == shard / nodes;
}

// Each shard goes to one rank of every node: the one that keeps it for its node.
template <class SpanOf>
void Leases::spread_to_nodes(const partition::Section& section, GroupId group,
                             const SpanOf& span_of, Stream stream) {
  const std::uint32_t world = p_.partition.world_size, own = p_.partition.rank;
  give_.assign(world, {});
  take_.assign(world, {});
  for (std::uint32_t r = 0; r < world; ++r) {
    if (keeps(r, own)) give_[r] = span_of(p_.partition.shard_of(section, own));
    if (keeps(own, r)) take_[r] = span_of(p_.partition.shard_of(section, r));
  }
  p_.ranks.collective().all_to_all_v(
      p_.ranks.next("gather across nodes of ", group), stream, give_, take_,
      p_.plan.wire.parameter_bytes(section, p_.partition.largest_shard_elements(section)));
}

template <class SpanOf>
void Leases::join_within_node(const partition::Section& section, GroupId group,
                              const SpanOf& span_of, Stream stream) {
  const std::uint32_t node_ranks = p_.plan.node_ranks, index = p_.partition.rank % node_ranks;
  const std::uint32_t first = p_.partition.rank - index;
  const DeviceSpan own = span_of(p_.partition.node_shard(section, index, node_ranks));
  std::uint64_t largest = 0;
  give_.assign(p_.partition.world_size, {});
  take_.assign(p_.partition.world_size, {});
  for (std::uint32_t i = 0; i < node_ranks; ++i) {
    give_[first + i] = own;
    take_[first + i] = span_of(p_.partition.node_shard(section, i, node_ranks));
    largest = std::max<std::uint64_t>(largest, take_[first + i].size_bytes);
  }
  p_.ranks.collective().all_to_all_v(p_.ranks.next("gather within nodes of ", group), stream, give_,
                                     take_, largest);
}

void Leases::give_back(std::uint32_t slot, Stream stream) noexcept {
  p_.gather_slots[slot].release(stream);
}

void Leases::release(GroupId group, std::uint32_t slot, Stream stream) noexcept {
  if (slot == kInPlace) {
    in_place_[group.index].fetch_sub(1);
    return;
  }
  p_.gather_slots[slot].release(stream);
  in_slots_[group.index].fetch_sub(1);
  if (ranks::SequenceRunner* const runner = p_.gradients.runner()) runner->note_release();
}

DeviceSpan Leases::section(const Gathered& lease, DType dtype) const {
  for (const std::uint32_t s : p_.partition.group_sections[lease.group_.index]) {
    const partition::Section& section = p_.partition.sections[s];
    if (section.dtype != dtype) continue;
    // The first of them, with those behind it.
    const std::uint64_t bytes =
        p_.partition.buffer_elements(lease.group_.index, dtype) * size_bytes(dtype);
    if (lease.slot_ == kInPlace)
      return {const_cast<std::byte*>(p_.tiles.resident_weight(s)), bytes};
    return {p_.gather_slots[lease.slot_].memory() + p_.plan.sections[s].joined_offset_bytes, bytes};
  }
  return {};
}

DeviceSpan Leases::bytes(const Gathered& lease, ParameterId id) const {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  if (lease.leases_ != this || !(parameter.group == lease.group_)) {
    throw Error(Code::kInvalidArgument,
                "'" + parameter.full_name + "' is not in the gathered group");
  }
  const DeviceSpan whole = section(lease, parameter.spec.dtype);
  const std::uint64_t first = p_.partition.first_in_buffer(p_.partition.parameters[id.index]);
  const std::uint64_t element_bytes = size_bytes(parameter.spec.dtype);
  return {static_cast<std::byte*>(whole.data) + first * element_bytes,
          parameter.spec.elements() * element_bytes};
}

std::optional<GroupId> Leases::leased_group() const noexcept {
  for (std::uint32_t g = 0; g < in_place_.size(); ++g) {
    if (leased_in_place({g})) return GroupId{g};
  }
  return leased_in_slot();
}

// Not those that the ranks have joined ahead.
std::optional<GroupId> Leases::leased_in_slot() const noexcept {
  for (std::uint32_t g = 0; g < in_slots_.size(); ++g) {
    if (in_slots_[g].load() != 0) return GroupId{g};
  }
  return std::nullopt;
}

void Leases::end_gathers() const noexcept {
  if (ranks::SequenceRunner* const runner = p_.gradients.runner()) runner->end_gathers();
}

void Leases::refuse(GroupId leased, const char* call) const {
  throw Error(Code::kWrongState, std::string(call) + ": group '" + p_.registry.group(leased).name +
                                     "' is still gathered; release it first");
}
// Refuse first: a call that is refused here leaves what the ranks have joined ahead as it is.
void Leases::refuse_any(const char* call) const {
  refuse_open(call);
  end_gathers();
}
void Leases::refuse_open(const char* call) const {
  if (const auto leased = leased_group()) refuse(*leased, call);
}
void Leases::refuse_any_in_slot(const char* call) const {
  if (const auto leased = leased_in_slot()) refuse(*leased, call);
  end_gathers();
}
void Leases::refuse_in_slot(GroupId group, const char* call) const {
  if (in_slots_[group.index].load() != 0) refuse(group, call);
  end_gathers();
}

void Leases::add_stats(Stats& stats) const {
  stats.gathers = gathers_.load();
  stats.gathers_in_place = gathers_in_place_.load();
  for (std::uint32_t g = 0; g < waits_.size(); ++g) {
    const std::uint64_t ns = waits_[g].ns.load();
    if (ns == 0) continue;
    stats.waits.push_back({p_.registry.groups()[g].name, 1e-9 * static_cast<double>(ns),
                           1e-9 * static_cast<double>(waits_[g].update_ns.load())});
    stats.gather_wait_seconds += stats.waits.back().seconds;
    stats.gather_wait_update_seconds += stats.waits.back().update_seconds;
  }
  std::ranges::sort(stats.waits, std::ranges::greater(), &GroupWait::seconds);
}
}  // namespace headrace::engine
