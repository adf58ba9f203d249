// SPDX-License-Identifier: Apache-2.0
#include "tiles/tile_store.hpp"

#include <cstring>

#include "base/check.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::tiles {
using swap::Priority;

namespace {
const char* weight_codec(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16";
}
}  // namespace

TileStore::TileStore(const Parts& parts)
    : p_(parts),
      slots_(parts.arena.range(parts.plan.update_slot_memory.offset_bytes,
                               parts.plan.update_slot_memory.size_bytes),
             parts.plan.update_slots, parts.plan.update_slot_bytes) {
  const auto& tiles = p_.partition.tiles;
  states_.resize(tiles.size());
  std::uint64_t checksums = 0;
  // All weights first: they lie one after another, so that a gather reads long stretches.
  for (std::uint32_t t = 0; t < tiles.size(); ++t) {
    states_[t].first_weight_checksum = static_cast<std::uint32_t>(checksums);
    checksums += weight_chunks(t);
    if (p_.plan.sections[tiles[t].section].weight == Tier::kNvme) {
      states_[t].weight_extent =
          p_.swap->allocate(p_.plan.tiles[t].drive, p_.plan.tiles[t].weight_bytes);
    }
  }
  weight_checksums_.resize(checksums);
  records_of_drive_.assign(p_.plan.drive_bytes.size(), 0);
  for (std::uint32_t t = 0; t < tiles.size(); ++t) {
    const residency::TilePlan& tile = p_.plan.tiles[t];
    if (tile.record != Tier::kNvme) continue;
    states_[t].record_extent = p_.swap->allocate(tile.drive, tile.layout.size_bytes);
    ++records_of_drive_[tile.drive];
  }
}

std::uint64_t TileStore::weight_chunks(std::uint32_t tile) const {
  return swap::chunks_of(p_.partition.tiles[tile].elements);
}

std::uint64_t TileStore::bookkeeping_bytes(const partition::Partition& partition) {
  std::uint64_t checksums = 0;
  for (const partition::Tile& tile : partition.tiles) checksums += swap::chunks_of(tile.elements);
  return partition.tiles.size() * sizeof(TileState) + checksums * sizeof(std::uint64_t);
}

bool TileStore::needs_slot(std::uint32_t tile) const noexcept {
  return p_.plan.tiles[tile].record == Tier::kNvme ||
         p_.plan.sections[p_.partition.tiles[tile].section].weight == Tier::kNvme;
}

const std::byte* TileStore::resident_weight(std::uint32_t section) const {
  return p_.arena.range(p_.plan.sections[section].resident_weight.offset_bytes, 0).data();
}

TileView TileStore::view(std::uint32_t tile, std::span<std::byte> slot) const {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const partition::Tile& cut = p_.partition.tiles[tile];
  const partition::Section& section = p_.partition.sections[cut.section];
  TileView view;
  std::uint64_t slot_used = 0;
  if (plan.record == Tier::kNvme) {
    view.record = slot.data();
    view.record_in_slot = true;
    slot_used = plan.layout.size_bytes;
  } else {
    view.record = p_.arena.range(plan.resident_record.offset_bytes, 0).data();
  }
  if (p_.plan.sections[cut.section].weight == Tier::kNvme) {
    view.weight = slot.data() + slot_used;
    view.weight_in_slot = true;
    slot_used += plan.weight_bytes;
  } else {
    const std::uint64_t element = cut.first_element - p_.partition.shard_first_element(section);
    view.weight =
        const_cast<std::byte*>(resident_weight(cut.section)) + element * size_bytes(section.dtype);
  }
  HEADRACE_CHECK(slot_used <= slot.size(), "the plan sized the slots for the largest tile");
  return view;
}

void TileStore::refuse_after_stall(std::string_view call) const {
  if (p_.swap != nullptr) p_.swap->refuse_after_stall(call);
}

swap::RecordIdentity TileStore::identity(std::uint32_t tile, std::uint64_t generation) const {
  return {p_.swap->run(), tile, generation, 0};
}

swap::Subject TileStore::subject(const char* action, std::uint32_t tile) const {
  const partition::Segment& first = p_.partition.segments[p_.partition.tiles[tile].first_segment];
  return {action, &p_.registry.parameter({first.parameter}).full_name, tile};
}

base::TraceSpan TileStore::span_of(TraceLane lane, const char* what, std::uint32_t tile,
                                   TileView view, TileParts parts) const noexcept {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const std::uint64_t bytes = (parts.record && view.record_in_slot ? plan.layout.size_bytes : 0) +
                              (parts.weight && view.weight_in_slot ? plan.weight_bytes : 0);
  const std::uint32_t section = p_.partition.tiles[tile].section;
  return {bytes == 0 ? nullptr : p_.trace,      lane, what,
          p_.partition.sections[section].group, tile, bytes};
}

