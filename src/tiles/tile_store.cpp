// SPDX-License-Identifier: Apache-2.0
#include "tiles/tile_store.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "residency/layout.hpp"

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
  // The checksums of a tile's weight stand together, in the order of the tiles.
  for (std::uint32_t t = 0; t < tiles.size(); ++t) {
    states_[t].first_weight_checksum = static_cast<std::uint32_t>(checksums);
    checksums += weight_chunks(t);
  }
  weight_checksums_.resize(checksums);
  records_of_drive_.assign(p_.plan.drive_bytes.size(), 0);
  if (durable()) slots_of_.resize(tiles.size());
  for (std::uint32_t t = 0; t < tiles.size(); ++t) {
    if (residency::stored_extents(p_.plan, p_.partition, t).record_bytes > 0)
      ++records_of_drive_[p_.plan.tiles[t].drive];
  }
}

// All weights first: they lie one after another, so that a gather reads long stretches. For the
// same reason all first slots, then all second ones.
void TileStore::allocate() {
  const auto tiles = static_cast<std::uint32_t>(p_.partition.tiles.size());
  const auto extents_of = [&](std::uint32_t t) {
    return residency::stored_extents(p_.plan, p_.partition, t);
  };
  const auto take = [&](std::uint32_t t, std::uint64_t bytes, swap::Extent& extent) {
    if (bytes > 0) extent = p_.swap->allocate(p_.plan.tiles[t].drive, bytes);
  };
  for (std::uint32_t t = 0; t < tiles; ++t)
    take(t, extents_of(t).weight_bytes, states_[t].weight_extent);
  for (std::uint32_t t = 0; t < slots_of_.size(); ++t) {
    if (extents_of(t).slots == 2) take(t, extents_of(t).weight_bytes, slots_of_[t].other_weight);
  }
  for (std::uint32_t t = 0; t < tiles; ++t)
    take(t, extents_of(t).record_bytes, states_[t].record_extent);
  for (std::uint32_t t = 0; t < slots_of_.size(); ++t)
    take(t, extents_of(t).record_bytes, slots_of_[t].other_record);
}

std::uint64_t TileStore::weight_chunks(std::uint32_t tile) const {
  return swap::chunks_of(p_.partition.tiles[tile].elements);
}

std::uint64_t TileStore::bookkeeping_bytes(const partition::Partition& partition, bool durable) {
  const std::uint64_t each = sizeof(TileState) + (durable ? sizeof(Slots) : 0);
  return partition.tiles.size() * each + weight_checksums(partition) * sizeof(std::uint64_t);
}

std::uint64_t TileStore::weight_checksums(const partition::Partition& partition) noexcept {
  std::uint64_t checksums = 0;
  for (const partition::Tile& tile : partition.tiles) checksums += swap::chunks_of(tile.elements);
  return checksums;
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
    if (!fault.empty()) throw_header_fault(tile, fault);
  }
}

void TileStore::throw_header_fault(std::uint32_t tile, const std::string& fault) const {
  throw Error(Code::kCorrupt,
              subject("swap in state of", tile).text() + ": " +
                  p_.swap->place(states_[tile].record_extent) +
                  ": the record's header is not what was written: " + fault +
                  "; the file was changed or the drive is failing. Start again on another drive.");
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
                              std::uint64_t* checksums, bool in_slot, std::uint32_t number) {
    PassStream& stream = pass.streams[pass.stream_count++];
    stream.data = data;
    stream.bytes_per_scale = static_cast<std::uint32_t>(bytes_per_scale);
    stream.checksums = checksums;
    stream.verify = checked && in_slot;
    stream.seal = checked && (in_slot || durable()) && seal;
    if (!stream.verify && !stream.seal) return;
    stream.verify_seed = swap::checksum_seed(identity(tile, state.generation), number);
    stream.seal_seed = swap::checksum_seed(identity(tile, next_generation(tile)), number);
  };
  if (parts.weight) {
    add_stream(view.weight, size_bytes(dtype) * base::kScaleElements,
               weight_checksums_.data() + state.first_weight_checksum, view.weight_in_slot,
               swap::kWeightStream);
  }
  if (!pass.tile.has_state) return;
  const auto streams = optimizer_cpu::state_streams(p_.settings, dtype);
  const bool has_header = view.record_in_slot || durable();
  std::uint64_t* checksums =
      has_header ? reinterpret_cast<swap::RecordHeader*>(view.record)->checksum : nullptr;
  for (std::uint32_t s = 0; s < streams.count; ++s) {
    add_stream(stream_of(tile, view, s), streams.stream[s].bytes_per_scale, checksums,
               view.record_in_slot, s);
    if (checksums != nullptr) checksums += pass.chunks();
  }
}

