// SPDX-License-Identifier: Apache-2.0
// values.cpp: values in and out: load of a group, store, hashes.
#include <algorithm>
#include <cstring>

#include "base/units.hpp"
#include "engine/engine_core.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace {
using engine::TileParts;
using engine::TilePass;
using engine::TileView;

void EngineCore::load(GroupId group, const Fill& fill) {
  Frozen& f = ready("load");
  const engine::RegisteredGroup& registered = registry_.group(group);
  refuse_lease(f.buffers->leased_group(), "load");
  finish_updates("load");
  const bool in_place = f.plan.group_in_place[group.index];
  const bool staged = !device_->shares_host_memory();
  std::uint32_t buffer = kInPlace;
  on_conductor([&]() -> async::Task<> {
    co_await let_go();
    co_await f.buffers->invalidate();
    if (!in_place && !staged) buffer = co_await f.buffers->claim_empty(group);
  });
  // The buffer goes back whatever `fill` does.
  const std::unique_ptr<EngineCore, std::function<void(EngineCore*)>> give_back(
      this, [&](EngineCore* core) {
        if (buffer != kInPlace) core->release(group, buffer, {});
      });
  f.group_values[group.index] = GroupValues::kBroken;
  std::byte* const joined = staged     ? f.arena->range(f.plan.load_staging.offset_bytes, 0).data()
                            : in_place ? nullptr
                                       : f.buffers->memory(buffer);
  const auto section_values = [&](std::uint32_t s) {
    return in_place ? const_cast<std::byte*>(f.tiles->resident_weight(s))
                    : joined + f.buffers->section_offset_bytes(s);
  };
  ++f.weight_changes[group.index];
  for (const std::uint32_t s : f.partition.group_sections[group.index]) {
    const partition::Section& section = f.partition.sections[s];
    std::memset(section_values(s), 0, section.buffer_elements * size_bytes(section.dtype));
  }
  for (const ParameterId id : registered.parameters) {
    const partition::Parameter& parameter = f.partition.parameters[id.index];
    const std::uint64_t element_bytes = size_bytes(f.partition.sections[parameter.section].dtype);
    fill(id, {section_values(parameter.section) + parameter.first_element * element_bytes,
              parameter.elements * element_bytes});
    f.step_counts[id.index] = 0;
    f.half_loaded[id.index] = 0;
  }
  on_conductor([&] { return write_group(group, joined); });
  f.group_values[group.index] = GroupValues::kWhole;
}

// `values`: the group's joined sections; null: they are in their resident places already.
async::Task<> EngineCore::write_group(GroupId group, const std::byte* values) {
  Frozen& f = *frozen_;
  async::TaskGroup writes;
  for (const std::uint32_t s : f.partition.group_sections[group.index]) {
    const partition::Section& section = f.partition.sections[s];
    for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
      if (writes.cancelled()) break;
      const std::uint64_t element_bytes = size_bytes(section.dtype);
      const std::byte* const weight = values == nullptr
                                          ? f.tiles->view(t, f.arena->bytes()).weight
                                          : values + f.buffers->section_offset_bytes(s) +
                                                f.partition.tiles[t].first_element * element_bytes;
      // One at a time where there are no slots to bound them.
      if (!f.tiles->needs_slot(t)) {
        co_await writes.in_turn(write_tile(t, weight));
      } else {
        writes.spawn(write_tile(t, weight));
      }
    }
  }
  co_await writes.join();
}

async::Task<> EngineCore::write_tile(std::uint32_t tile, const std::byte* weight) {
  Frozen& f = *frozen_;
  if (interrupted_.load()) throw Error(Code::kInterrupted, "load: interrupted");
  pinned::SlotLease slot;
  if (f.tiles->needs_slot(tile)) slot = co_await f.tiles->slots().acquire();
  f.tiles->refuse_after_stall("load");
  const TileView view = f.tiles->view(tile, slot ? slot.bytes() : std::span<std::byte>{});
  TilePass pass;
  f.tiles->prepare(pass, tile, view, {.weight = true, .record = true}, true);
  pass.initial_weight = weight;
  co_await f.tiles->run(pass, tile, view);
  co_await f.tiles->write(tile, view, {.weight = true, .record = true});
}

async::Task<> EngineCore::hold_tile(std::uint32_t tile, TileParts parts) {
  Frozen& f = *frozen_;
  HeldTile& held = f.held;
  if (held.held && held.tile == tile && held.parts.weight >= parts.weight &&
      held.parts.record >= parts.record)
    co_return;
  co_await let_go();
  if (f.tiles->needs_slot(tile)) held.slot = co_await f.tiles->slots().acquire();
  held.view = f.tiles->view(tile, held.slot ? held.slot.bytes() : std::span<std::byte>{});
  try {
    co_await f.tiles->read(tile, held.view, parts, swap::Priority::kDemand);
    TilePass pass;
    f.tiles->prepare(pass, tile, held.view, parts, false);
    co_await f.tiles->run(pass, tile, held.view);
  } catch (...) {
    held.slot.release();
    throw;
  }
  held.tile = tile;
  held.parts = parts;
  held.held = true;
}

async::Task<> EngineCore::let_go() {
  frozen_->held.held = false;
  frozen_->held.slot.release();
  co_return;
}

