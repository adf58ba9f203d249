// SPDX-License-Identifier: Apache-2.0
#include "engine/values.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "engine/epochs.hpp"
#include "engine/stretch.hpp"
#include "headrace/error.hpp"

namespace headrace::engine {
using tiles::TileParts;
using tiles::TilePass;

Values::Values(const Parts& parts)
    : p_(parts), contents_{p_.registry, p_.settings}, held_(p_.tiles) {}

void Values::load(GroupId group, const Fill& fill) {
  load_with(group, [&](ParameterId id, std::byte* values) {
    const partition::Parameter& parameter = p_.partition.parameters[id.index];
    fill(id,
         {values, parameter.elements * size_bytes(p_.partition.sections[parameter.section].dtype)});
  });
}

void Values::load(GroupId group, const FillShard& fill) {
  load_with(group, [&](ParameterId id, std::byte* values) {
    const partition::Parameter& parameter = p_.partition.parameters[id.index];
    const partition::Section& section = p_.partition.sections[parameter.section];
    const std::uint64_t first = std::max(parameter.first_element, section.shard.first_element);
    const std::uint64_t end =
        std::min(parameter.first_element + parameter.elements, section.shard.end());
    if (first >= end) return;
    const std::uint64_t element_bytes = size_bytes(section.dtype);
    const std::uint64_t in_parameter = first - parameter.first_element;
    fill(id, in_parameter, {values + in_parameter * element_bytes, (end - first) * element_bytes});
  });
}

void Values::finish_step(const char* call) {
  p_.calls.finish_updates(call);
  if (p_.epochs != nullptr) p_.epochs->settle_for_load();
}

void Values::require_lent(GroupId group, const char* call) const {
  if (!p_.registry.group(group).lends_weights) return;
  for (const ParameterId id : p_.registry.group(group).parameters) {
    if (p_.lent.weights[id.index] != nullptr) continue;
    throw Error(Code::kWrongState,
                std::string(call) + ": the weights of '" + p_.registry.parameter(id).full_name +
                    "' were not lent, and nothing was loaded. Call lend_weights() for each "
                    "parameter of group '" +
                    p_.registry.group(group).name + "' first.");
  }
}

// A group's values are put together in one piece of memory, and written tile by tile from there:
// in their resident places, in an empty gather slot, or in host memory where slots are a device's.
// Those that are lent are written where they are.
void Values::load_with(GroupId group, const WriteParameter& write) {
  require_lent(group, "load");
  p_.leases.refuse_any_in_slot("load");
  finish_step("load");
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    for (std::uint32_t t = 0; t < section.tiles; ++t)
      p_.tiles.refuse_another_write(section.first_tile + t);
  }
  const bool in_place = p_.plan.group_in_place[group.index];
  std::optional<std::uint32_t> slot;
  p_.calls.run([&]() -> async::Task<> {
    co_await held_.let_go();
    co_await p_.gather_slots.invalidate();
    if (!in_place && !p_.staged) slot = co_await p_.gather_slots.claim_empty(group);
  });
  // The slot goes back whatever `fill` does.
  const std::unique_ptr<Values, std::function<void(Values*)>> give_back(this, [&](Values* values) {
    if (slot) values->p_.gather_slots[*slot].release({});
  });
  p_.states.begin_load(group);
  std::byte* const joined = p_.staged  ? p_.arena.range(p_.plan.load_staging.offset_bytes, 0).data()
                            : in_place ? nullptr
                                       : p_.gather_slots[*slot].memory();
  ++p_.counts.weight_changes[group.index];
  fill_sections(group, write, joined);
  p_.calls.run([&] { return write_group(group, joined); });
  p_.states.end_load(group);
}

// `joined`: where the group's sections lie one after another; null: each in its resident place.
void Values::fill_sections(GroupId group, const WriteParameter& write, std::byte* joined) {
  const bool in_place = p_.plan.group_in_place[group.index];
  const auto section_values = [&](std::uint32_t s) {
    return in_place ? const_cast<std::byte*>(p_.tiles.resident_weight(s))
                    : joined + p_.plan.sections[s].joined_offset_bytes;
  };
  const bool lends = p_.registry.group(group).lends_weights;
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    if (!lends)
      std::memset(section_values(s), 0, section.buffer_elements * size_bytes(section.dtype));
  }
  const auto values_of = [&](const partition::Parameter& parameter) {
    return section_values(parameter.section) +
           parameter.first_element * size_bytes(p_.partition.sections[parameter.section].dtype);
  };
  for (const ParameterId id : p_.registry.group(group).parameters) {
    write(id, lends ? p_.lent.weights[id.index] : values_of(p_.partition.parameters[id.index]));
    p_.counts.steps[id.index] = 0;
  }
}

