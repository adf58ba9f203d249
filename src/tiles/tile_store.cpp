// SPDX-License-Identifier: Apache-2.0
#include "tiles/tile_store.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "headrace/error.hpp"
#include "residency/layout.hpp"

namespace headrace::tiles {
using swap::Priority;

namespace {
const char* weight_codec(DType dtype) {
  constexpr const char* kCodecs[] = {"f32", "bf16", "f16", "u8"};
  return kCodecs[static_cast<unsigned>(dtype)];
}

// What helps where the bytes are not those that were written. A new run reads a store again.
const char* what_helps_damage(bool durable) {
  return durable ? "Restore the store from a copy, or name another headrace.store."
                 : "Start again on another drive.";
}
}  // namespace

TileStore::TileStore(const Parts& parts)
    : p_(parts),
      slots_(parts.arena.range(parts.plan.update_slot_memory.offset_bytes,
                               parts.plan.update_slot_memory.size_bytes),
             parts.plan.update_slots, parts.plan.update_slot_bytes) {}

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
    view.record_moves = true;
    slot_used = plan.layout.size_bytes;
  } else {
    view.record = p_.arena.range(plan.resident_record.offset_bytes, 0).data();
  }
  if (p_.plan.sections[cut.section].weight == Tier::kNvme) {
    view.weight = slot.data() + slot_used;
    view.weight_moves = true;
    slot_used += plan.weight_bytes;
  } else if (!p_.plan.sections[cut.section].lends_weights) {
    const std::uint64_t element = cut.first_element - section.shard.first_element;
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
  const std::uint64_t bytes = (parts.record && view.record_moves ? plan.layout.size_bytes : 0) +
                              (parts.weight && view.weight_moves ? plan.weight_bytes : 0);
  const std::uint32_t section = p_.partition.tiles[tile].section;
  return {bytes == 0 ? nullptr : p_.trace,      lane, what,
          p_.partition.sections[section].group, tile, bytes};
}

TileStore::Version TileStore::present_version(std::uint32_t tile) const {
  return {p_.places.current(tile), p_.places.generation(tile), p_.places.next_generation(tile),
          p_.places.weight_checksums(tile).data()};
}

async::Task<> TileStore::read(std::uint32_t tile, TileView view, TileParts parts,
                              Priority priority) {
  return read_version(tile, present_version(tile), view, parts, priority);
}

async::Task<> TileStore::read_version(std::uint32_t tile, Version version, TileView view,
                                      TileParts parts, Priority priority) {
  const TilePlace& place = version.place;
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const auto span =
      span_of(TraceLane::kNvmeRead, priority == Priority::kPrefetch ? "prefetch" : "read", tile,
              view, parts);
  async::TaskGroup reads;
  if (parts.record && view.record_moves) {
    reads.spawn(p_.swap->read(place.record, {view.record, plan.layout.size_bytes}, priority,
                              subject("swap in state of", tile)));
  }
  if (parts.weight && view.weight_moves) {
    reads.spawn(p_.swap->read(place.weight, {view.weight, plan.weight_bytes}, priority,
                              subject("swap in", tile)));
  }
  co_await reads.join();
  if (parts.record && view.record_moves) require_header(tile, version, view.record);
}

void TileStore::require_header(std::uint32_t tile, const Version& version,
                               const std::byte* header) const {
  const std::string fault = swap::header_fault(*reinterpret_cast<const swap::RecordHeader*>(header),
                                               identity(tile, version.generation));
  if (fault.empty()) return;
  throw Error(Code::kCorrupt, subject("swap in state of", tile).text() + ": " +
                                  p_.swap->place(version.place.record) +
                                  ": the record's header is not what was written: " + fault +
                                  "; the file was changed or the drive is failing. " +
                                  what_helps_damage(p_.plan.durable()));
}

std::byte* TileStore::stream_of(std::uint32_t tile, TileView view, std::uint32_t stream) const {
  return view.record + p_.plan.tiles[tile].layout.stream_offset_bytes[stream];
}

TileLayout TileStore::layout(std::uint32_t tile, TileView view, TileParts parts) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const DType dtype = p_.partition.section_of(tile).dtype;
  TileLayout layout;
  layout.elements = cut.elements;
  layout.first_element = cut.first_element;
  layout.kind = optimizer_cpu::master_kind(dtype, p_.settings.master);
  layout.arithmetic = optimizer_cpu::arithmetic_of(p_.settings.optimizer);
  layout.codec = p_.settings.moments;
  if (parts.weight) {
    layout.weight = view.weight;
    layout.weight_bytes_per_element = size_bytes(dtype);
    if (p_.plan.sections[cut.section].lends_weights) {
      layout.lent = &p_.lent;
      layout.parameters = p_.partition.parameters.data();
      layout.segments = p_.partition.segments_of(cut);
    }
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
  prepare_version(pass, tile, present_version(tile), view, parts, seal);
}