void EngineCore::store(ParameterId id, Content content, const Sink& sink, const char* call) {
  Frozen& f = ready(call);
  const GroupId group = registry_.parameter(id).group;
  const bool weights = content == Content::kWeight || content == Content::kMaster;
  // What was written to has its moments still, unless a load() of them ended on the way.
  const bool moments_are_whole =
      f.group_values[group.index] == GroupValues::kWritten && f.half_loaded[id.index] == 0;
  if (weights || !moments_are_whole) require_loaded(f, group, call);
  refuse_missing_moment(id, content, call);
  finish_updates(call);
  const auto tiles = f.partition.tiles_with(f.partition.parameters[id.index]);
  for (std::uint32_t t = tiles.first; t < tiles.end; ++t) {
    store_tile(id, t, content, sink);
    if (interrupted_.load()) ready(call);
    poll_between(call);
  }
}

void EngineCore::store_tile(ParameterId id, std::uint32_t tile, Content content, const Sink& sink) {
  Frozen& f = *frozen_;
  const partition::Tile& cut = f.partition.tiles[tile];
  const partition::Segment segment = f.partition.segment_of(cut, id.index);
  if (segment.elements == 0) return;
  const partition::Parameter& parameter = f.partition.parameters[id.index];
  const DType dtype = f.partition.sections[cut.section].dtype;
  const auto kind = optimizer_cpu::master_kind(dtype, settings_.master);
  content = kept_as(id, content);
  const bool joins =
      content == Content::kMaster && kind == optimizer_cpu::MasterKind::kSplitResidual;
  const TileParts parts{.weight = content == Content::kWeight || joins,
                        .record = content != Content::kWeight};
  on_conductor([&] { return hold_tile(tile, parts); });
  TilePass at;  // only for where the streams are
  f.tiles->prepare(at, tile, f.held.view, parts, false);
  const std::uint64_t first = cut.first_element + segment.first_element - parameter.first_element;
  const auto send = [&](const std::byte* stream, std::uint64_t element_bytes) {
    sink(first, {stream + segment.first_element * element_bytes, segment.elements * element_bytes});
  };
  if (content == Content::kWeight) return send(f.held.view.weight, size_bytes(dtype));
  const bool moment = content == Content::kExpAvg || content == Content::kExpAvgSq;
  const std::uint32_t which = content == Content::kExpAvg ? 0 : 1;
  if (moment && settings_.moments == MomentCodec::kF32) return send(at.moment[which], 4);
  if (content == Content::kMaster && !joins) return send(at.master, 4);
  const std::span<std::byte> scratch =
      f.arena->range(f.plan.scratch.offset_bytes, f.plan.scratch.size_bytes);
  const std::uint64_t stretch = scratch.size() / 4;
  for (std::uint64_t done = 0; done < segment.elements; done += stretch) {
    const std::uint64_t count = std::min(stretch, segment.elements - done);
    const std::uint64_t element = segment.first_element + done;
    auto* const values = reinterpret_cast<float*>(scratch.data());
    if (moment) {
      decode_moment(at.stored_moment(which, element), count, values);
    } else {
      optimizer_cpu::read_master(kind, f.held.view.weight + element * 2, at.master + element * 2,
                                 count, values);
    }
    sink(first + done, scratch.first(count * 4));
  }
}

namespace {
// The head of an entry of a content hash (docs/swap_file.md, "Hashes").
void hash_head(base::Hash128& hash, const std::string& name, const std::string& dtype,
               std::span<const std::int64_t> shape) {
  const auto number = [&](std::uint64_t value) {
    hash.update(std::as_bytes(std::span(&value, 1)));
  };
  number(name.size());
  hash.update(std::as_bytes(std::span(name)));
  const auto length = static_cast<std::uint8_t>(dtype.size());
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(std::as_bytes(std::span(dtype)));
  number(shape.size());
  for (const std::int64_t size : shape) number(static_cast<std::uint64_t>(size));
}
}  // namespace

void EngineCore::hash_content(base::Hash128& hash, ParameterId id, const std::string& name,
                              Content content, const char* call) {
  const ParameterSpec& spec = registry_.parameter(id).spec;
  hash_head(hash, name, content == Content::kWeight ? name_of(spec.dtype) : "F32", spec.shape);
  store(
      id, content, [&](std::uint64_t, std::span<const std::byte> values) { hash.update(values); },
      call);
}

std::string EngineCore::hash_parameters() {
  constexpr const char* kCall = "hash_parameters";
  ready(kCall);
  base::Hash128 hash;
  for (const ParameterId id : registry_.by_name()) {
    hash_content(hash, id, registry_.parameter(id).full_name, Content::kWeight, kCall);
  }
  return hash.hex();
}

std::string EngineCore::hash_optimizer_state() {
  constexpr const char* kCall = "hash_optimizer_state";
  Frozen& f = ready(kCall);
  base::Hash128 hash;
  for (const ParameterId id : registry_.by_name()) {
    const std::string& name = registry_.parameter(id).full_name;
    if (registry_.parameter(id).spec.frozen) continue;
    hash_content(hash, id, name + ".master", Content::kMaster, kCall);
    const optimizer_cpu::Arithmetic arithmetic = optimizer_cpu::arithmetic_of(settings_.optimizer);
    for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
      hash_content(hash, id, name + "." + optimizer_cpu::moment_name(arithmetic, k),
                   k == 0 ? Content::kExpAvg : Content::kExpAvgSq, kCall);
    }
    hash_head(hash, name + ".step", "U64", {});
    hash.update(std::as_bytes(std::span(&f.step_counts[id.index], 1)));
  }
  return hash.hex();
}
}  // namespace headrace
