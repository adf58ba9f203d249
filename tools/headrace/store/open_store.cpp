// SPDX-License-Identifier: Apache-2.0
#include "store/open_store.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "async/task.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "swap/record.hpp"

namespace headrace::tools {
namespace {
constexpr std::size_t kShownTensors = 2;

template <std::size_t kSize>
std::string text_of(const char (&name)[kSize]) {
  return {name, ::strnlen(name, kSize)};
}

[[noreturn]] void damaged(const std::string& fault) { throw Error(Code::kCorrupt, fault); }

std::span<std::byte> window_of(const swap::IoBuffer& window) {
  return {window.get(), static_cast<std::size_t>(OpenStore::kWindowBytes)};
}

swap::CommitRecord record_in(const swap::IoBuffer& memory, const swap::StoreHead& head) {
  std::string fault;
  return swap::CommitRecord::read({memory.get(), static_cast<std::size_t>(head.commit_bytes)},
                                  head.store, fault);
}

void refuse_shorter(const std::string& store, const std::string& path, std::uint64_t has,
                    std::uint64_t end, const std::string& what) {
  if (end <= has) return;
  throw Error(Code::kCorrupt, "store '" + store + "': " + path + " was truncated: it has " +
                                  std::to_string(has) + " bytes, and " + what + " ends at " +
                                  std::to_string(end) +
                                  "; nothing else was read. Restore the store from a copy.");
}

// Of a tile's weight or record that lies at `offset`, in either slot.
std::uint64_t size_at(const swap::CommitTile& at, const StoredTile& tile, std::uint64_t offset) {
  const bool is_weight = std::ranges::count(at.weight_offset, offset) > 0;
  const std::uint64_t begin = (is_weight ? at.weight_offset : at.record_offset)[at.slot & 1];
  std::uint64_t end = begin;
  for (const StoredStream& stream : tile.streams) {
    if ((stream.name == "weight") == is_weight)
      end = std::max(end, stream.offset_bytes + stream.size_bytes);
  }
  return base::align_up(end - begin, base::kIoAlignment);
}

swap::SwapTierOptions tier_over(const StorePlace& place, std::vector<std::uint64_t>& drive_bytes) {
  swap::SwapTierOptions options;
  options.rank = place.rank;
  options.paths = place.drives;
  options.log = [](LogLevel, std::string_view) {};
  options.make_queue = [](const swap::IoQueueOptions& queue) {
    return swap::choose_io_queue(IoQueueKind::kAuto, queue);
  };
  options.make_drive = &swap::make_drive_thread;
  for (std::uint32_t d = 0; d < place.drives.size(); ++d) {
    auto file =
        swap::StoreFile::open(place.drives[d], {place.name, place.rank, d}, swap::StoreUse::kRead);
    drive_bytes.push_back(file->size_bytes());
    options.files.push_back(std::move(file));
  }
  options.drive_bytes = drive_bytes;
  return options;
}
}  // namespace

StorePlace find_store(const std::string& name, std::uint32_t rank,
                      const std::vector<swap::PathProbe>& paths) {
  StorePlace place{name, rank, {}};
  std::vector<std::pair<std::uint32_t, const swap::PathProbe*>> found;
  for (const swap::PathProbe& path : paths) {
    for (const std::uint32_t drive : swap::drives_in_store(path, name, rank))
      found.emplace_back(drive, &path);
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  for (const auto& [drive, path] : found) {
    if (drive < place.drives.size()) {
      throw Error(Code::kInvalidArgument,
                  "store '" + name + "' has two files for drive " + std::to_string(drive) +
                      " of rank " + std::to_string(rank) + ", in " + place.drives[drive].path +
                      " and in " + path->path +
                      ": the paths hold two copies of one store; nothing was read. Name the paths "
                      "of one copy.");
    }
    if (drive > place.drives.size()) {
      throw Error(Code::kNotFound, "store '" + name + "' lacks its file of drive " +
                                       std::to_string(place.drives.size()) +
                                       "; nothing was read. Name the paths of all its drives.");
    }
    place.drives.push_back(*path);
  }
  return place;
}

OpenStore::OpenStore(const StorePlace& place)
    : name_(place.name),
      conductor_(async::make_conductor_asio()),
      tier_(std::make_unique<swap::SwapTier>(*conductor_, tier_over(place, drive_bytes_))),
      window_(swap::make_io_buffer(kWindowBytes)) {
  const auto drives = static_cast<std::uint32_t>(place.drives.size());
  swap::CommitRing ring(*tier_, place.name, drives);
  head_ = async::call(*conductor_, nullptr, [&] {
    return ring.read_heads({window_.get(), swap::kStoreHeadBytes}, place.rank);
  });
  if (!swap::is_possible_size(head_.commit_bytes) ||
      !swap::is_possible_size(head_.registration_bytes)) {
    throw Error(Code::kCorrupt, "store '" + name_ + "': its header has an impossible size; " +
                                    "nothing else was read. Restore it from a copy.");
  }
  for (std::uint32_t d = 0; d < drives; ++d) {
    refuse_shorter(name_, tier_->file_path(d), drive_bytes_[d],
                   swap::first_slot_offset(head_.commit_bytes, head_.registration_bytes),
                   "what stands before its tiles");
  }
  tier_->continue_run(head_.store);
  memory_ = swap::make_io_buffer(head_.commit_bytes);
  newest_ = async::call(*conductor_, nullptr, [&] {
    return ring.read_newest(head_.store, {memory_.get(), head_.commit_bytes});
  });
  record_ = record_in(memory_, head_);
  if (epoch() == 0) return;
  read_registration();
  refuse_truncated();
}

std::uint64_t OpenStore::size_bytes() const noexcept {
  return std::accumulate(drive_bytes_.begin(), drive_bytes_.end(), std::uint64_t{0});
}

void OpenStore::go_to(std::uint64_t epoch) {
  if (epoch == newest_.epoch) return;
  swap::CommitRing ring(*tier_, name_, head_.drives);
  async::call(*conductor_, nullptr, [&] {
    return ring.read_epoch(head_.store, epoch, {memory_.get(), head_.commit_bytes});
  });
  record_ = record_in(memory_, head_);
}

void OpenStore::read(const swap::Extent& extent, std::span<std::byte> into) {
  async::call(*conductor_, nullptr, [&] {
    return tier_->read(extent, into.first(extent.size_bytes), swap::Priority::kDemand,
                       {"verify store", &name_, swap::Subject::kNoTile});
  });
}

// ---- the registration ----

// Every drive has a copy. A damaged one is named, and another taken.
void OpenStore::read_registration() {
  const auto size = static_cast<std::size_t>(head_.registration_bytes);
  const swap::IoBuffer bytes = swap::make_io_buffer(size);
  for (std::uint32_t d = 0; d < head_.drives; ++d) {
    const swap::Extent at{d, swap::registration_offset(head_.commit_bytes), size};
    std::string fault;
    try {
      read(at, {bytes.get(), size});
      swap::StoreRegistration found = swap::unpacked({bytes.get(), size}, head_.store, fault);
      if (fault.empty() && !registration_) {
        if (fits_registration(found)) {
          registration_ = std::move(found);
        } else {
          fault = "it does not fit the commit record";
        }
      }
    } catch (const Error& error) {
      if (error.code() == Code::kIoStalled) throw;
      fault = error.what();
    }
    if (!fault.empty() && registration_fault_.empty())
      registration_fault_ = "registration in " + tier_->place(at) + ": " + fault;
  }
}

// Whether the tiles of the record are those that an engine cuts these parameters into.
bool OpenStore::fits_registration(const swap::StoreRegistration& registration) {
  const std::uint64_t tile_elements = registration.tile_elements;
  if (tile_elements == 0 || tile_elements % base::kBlockElements != 0) return false;
  std::vector<partition::GroupShape> groups(registration.groups.size());
  std::uint32_t group = 0;
  for (const swap::StoredParameter& p : registration.parameters) {
    if (p.group < group || p.group >= groups.size()) return false;
    if (std::ranges::any_of(p.shape, [](std::int64_t size) { return size <= 0; })) return false;
    group = p.group;
    groups[group].parameters.push_back({p.full_name, p.dtype, p.shape, {}, p.frozen});
  }
  partition_ = partition::make_partition(groups, tile_elements, head_.rank, head_.world_size);
  for (std::size_t i = 0; i < registration.parameters.size(); ++i) {
    const partition::Parameter& cut = partition_.parameters[i];
    const swap::StoredParameter& stored = registration.parameters[i];
    if (cut.section != stored.section || cut.first_element != stored.first_element) return false;
  }
  first_weight_checksum_.clear();
  std::uint64_t checksums = 0;
  for (const partition::Tile& tile : partition_.tiles) {
    first_weight_checksum_.push_back(checksums);
    checksums += swap::chunks_of(tile.elements);
  }
  const swap::CommitCounts& counts = record_->head().counts;
  return counts.tiles == partition_.tiles.size() && counts.weight_checksums == checksums;
}

// "... (of 'a', 'b' and 5 more)": the tensors with elements in this part of a tile.
std::string OpenStore::with_tensors(std::string fault, std::uint32_t tile, std::uint64_t first,
                                    std::uint64_t elements) const {
  if (!registration_) return fault;
  std::size_t tensors = 0;
  for (const partition::Segment& one : partition_.segments_of(partition_.tiles[tile])) {
    if (one.first_element >= first + elements || one.first_element + one.elements <= first)
      continue;
    if (tensors++ >= kShownTensors) continue;
    fault += tensors == 1 ? " (of '" : ", '";
    fault += registration_->parameters[one.parameter].full_name + "'";
  }
  if (tensors > kShownTensors) fault += " and " + std::to_string(tensors - kShownTensors) + " more";
  return tensors == 0 ? fault : fault + ")";
}

// ---- tiles ----

swap::Extent OpenStore::place_of_record(std::uint32_t t) const {
  const swap::CommitTile& tile = record_->tiles()[t];
  return {tile.drive, tile.record_offset[tile.slot & 1], swap::kHeaderBytes};
}

std::string OpenStore::place_of_tile(std::uint32_t t) const {
  const swap::CommitTile& tile = record_->tiles()[t];
  swap::Extent at = place_of_record(t);
  if (at.offset_bytes == 0) at.offset_bytes = tile.weight_offset[tile.slot & 1];
  return tier_->place(at);
}

// A file is as long as the last place of a tile on its drive needs, in either slot.
void OpenStore::refuse_truncated() {
  struct Last {
    std::uint64_t offset_bytes = 0;
    std::uint32_t tile = 0;
  };
  std::vector<Last> last(drive_bytes_.size());
  for (std::uint32_t t = 0; t < tiles(); ++t) {
    const swap::CommitTile& at = record_->tiles()[t];
    if (at.drive >= last.size()) continue;
    for (const auto& offsets : {at.weight_offset, at.record_offset}) {
      const std::uint64_t offset = std::max(offsets[0], offsets[1]);
      if (offset > last[at.drive].offset_bytes) last[at.drive] = {offset, t};
    }
  }
  for (std::uint32_t d = 0; d < last.size(); ++d) {
    const auto [offset, t] = last[d];
    std::uint64_t size = base::kIoAlignment;
    try {
      if (offset != 0 && offset < drive_bytes_[d])
        size = size_at(record_->tiles()[t], tile(t), offset);
    } catch (const Error& error) {
      if (error.code() == Code::kIoStalled) throw;  // damage is for verify() to name
    }
    if (offset == 0) continue;
    refuse_shorter(name_, tier_->file_path(d), drive_bytes_[d], offset + size,
                   "its tile " + std::to_string(t));
  }
}

StoredTile OpenStore::tile(std::uint32_t number) {
  StoredTile tile{number, record_->tiles()[number].drive, 0, {}};
  if (place_of_record(number).offset_bytes == 0) {
    add_frozen_weight(tile);
  } else {
    add_streams(tile);
  }
  return tile;
}

// The checksums are in the commit record, as are those of all weights. Zeros: none was computed.
void OpenStore::add_frozen_weight(StoredTile& tile) const {
  if (!registration_) damaged("the registration is damaged, so its weights cannot be told");
  const swap::CommitTile& at = record_->tiles()[tile.number];
  const DType dtype = partition_.section_of(tile.number).dtype;
  tile.elements = partition_.tiles[tile.number].elements;
  StoredStream weight{
      "weight", "", at.weight_offset[at.slot & 1], tile.elements * headrace::size_bytes(dtype),
      0,        {}};
  weight.seed =
      swap::checksum_seed({head_.store, tile.number, at.generation, 0}, swap::kWeightStream);
  weight.checksums = committed_checksums(tile.number);
  tile.streams.push_back(std::move(weight));
}

// Of a tile's weight, as the epoch has them. None: with headrace.checksums off, or where the
// registration is damaged that says which they are.
std::vector<std::uint64_t> OpenStore::committed_checksums(std::uint32_t t) const {
  if (!registration_) return {};
  const auto sums = record_->weight_checksums().subspan(
      first_weight_checksum_[t], swap::chunks_of(partition_.tiles[t].elements));
  if (std::ranges::all_of(sums, [](std::uint64_t sum) { return sum == 0; })) return {};
  return {sums.begin(), sums.end()};
}

void OpenStore::add_streams(StoredTile& tile) {
  const std::uint32_t t = tile.number;
  const swap::CommitTile& at = record_->tiles()[t];
  const std::uint32_t slot = at.slot & 1;
  read(place_of_record(t), window_of(window_));
  swap::RecordHeader header;
  std::memcpy(&header, window_.get(), sizeof header);
  const auto refuse = [&](const std::string& fault) {
    damaged(with_tensors(fault, t, 0, registration_ ? partition_.tiles[t].elements : 0));
  };
  const std::string fault = swap::header_fault(header, {head_.store, t, at.generation, 0});
  if (!fault.empty()) refuse(fault);
  tile.elements = header.elements;
  const std::uint64_t chunks = swap::chunks_of(tile.elements);
  if (chunks > swap::kMaxChecksums ||
      (registration_ && tile.elements != partition_.tiles[t].elements))
    refuse("its header's sizes are impossible");
  for (std::uint32_t s = 0; s < header.streams; ++s) {
    const swap::StreamEntry& entry = header.stream[s];
    const bool is_weight = (entry.offset_bytes & swap::kElsewhere) != 0;
    if (entry.size_bytes > tile.elements * 4 ||
        (entry.checksums != 0 && entry.checksums != chunks) ||
        std::uint64_t{entry.first_checksum} + entry.checksums > swap::kMaxChecksums)
      refuse("its header's sizes are impossible");
    const std::uint64_t* const first = header.checksum + entry.first_checksum;
    std::vector<std::uint64_t> sums(first, first + entry.checksums);
    // The epoch's count, and the header's are a copy: an engine reads the weight without it.
    if (std::vector<std::uint64_t> committed = committed_checksums(t);
        is_weight && !committed.empty())
      sums = std::move(committed);
    tile.streams.push_back(
        {text_of(entry.name), text_of(entry.codec),
         is_weight ? at.weight_offset[slot] : at.record_offset[slot] + entry.offset_bytes,
         entry.size_bytes,
         swap::checksum_seed({head_.store, t, at.generation, 0},
                             is_weight ? swap::kWeightStream : s),
         std::move(sums)});
  }
}

std::span<const std::byte> OpenStore::read_chunk(const StoredTile& tile, const StoredStream& stream,
                                                 std::uint32_t chunk, std::span<std::byte> window) {
  const std::uint64_t whole = stream.size_bytes * base::kChunkElements / tile.elements;
  const std::uint64_t done = std::min(chunk * whole, stream.size_bytes);
  const std::uint64_t size = std::min(whole, stream.size_bytes - done);
  // A chunk of scales is shorter than a page.
  const std::uint64_t begin = stream.offset_bytes + done;
  const std::uint64_t start = base::align_down(begin, base::kIoAlignment);
  const std::uint64_t lead = begin - start;
  if (size > 0) read({tile.drive, start, base::align_up(lead + size, base::kIoAlignment)}, window);
  const auto bytes = window.subspan(static_cast<std::size_t>(lead), static_cast<std::size_t>(size));
  if (stream.checksums.empty() || kernels::xxh3_64(bytes, stream.seed) == stream.checksums[chunk])
    return bytes;
  damaged(with_tensors("stream " + stream.name + ", chunk " + std::to_string(chunk) + ", at " +
                           std::to_string(begin) + ": the checksum differs from what was written",
                       tile.number, chunk * base::kChunkElements, base::kChunkElements));
}

// ---- verify ----

Verified OpenStore::verify(const std::function<void()>& each_tile) {
  Verified out;
  if (epoch() == 0) return out;
  if (!registration_fault_.empty()) out.damage.push_back(registration_fault_);
  for (std::uint32_t t = 0; t < tiles(); ++t) {
    each_tile();
    verify_tile(t, out);
  }
  return out;
}

// Up to its first fault.
void OpenStore::verify_tile(std::uint32_t t, Verified& out) {
  ++out.tiles;
  if (!registration_ && place_of_record(t).offset_bytes == 0) {
    ++out.frozen_tiles;
    return;
  }
  try {
    const StoredTile stored = tile(t);
    for (const StoredStream& stream : stored.streams) {
      if (stream.checksums.empty()) out.unchecked_bytes += stream.size_bytes;
      for (std::uint32_t chunk = 0; chunk < stream.checksums.size(); ++chunk)
        out.verified_bytes += read_chunk(stored, stream, chunk, window_of(window_)).size();
    }
  } catch (const Error& error) {
    if (error.code() == Code::kIoStalled) throw;
    out.damage.push_back("tile " + std::to_string(t) + " on " + place_of_tile(t) + ": " +
                         error.what());
  }
}
}  // namespace headrace::tools
