// SPDX-License-Identifier: Apache-2.0
// leases.cpp: gather and what it hands out: resident bytes, or a buffer in which the ranks' shards
// are joined.
#include <unistd.h>

#include <chrono>
#include <string>

#include "engine/engine_core.hpp"

namespace headrace {
using Clock = std::chrono::steady_clock;

Gathered EngineCore::gather(GroupId group, Stream stream) {
  Frozen& f = ready("gather");
  registry_.group(group);
  require_loaded(f, group, "gather");
  gathers_.fetch_add(1, std::memory_order_relaxed);
  f.pending->note_use(group);
  const auto span = trainer_span("gather", group.index, f.plan.group_bytes[group.index]);
  if (f.plan.group_in_place[group.index]) {
    in_place_.fetch_add(1, std::memory_order_relaxed);
    if (f.pending->passes_left(group)) {
      const auto began = Clock::now();
      until_passed(group, "gather");
      const auto updated = Clock::now();
      f.waits[group.index].add(began, updated, updated);
    }
    refuse_ended("gather");
    f.in_place_leases[group.index].fetch_add(1);
    return Gathered(this, group, kInPlace, stream);
  }
  const auto began = Clock::now();
  const auto [buffer, updated] = patiently(
      "gather", [&](const engine::GiveUp* give_up) { return f.buffers->acquire(group, give_up); });
  f.waits[group.index].add(began, updated, Clock::now());
  Gathered lease(this, group, buffer,
                 stream);  // from here the buffer is given back whatever happens
  refuse_ended("gather");
  if (f.partition.world_size > 1) {
    join(f, lease);
  } else {
    f.buffers->wait_until_there(buffer, stream);
  }
  return lease;
}

// The other ranks' shards. Every gather meets them, joined already or not: which buffers still hold
// a group hangs on time and on leases, so it differs between ranks.
void EngineCore::join(Frozen& f, const Gathered& lease) {
  const auto one_at_a_time = f.ranks.lock();
  const std::uint32_t buffer = lease.slot_;
  const bool joined = f.buffers->joined(buffer);
  const engine::RankAgreement agreed =
      f.gradients->meet({engine::RankCall::Kind::kGather, lease.group_, !joined});
  f.buffers->wait_until_there(buffer, lease.stream_);
  if (!agreed.join) return;
  // Joined again for another rank: the same bytes once more, but not while they are read.
  if (joined) f.buffers->wait_for_readers(buffer, lease.stream_);
  const std::string what = "gather of " + registry_.group(lease.group_).name;
  for (const std::uint32_t s : f.partition.group_sections[lease.group_.index]) {
    const partition::Section& section = f.partition.sections[s];
    collective_->all_gather(f.ranks.next(what), lease.stream_,
                            {f.buffers->memory(buffer) + f.buffers->section_offset_bytes(s),
                             section.buffer_elements * size_bytes(section.dtype)});
  }
  f.buffers->set_joined(buffer, lease.stream_);  // only now: a gather that failed is joined again
}

void EngineCore::release(GroupId group, std::uint32_t buffer, Stream stream) noexcept {
  if (!frozen_) return;
  if (buffer == kInPlace) {
    frozen_->in_place_leases[group.index].fetch_sub(1);
  } else {
    frozen_->buffers->release(buffer, stream);
  }
}

DeviceSpan EngineCore::section(const Gathered& lease, DType dtype) const {
  const Frozen& f = *frozen_;
  for (const std::uint32_t s : f.partition.group_sections[lease.group_.index]) {
    const partition::Section& section = f.partition.sections[s];
    if (section.dtype != dtype) continue;
    // The first of them, with those behind it.
    const std::uint64_t bytes =
        f.partition.buffer_elements(lease.group_.index, dtype) * size_bytes(dtype);
    if (lease.slot_ == kInPlace)
      return {const_cast<std::byte*>(f.tiles->resident_weight(s)), bytes};
    return {f.buffers->memory(lease.slot_) + f.buffers->section_offset_bytes(s), bytes};
  }
  return {};
}

DeviceSpan EngineCore::bytes(const Gathered& lease, ParameterId id) const {
  const engine::RegisteredParameter& parameter = registry_.parameter(id);
  if (lease.core_ != this || !(parameter.group == lease.group_)) {
    throw Error(Code::kInvalidArgument,
                "'" + parameter.full_name + "' is not in the gathered group");
  }
  const DeviceSpan whole = section(lease, parameter.spec.dtype);
  return {static_cast<std::byte*>(whole.data) + section_offset_bytes(id),
          parameter.spec.elements() * size_bytes(parameter.spec.dtype)};
}

void EngineCore::refuse_lease(std::optional<GroupId> leased, const char* call) const {
  if (!leased) return;
  throw Error(Code::kWrongState, std::string(call) + ": group '" + registry_.group(*leased).name +
                                     "' is still gathered; release it first");
}

// A group with an open lease, of a buffer or of resident bytes.
std::optional<GroupId> EngineCore::leased_group() const noexcept {
  for (std::uint32_t g = 0; g < frozen_->in_place_leases.size(); ++g) {
    if (frozen_->in_place_leases[g].load() != 0) return GroupId{g};
  }
  return frozen_->buffers->leased_group();
}

bool EngineCore::has_open_lease() const noexcept {
  return frozen_ && getpid() == owner_pid_ && leased_group().has_value();
}

void EngineCore::complain_of_lease() const noexcept {
  log_(LogLevel::kError,
       "an engine was destroyed while a group of it is still gathered: its memory, files and "
       "threads are kept until the process ends. Release every Gathered before its Engine goes.");
}
}  // namespace headrace