async::Task<> TileStore::run(TilePass& pass, std::uint32_t tile) {
  co_await p_.workers.for_units(pass.chunks(), &TilePass::run_chunk, &pass);
  if (const std::uint64_t fault = pass.fault.load()) {
    const bool with_weight = pass.tile.weight != nullptr;
    // Numbered as in a pass over the whole tile: 0 is the weight.
    const auto stream = static_cast<std::uint32_t>((fault - 1) >> 32) + (with_weight ? 0 : 1);
    report_damage(tile, stream, (fault - 1) & 0xffffffffu);
  }
}

void TileStore::report_damage(std::uint32_t tile, std::uint32_t stream, std::uint64_t chunk) const {
  const TileState& state = states_[tile];
  const bool is_weight = stream == 0;
  const swap::Extent& extent = is_weight ? state.weight_extent : state.record_extent;
  throw Error(
      Code::kCorrupt,
      subject(is_weight ? "swap in" : "swap in state of", tile).text() + ": " +
          p_.swap->place(extent) + ": stream " + std::to_string(stream) + ", chunk " +
          std::to_string(chunk) + " (generation " + std::to_string(state.generation) +
          "): the checksum differs from what was written; these bytes were not used. The file was "
          "changed or the drive is failing. Start again on another drive.");
}

// `weight`: where the tile's weight is written.
void TileStore::seal_header(std::uint32_t tile, TileView view, const swap::Extent& weight) {
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
  if (view.weight_in_slot || durable()) {
    const std::uint32_t first = checksum;
    add("weight", weight_codec(dtype), swap::kElsewhere | weight.offset_bytes, plan.weight_bytes);
    std::memcpy(header.checksum + first,
                weight_checksums_.data() + states_[tile].first_weight_checksum,
                (checksum - first) * sizeof(std::uint64_t));
  }
  HEADRACE_CHECK(checksum <= swap::kMaxChecksums, "the largest tile's checksums fit a header");
  swap::begin_header(header, identity(tile, next_generation(tile)), elements, {entries, count},
                     records_of_drive_[plan.drive]);
  swap::finish_header(header);
}

async::Task<> TileStore::write(std::uint32_t tile, TileView view, TileParts parts) {
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  if (durable()) refuse_another_write(tile);
  Target target = target_of(tile);
  const swap::Extent named = target.weight;
  const bool has_header = view.record_in_slot || (durable() && !is_frozen(tile));
  if (parts.record && has_header) seal_header(tile, view, target.weight);
  const auto span = span_of(TraceLane::kNvmeWrite, "write", tile, view, parts);
  async::TaskGroup writes;
  if (parts.weight && view.weight_in_slot) {
    writes.spawn(p_.swap->write(target.weight, {view.weight, plan.weight_bytes},
                                Priority::kWriteBack, subject("swap out", tile)));
  }
  if (parts.record && view.record_in_slot) {
    writes.spawn(p_.swap->write(target.record, {view.record, plan.layout.size_bytes},
                                Priority::kWriteBack, subject("swap out state of", tile)));
  }
  co_await writes.join();
  // A write that failed once went to another extent, and the header names the weight's.
  const bool moved = target.weight.offset_bytes != named.offset_bytes;
  if (moved && parts.record && has_header) {
    seal_header(tile, view, target.weight);
    if (view.record_in_slot) {
      co_await p_.swap->write(target.record, {view.record, plan.layout.size_bytes},
                              Priority::kWriteBack, subject("swap out state of", tile));
    }
  }
  note_written(tile, target);
}