void TileStore::prepare_version(TilePass& pass, std::uint32_t tile, const Version& version,
                                TileView view, TileParts parts, bool seal) {
  const DType dtype = p_.partition.section_of(tile).dtype;
  const bool checked = p_.settings.checksums == Checksums::kOn && p_.swap != nullptr;
  pass.tile = layout(tile, view, parts);
  pass.stream_count = 0;
  const auto add_stream = [&](std::byte* data, std::uint64_t bytes_per_scale,
                              std::uint64_t* checksums, bool moves, std::uint32_t number) {
    PassStream& stream = pass.streams[pass.stream_count++];
    stream.data = data;
    stream.bytes_per_scale = static_cast<std::uint32_t>(bytes_per_scale);
    stream.checksums = checksums;
    stream.verify = checked && moves;
    stream.seal = checked && (moves || p_.plan.durable()) && seal;
    if (!stream.verify && !stream.seal) return;
    stream.verify_seed = swap::checksum_seed(identity(tile, version.generation), number);
    stream.seal_seed = swap::checksum_seed(identity(tile, version.sealed_generation), number);
  };
  if (parts.weight && view.weight != nullptr) {
    add_stream(view.weight, size_bytes(dtype) * base::kScaleElements, version.weight_checksums,
               view.weight_moves, swap::kWeightStream);
  }
  if (!pass.tile.has_state) return;
  const auto streams = optimizer_cpu::state_streams(p_.settings, dtype);
  const bool has_header = view.record_moves || p_.plan.durable();
  std::uint64_t* checksums =
      has_header ? reinterpret_cast<swap::RecordHeader*>(view.record)->checksum : nullptr;
  for (std::uint32_t s = 0; s < streams.count; ++s) {
    add_stream(stream_of(tile, view, s), streams.stream[s].bytes_per_scale, checksums,
               view.record_moves, s);
    if (checksums != nullptr) checksums += pass.chunks();
  }
}

async::Task<> TileStore::run(TilePass& pass, std::uint32_t tile) {
  co_await p_.workers.for_units(pass.chunks(), &TilePass::run_chunk, &pass);
  throw_if_damaged(pass, tile, present_version(tile));
}

void TileStore::throw_if_damaged(const TilePass& pass, std::uint32_t tile,
                                 const Version& version) const {
  if (const std::uint64_t fault = pass.fault.load()) {
    const bool with_weight = pass.tile.weight != nullptr;
    // Numbered as in a pass over the whole tile: 0 is the weight.
    const auto stream = static_cast<std::uint32_t>((fault - 1) >> 32) + (with_weight ? 0 : 1);
    report_damage(tile, version, stream, (fault - 1) & 0xffffffffu);
  }
}

void TileStore::report_damage(std::uint32_t tile, const Version& version, std::uint32_t stream,
                              std::uint64_t chunk) const {
  const TilePlace& place = version.place;
  const bool is_weight = stream == 0;
  throw Error(
      Code::kCorrupt,
      subject(is_weight ? "swap in" : "swap in state of", tile).text() + ": " +
          p_.swap->place(is_weight ? place.weight : place.record) + ": stream " +
          std::to_string(stream) + ", chunk " + std::to_string(chunk) + " (generation " +
          std::to_string(version.generation) +
          "): the checksum differs from what was written; these bytes were not used. The file was "
          "changed or the drive is failing. " +
          what_helps_damage(p_.plan.durable()));
}

// `weight`: where the tile's weight is written.
void TileStore::seal_header(std::uint32_t tile, TileView view, const swap::Extent& weight) {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const DType dtype = p_.partition.section_of(tile).dtype;
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
  if (view.weight_moves || p_.plan.durable()) {
    std::uint64_t* const first = header.checksum + checksum;
    add("weight", weight_codec(dtype), swap::kElsewhere | weight.offset_bytes, plan.weight_bytes);
    if (checked) std::ranges::copy(p_.places.weight_checksums(tile), first);
  }
  HEADRACE_CHECK(checksum <= swap::kMaxChecksums, "the largest tile's checksums fit a header");
  swap::begin_header(header, identity(tile, p_.places.next_generation(tile)), elements,
                     {entries, count}, p_.places.records_beside(tile));
  swap::finish_header(header);
}

async::Task<> TileStore::write(std::uint32_t tile, TileView view, TileParts parts) {
  refuse_another_write(tile);
  TilePlace target = p_.places.target_of(tile);
  try {
    co_await write_to(target, tile, view, parts);
  } catch (...) {
    p_.places.note_moved(tile, target);
    throw;
  }
  p_.places.note_written(tile, target);
}