async::Task<> TileStore::read(std::uint32_t tile, TileView view, TileParts parts,
                              Priority priority) {
  const TileState& state = states_[tile];
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const auto span =
      span_of(TraceLane::kNvmeRead, priority == Priority::kPrefetch ? "prefetch" : "read", tile,
              view, parts);
  async::TaskGroup reads;
  if (parts.record && view.record_in_slot) {
    reads.spawn(p_.swap->read(state.record_extent, {view.record, plan.layout.size_bytes}, priority,
                              subject("swap in state of", tile)));
  }
  if (parts.weight && view.weight_in_slot) {
    reads.spawn(p_.swap->read(state.weight_extent, {view.weight, plan.weight_bytes}, priority,
                              subject("swap in", tile)));
  }
  co_await reads.join();
  if (parts.record && view.record_in_slot) {
    const auto& header = *reinterpret_cast<const swap::RecordHeader*>(view.record);
    const std::string fault = swap::header_fault(header, identity(tile, state.generation));
    if (!fault.empty()) {
      throw Error(
          Code::kCorrupt,
          subject("swap in state of", tile).text() + ": " + p_.swap->place(state.record_extent) +
              ": the record's header is not what was written: " + fault +
              "; the file was changed or the drive is failing. Start again on another drive.");
    }
  }
}

DType TileStore::dtype_of(std::uint32_t tile) const { return p_.partition.section_of(tile).dtype; }

std::byte* TileStore::stream_of(std::uint32_t tile, TileView view, std::uint32_t stream) const {
  return view.record + p_.plan.tiles[tile].layout.stream_offset_bytes[stream];
}

TileLayout TileStore::layout(std::uint32_t tile, TileView view, TileParts parts) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const DType dtype = dtype_of(tile);
  TileLayout layout;
  layout.elements = cut.elements;
  layout.first_element = cut.first_element;
  layout.kind = optimizer_cpu::master_kind(dtype, p_.settings.master);
  layout.arithmetic = optimizer_cpu::arithmetic_of(p_.settings.optimizer);
  layout.codec = p_.settings.moments;
  if (parts.weight) {
    layout.weight = view.weight;
    layout.weight_bytes_per_element = size_bytes(dtype);
  }
  if (!parts.record || is_frozen(tile)) return layout;
  const auto streams = optimizer_cpu::state_streams(p_.settings, dtype);
  layout.has_state = true;
  layout.master = streams.first_moment == 0 ? nullptr : stream_of(tile, view, 0);
  for (std::uint32_t k = 0; k < moments(layout.arithmetic); ++k) {
    const std::uint32_t stream = streams.first_moment + k * streams.streams_per_moment;
    layout.moment[k] = stream_of(tile, view, stream);
    if (streams.streams_per_moment > 1) layout.moment_scale[k] = stream_of(tile, view, stream + 1);
  }
  return layout;
}

void TileStore::prepare(TilePass& pass, std::uint32_t tile, TileView view, TileParts parts,
                        bool seal) {
  const DType dtype = dtype_of(tile);
  const TileState& state = states_[tile];
  const bool checked = p_.settings.checksums == Checksums::kOn && p_.swap != nullptr;
  pass.tile = layout(tile, view, parts);
  pass.stream_count = 0;
  const auto add_stream = [&](std::byte* data, std::uint64_t bytes_per_scale,
                              std::uint64_t* checksums, bool on_nvme, std::uint32_t number) {
    PassStream& stream = pass.streams[pass.stream_count++];
    stream.data = data;
    stream.bytes_per_scale = static_cast<std::uint32_t>(bytes_per_scale);
    stream.checksums = checksums;
    stream.verify = checked && on_nvme;
    stream.seal = checked && on_nvme && seal;
    if (!stream.verify) return;
    stream.verify_seed = swap::checksum_seed(identity(tile, state.generation), number);
    stream.seal_seed = swap::checksum_seed(identity(tile, state.generation + 1), number);
  };
  if (parts.weight) {
    add_stream(view.weight, size_bytes(dtype) * base::kScaleElements,
               weight_checksums_.data() + state.first_weight_checksum, view.weight_in_slot,
               swap::kWeightStream);
  }
  if (!pass.tile.has_state) return;
  const auto streams = optimizer_cpu::state_streams(p_.settings, dtype);
  std::uint64_t* checksums =
      view.record_in_slot ? reinterpret_cast<swap::RecordHeader*>(view.record)->checksum : nullptr;
  for (std::uint32_t s = 0; s < streams.count; ++s) {
    add_stream(stream_of(tile, view, s), streams.stream[s].bytes_per_scale, checksums,
               view.record_in_slot, s);
    if (checksums != nullptr) checksums += pass.chunks();
  }
}