async::Task<> TileStore::read_verified(std::uint32_t tile, TileView view, TileParts parts,
                                       Priority priority) {
  co_await read(tile, view, parts, priority);
  TilePass pass;
  prepare(pass, tile, view, parts, false);
  if (pass.any_verify()) co_await run(pass, tile);
}

// ---- of a durable engine ----

// Counts from the incarnation's first on. A generation is never used twice, also not for an update
// that a crash undid: the drive may have dropped the write of the second.
std::uint64_t TileStore::next_generation(std::uint32_t tile) const noexcept {
  return std::max(states_[tile].generation, least_generation_) + 1;
}

TileStore::Target TileStore::target_of(std::uint32_t tile) const {
  const bool other = durable() && slots_of_[tile].committed;
  if (other) return {slots_of_[tile].other_weight, slots_of_[tile].other_record};
  return {states_[tile].weight_extent, states_[tile].record_extent};
}

// The store keeps one slot for what is never trained: a frozen model need not be there twice.
void TileStore::refuse_another_write(std::uint32_t tile) const {
  if (!is_frozen(tile) || !slots_of_[tile].committed) return;
  throw Error(Code::kWrongState,
              subject("load of", tile).text() +
                  ": its group is frozen and belongs to a committed step, so it cannot be loaded "
                  "again; nothing was written. Use another headrace.store for other weights.");
}

void TileStore::note_written(std::uint32_t tile, const Target& target) {
  TileState& state = states_[tile];
  state.generation = next_generation(tile);
  if (durable()) {
    Slots& slots = slots_of_[tile];
    if (std::exchange(slots.committed, false)) {
      slots.other_weight = state.weight_extent;
      slots.other_record = state.record_extent;
      slots.current ^= 1;
    }
    const auto in_slot = residency::extents_of(p_.plan, p_.partition, tile);
    const auto stored = residency::stored_extents(p_.plan, p_.partition, tile);
    slots.newer_in_memory =
        in_slot.weight_bytes != stored.weight_bytes || in_slot.record_bytes != stored.record_bytes;
  }
  state.weight_extent = target.weight;
  state.record_extent = target.record;
}

// Straight from where the bytes live: they do not change before the next step, which waits for
// this.
async::Task<> TileStore::write_back(std::uint32_t tile) {
  TileState& state = states_[tile];
  const residency::TilePlan& plan = p_.plan.tiles[tile];
  const auto in_slot = residency::extents_of(p_.plan, p_.partition, tile);
  const TileView view = this->view(tile, p_.arena.bytes());  // its slot is not used
  async::TaskGroup writes;
  if (in_slot.weight_bytes == 0) {
    writes.spawn(p_.swap->write(state.weight_extent, {view.weight, plan.weight_bytes},
                                Priority::kBackground, subject("commit", tile)));
  }
  if (in_slot.record_bytes == 0 && !is_frozen(tile)) {
    writes.spawn(p_.swap->write(state.record_extent, {view.record, plan.layout.size_bytes},
                                Priority::kBackground, subject("commit state of", tile)));
  }
  co_await writes.join();
  slots_of_[tile].newer_in_memory = false;
}