async::Task<> TileStore::write_to(TilePlace& target, std::uint32_t tile, TileView view,
                                  TileParts parts) {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const swap::Extent named = target.weight;
  const bool has_header = view.record_moves || (p_.plan.durable() && !is_frozen(tile));
  if (parts.record && has_header) seal_header(tile, view, target.weight);
  const auto span = span_of(TraceLane::kNvmeWrite, "write", tile, view, parts);
  async::TaskGroup writes;
  if (parts.weight && view.weight_moves) {
    writes.spawn(p_.swap->write(target.weight, {view.weight, plan.weight_bytes},
                                Priority::kWriteBack, subject("swap out", tile)));
  }
  if (parts.record && view.record_moves) {
    writes.spawn(p_.swap->write(target.record, {view.record, plan.layout.size_bytes},
                                Priority::kWriteBack, subject("swap out state of", tile)));
  }
  co_await writes.join();
  // A write that failed once went to another extent, and the header names the weight's.
  const bool moved = target.weight.offset_bytes != named.offset_bytes;
  if (moved && parts.record && has_header) {
    seal_header(tile, view, target.weight);
    if (view.record_moves) {
      co_await p_.swap->write(target.record, {view.record, plan.layout.size_bytes},
                              Priority::kWriteBack, subject("swap out state of", tile));
    }
  }
}

async::Task<> TileStore::read_verified(std::uint32_t tile, TileView view, TileParts parts,
                                       Priority priority) {
  co_await read(tile, view, parts, priority);
  TilePass pass;
  prepare(pass, tile, view, parts, false);
  if (pass.any_verify()) co_await run(pass, tile);
}

// ---- of a durable engine ----

// The store keeps one slot for what is never trained: a frozen model need not be there twice.
void TileStore::refuse_another_write(std::uint32_t tile) const {
  if (p_.places.may_be_written(tile)) return;
  throw Error(
      Code::kWrongState,
      subject("load of", tile).text() +
          ": its parameters are frozen and belong to a committed step, so they cannot be "
          "loaded again; nothing was written. Use another headrace.store for other weights.");
}

// Only the resident parts of this view are of use: the arena stands in for the update slot of the
// others, which view() does not touch.
TileView TileStore::resident_view(std::uint32_t tile) const { return view(tile, p_.arena.bytes()); }

// Straight from where the bytes live: they do not change before the next step, which waits for
// this.
async::Task<> TileStore::write_back(std::uint32_t tile) {
  TilePlace place = p_.places.current(tile);
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const auto swapped = residency::extents_of(p_.plan, p_.partition, tile);
  const TileView view = resident_view(tile);
  async::TaskGroup writes;
  if (swapped.weight_bytes == 0) {
    writes.spawn(p_.swap->write(place.weight, {view.weight, plan.weight_bytes},
                                Priority::kBackground, subject("commit", tile)));
  }
  if (swapped.record_bytes == 0 && !is_frozen(tile)) {
    writes.spawn(p_.swap->write(place.record, {view.record, plan.layout.size_bytes},
                                Priority::kBackground, subject("commit state of", tile)));
  }
  co_await writes.join();
  p_.places.note_written_back(tile, place);
}

async::Task<> TileStore::read_resident(std::uint32_t tile) {
  const auto swapped = residency::extents_of(p_.plan, p_.partition, tile);
  TileView view = resident_view(tile);
  view.weight_moves = swapped.weight_bytes == 0;
  view.record_moves = swapped.record_bytes == 0 && !is_frozen(tile);
  if (!view.weight_moves && !view.record_moves) co_return;
  co_await read_verified(tile, view, {.weight = view.weight_moves, .record = view.record_moves},
                         Priority::kDemand);
}

async::Task<> TileStore::check_header(std::uint32_t tile, std::span<std::byte> page) {
  swap::Extent extent = p_.places.current(tile).record;
  if (extent.size_bytes == 0) co_return;
  extent.size_bytes = swap::kHeaderBytes;
  co_await p_.swap->read(extent, page.first(swap::kHeaderBytes), Priority::kDemand,
                         subject("open state of", tile));
  require_header(tile, present_version(tile), page.data());
}

TileStore::Version TileStore::version_of(std::uint32_t tile,
                                         const swap::CommitRecord& record) const {
  const swap::CommitTile& at = record.tiles()[tile];
  const auto stored = residency::stored_extents(p_.plan, p_.partition, tile);
  const std::uint32_t slot = at.slot & 1;
  return {{{at.drive, at.weight_offset[slot], stored.weight_bytes},
           {at.drive, at.record_offset[slot], stored.record_bytes}},
          at.generation,
          at.generation,
          p_.places.committed_weight_checksums(tile, record).data()};
}

async::Task<TileView> TileStore::read_committed(std::uint32_t tile,
                                                const swap::CommitRecord& record,
                                                std::span<std::byte> memory) {
  TileView view;
  view.record = memory.data();
  view.weight = memory.data() + p_.plan.tiles[tile].layout.size_bytes;
  view.weight_moves = true;
  view.record_moves = !is_frozen(tile);
  co_await read_version(tile, version_of(tile, record), view, kWholeTile, Priority::kBackground);
  co_return view;
}

TileLayout TileStore::verify_committed(std::uint32_t tile, const swap::CommitRecord& record,
                                       TileView view) {
  const Version version = version_of(tile, record);
  TilePass pass;
  prepare_version(pass, tile, version, view, kWholeTile, false);
  for (std::uint64_t chunk = 0; chunk < pass.chunks(); ++chunk) TilePass::run_chunk(&pass, chunk);
  throw_if_damaged(pass, tile, version);
  return pass.tile;
}
}  // namespace headrace::tiles