// `values`: the group's joined sections; null: they are in their resident places already.
async::Task<> Values::write_group(GroupId group, const std::byte* values) {
  async::TaskGroup writes;
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
      if (writes.cancelled()) break;
      const std::uint64_t element_bytes = size_bytes(section.dtype);
      const std::byte* const weight = values == nullptr
                                          ? p_.tiles.view(t, p_.arena.bytes()).weight
                                          : values + p_.plan.sections[s].joined_offset_bytes +
                                                p_.partition.tiles[t].first_element * element_bytes;
      // One at a time where there are no slots to bound them.
      if (!p_.tiles.needs_slot(t)) {
        co_await writes.keep_error_of(write_tile(t, weight));
      } else {
        writes.spawn(write_tile(t, weight));
      }
    }
  }
  co_await writes.join();
}

async::Task<> Values::write_tile(std::uint32_t tile, const std::byte* weight) {
  if (p_.failure.interrupted().load()) throw Error(Code::kInterrupted, "load: interrupted");
  pinned::SlotLease slot;
  if (p_.tiles.needs_slot(tile)) slot = co_await p_.tiles.slots().acquire();
  p_.tiles.refuse_after_stall("load");
  const auto view = p_.tiles.view(tile, slot ? slot.bytes() : std::span<std::byte>{});
  TilePass pass;
  p_.tiles.prepare(pass, tile, view, tiles::kWholeTile, true);
  pass.initialises = true;
  pass.initial_weight = weight;
  co_await p_.tiles.run(pass, tile);
  co_await p_.tiles.write(tile, view, tiles::kWholeTile);
}

void Values::lend_weights(ParameterId id, void* values) {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  const std::string call = "lend_weights of '" + parameter.full_name + "'";
  if (!p_.registry.group(parameter.group).lends_weights) {
    throw Error(Code::kWrongState,
                call +
                    ": the engine keeps this group's weights itself; nothing was changed. Call "
                    "expect_lent_weights() for group '" +
                    p_.registry.group(parameter.group).name + "' before freeze().");
  }
  if (values == nullptr || reinterpret_cast<std::uintptr_t>(values) % alignof(float) != 0) {
    throw Error(Code::kInvalidArgument,
                call + ": the address " + (values == nullptr ? "is null" : "is not a float's") +
                    "; nothing was changed. Give contiguous float32 values in host memory.");
  }
  p_.lent.weights[id.index] = static_cast<std::byte*>(values);
  ++p_.counts.weight_changes[parameter.group.index];
}

Values::Part Values::part_of(ParameterId id, std::uint32_t tile) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const partition::Segment segment = p_.partition.segment_of(cut, id.index);
  return {segment, cut.first_element + segment.first_element -
                       p_.partition.parameters[id.index].first_element};
}

std::span<std::byte> Values::scratch() const {
  return p_.arena.range(p_.plan.scratch.offset_bytes, p_.plan.scratch.size_bytes);
}

void Values::store(ParameterId id, Content content, const Sink& sink, const char* call) {
  const GroupId group = p_.registry.parameter(id).group;
  const bool weights = content == Content::kWeight || content == Content::kMaster;
  if (weights) {
    p_.states.require_whole(group, call);
  } else {
    p_.states.require_moments(id, call);
  }
  contents_.require(id, content, call);
  p_.calls.finish_updates(call);
  const auto tiles = p_.partition.tiles_with(p_.partition.parameters[id.index]);
  for (std::uint32_t t = tiles.first; t < tiles.end; ++t) {
    store_tile(id, t, content, sink);
    p_.failure.throw_if_interrupted(call);
    p_.calls.poll_between(call);
  }
}

void Values::store_tile(ParameterId id, std::uint32_t tile, Content content, const Sink& sink) {
  const Part part = part_of(id, tile);
  if (part.segment.elements == 0) return;
  const DType dtype = p_.registry.parameter(id).spec.dtype;
  content = contents_.kept_as(id, content);
  const bool joins =
      content == Content::kMaster && optimizer_cpu::master_kind(dtype, p_.settings.master) ==
                                         optimizer_cpu::MasterKind::kSplitResidual;
  const TileParts parts{.weight = content == Content::kWeight || joins,
                        .record = content != Content::kWeight};
  p_.calls.run([&] { return held_.hold(tile, parts); });
  send(held_.layout(), part.segment, content, scratch(),
       [&](std::uint64_t done, std::span<const std::byte> values) {
         sink(part.first_element + done, values);
       });
}
}  // namespace headrace::engine