void TileStore::describe(const swap::CommitRecord& record) const {
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    const TileState& state = states_[t];
    const Slots& slots = slots_of_[t];
    swap::CommitTile& tile = record.tiles()[t];
    tile.generation = state.generation;
    tile.drive = p_.plan.tiles[t].drive;
    tile.slot = slots.current;
    tile.weight_offset[slots.current] = state.weight_extent.offset_bytes;
    tile.weight_offset[slots.current ^ 1] = slots.other_weight.offset_bytes;
    tile.record_offset[slots.current] = state.record_extent.offset_bytes;
    tile.record_offset[slots.current ^ 1] = slots.other_record.offset_bytes;
  }
  std::ranges::copy(weight_checksums_, record.weight_checksums().begin());
}

void TileStore::note_committed() noexcept {
  for (Slots& slots : slots_of_) slots.committed = true;
}

bool TileStore::as_committed() const noexcept {
  return std::ranges::all_of(slots_of_, [](const Slots& slots) { return slots.committed; });
}

// The generations of what is undone are not used again, nor those of writes that failed.
void TileStore::go_back(const swap::CommitRecord& record) {
  std::uint64_t used = least_generation_;
  for (std::uint32_t t = 0; t < states_.size(); ++t) used = std::max(used, next_generation(t));
  least_generation_ = used;
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    Slots& slots = slots_of_[t];
    if (std::exchange(slots.committed, true)) continue;
    std::swap(states_[t].weight_extent, slots.other_weight);
    std::swap(states_[t].record_extent, slots.other_record);
    slots.current ^= 1;
    slots.newer_in_memory = false;
    states_[t].generation = record.tiles()[t].generation;
  }
  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());
}

void TileStore::restore(const swap::CommitRecord& record, std::uint64_t incarnation) {
  constexpr int kIncarnationShift = 40;
  least_generation_ = incarnation << kIncarnationShift;
  for (std::uint32_t t = 0; t < states_.size(); ++t) {
    const swap::CommitTile& tile = record.tiles()[t];
    const auto extents = residency::stored_extents(p_.plan, p_.partition, t);
    const auto take = [&](std::uint64_t offset, std::uint64_t bytes) {
      const swap::Extent extent{tile.drive, offset, bytes};
      if (bytes > 0) p_.swap->take(extent);
      return bytes > 0 ? extent : swap::Extent{};
    };
    const std::uint32_t current = tile.slot & 1;
    states_[t].generation = tile.generation;
    states_[t].weight_extent = take(tile.weight_offset[current], extents.weight_bytes);
    states_[t].record_extent = take(tile.record_offset[current], extents.record_bytes);
    slots_of_[t].current = static_cast<std::uint8_t>(current);
    slots_of_[t].committed = true;
    if (extents.slots < 2) continue;
    slots_of_[t].other_weight = take(tile.weight_offset[current ^ 1], extents.weight_bytes);
    slots_of_[t].other_record = take(tile.record_offset[current ^ 1], extents.record_bytes);
  }
  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());
}

async::Task<> TileStore::read_resident(std::uint32_t tile) {
  const auto in_slot = residency::extents_of(p_.plan, p_.partition, tile);
  TileView view = this->view(tile, p_.arena.bytes());  // its slot is not used
  view.weight_in_slot = in_slot.weight_bytes == 0;
  view.record_in_slot = in_slot.record_bytes == 0 && !is_frozen(tile);
  if (!view.weight_in_slot && !view.record_in_slot) co_return;
  co_await read_verified(tile, view, {.weight = view.weight_in_slot, .record = view.record_in_slot},
                         Priority::kDemand);
}

async::Task<> TileStore::check_header(std::uint32_t tile, std::span<std::byte> page) {
  swap::Extent extent = states_[tile].record_extent;
  if (extent.size_bytes == 0) co_return;
  extent.size_bytes = swap::kHeaderBytes;
  co_await p_.swap->read(extent, page.first(swap::kHeaderBytes), Priority::kDemand,
                         subject("open state of", tile));
  const std::string fault =
      swap::header_fault(*reinterpret_cast<const swap::RecordHeader*>(page.data()),
                         identity(tile, states_[tile].generation));
  if (!fault.empty()) throw_header_fault(tile, fault);
}
}  // namespace headrace::tiles