async::Task<> TileStore::run(TilePass& pass, std::uint32_t tile, TileView view) {
  co_await p_.workers.for_units(pass.chunks(), &TilePass::run_chunk, &pass);
  if (const std::uint64_t fault = pass.fault.load()) {
    report_damage(tile, view, static_cast<std::uint32_t>((fault - 1) >> 32),
                  (fault - 1) & 0xffffffffu);
  }
}

void TileStore::report_damage(std::uint32_t tile, TileView view, std::uint32_t stream,
                              std::uint64_t chunk) const {
  const TileState& state = states_[tile];
  const bool is_weight = view.weight_in_slot && stream == 0;
  const swap::Extent& extent = is_weight ? state.weight_extent : state.record_extent;
  throw Error(
      Code::kCorrupt,
      subject(is_weight ? "swap in" : "swap in state of", tile).text() + ": " +
          p_.swap->place(extent) + ": stream " + std::to_string(stream) + ", chunk " +
          std::to_string(chunk) + " (generation " + std::to_string(state.generation) +
          "): the checksum differs from what was written; these bytes were not used. The file was "
          "changed or the drive is failing. Start again on another drive.");
}

void TileStore::seal_header(std::uint32_t tile, TileView view, std::uint64_t generation) {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const DType dtype = dtype_of(tile);
  auto& header = *reinterpret_cast<swap::RecordHeader*>(view.record);
  const std::uint64_t elements = p_.partition.tiles[tile].elements;
  const auto streams = optimizer_cpu::state_streams(p_.settings, dtype);
  swap::StreamEntry entries[swap::kMaxStreams];
  std::uint32_t count = 0, checksum = 0;
  const bool checked = p_.settings.checksums == Checksums::kOn;
  const auto add = [&](const char* name, const char* codec, std::uint64_t offset,
                       std::uint64_t bytes) {
    swap::StreamEntry& entry = entries[count++];
    std::strncpy(entry.name, name, sizeof entry.name - 1);
    std::strncpy(entry.codec, codec, sizeof entry.codec - 1);
    entry.offset_bytes = offset;
    entry.size_bytes = bytes;
    entry.first_checksum = checksum;
    entry.checksums = checked ? static_cast<std::uint32_t>(swap::chunks_of(elements)) : 0;
    checksum += entry.checksums;
  };
  for (std::uint32_t s = 0; s < streams.count; ++s) {
    add(streams.stream[s].name, streams.stream[s].codec, plan.layout.stream_offset_bytes[s],
        plan.layout.stream_bytes[s]);
  }
  if (view.weight_in_slot) {
    const std::uint32_t first = checksum;
    add("weight", weight_codec(dtype), swap::kElsewhere | states_[tile].weight_extent.offset_bytes,
        plan.weight_bytes);
    std::memcpy(header.checksum + first,
                weight_checksums_.data() + states_[tile].first_weight_checksum,
                (checksum - first) * sizeof(std::uint64_t));
  }
  HEADRACE_CHECK(checksum <= swap::kMaxChecksums, "the largest tile's checksums fit a header");
  swap::begin_header(header, identity(tile, generation), elements, {entries, count},
                     records_of_drive_[plan.drive]);
  swap::finish_header(header);
}

async::Task<> TileStore::write(std::uint32_t tile, TileView view, TileParts parts) {
  TileState& state = states_[tile];
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const std::uint64_t generation = state.generation + 1;
  if (parts.record && view.record_in_slot) seal_header(tile, view, generation);
  const auto span = span_of(TraceLane::kNvmeWrite, "write", tile, view, parts);
  async::TaskGroup writes;
  if (parts.weight && view.weight_in_slot) {
    writes.spawn(p_.swap->write(state.weight_extent, {view.weight, plan.weight_bytes},
                                Priority::kWriteBack, subject("swap out", tile)));
  }
  if (parts.record && view.record_in_slot) {
    writes.spawn(p_.swap->write(state.record_extent, {view.record, plan.layout.size_bytes},
                                Priority::kWriteBack, subject("swap out state of", tile)));
  }
  co_await writes.join();
  state.generation = generation;
}

async::Task<> TileStore::read_verified(std::uint32_t tile, TileView view, TileParts parts,
                                       Priority priority) {
  co_await read(tile, view, parts, priority);
  TilePass pass;
  prepare(pass, tile, view, parts, false);
  if (pass.any_verify()) co_await run(pass, tile, view);
}
}  // namespace headrace::tiles
