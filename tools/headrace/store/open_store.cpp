// SPDX-License-Identifier: Apache-2.0
#include "store/open_store.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "async/task.hpp"
#include "base/sizes.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "swap/record.hpp"

namespace headrace::tools {
namespace {
// The largest chunk of a stream, and what its first and last page add.
constexpr std::uint64_t kWindow = base::kChunkElements * 4 + 2 * base::kIoAlignment;
constexpr std::uint64_t kLargestRing = 256 * base::kMiB;

std::string text_of_entry(const swap::StreamEntry& entry) {
  return {entry.name, ::strnlen(entry.name, sizeof entry.name)};
}

swap::SwapTierOptions tier_over(const StorePlace& place, std::uint64_t& size_bytes) {
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
    size_bytes += file->size_bytes();
    options.drive_bytes.push_back(file->size_bytes());
    options.files.push_back(std::move(file));
  }
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
      throw Error(Code::kWrongState, "store '" + name + "' has two files for drive " +
                                         std::to_string(drive) + ", in " +
                                         place.drives[drive].path + " and in " + path->path +
                                         "; nothing was read. Leave the one that belongs to it.");
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
      tier_(std::make_unique<swap::SwapTier>(*conductor_, tier_over(place, size_bytes_))),
      window_(swap::make_io_buffer(kWindow)) {
  const auto drives = static_cast<std::uint32_t>(place.drives.size());
  swap::CommitRing ring(*tier_, place.name, drives);
  head_ = async::call(*conductor_, nullptr, [&] {
    return ring.read_heads({window_.get(), swap::kStoreHeadBytes}, place.rank);
  });
  if (head_.commit_bytes == 0 || head_.commit_bytes > kLargestRing ||
      head_.commit_bytes % base::kIoAlignment != 0) {
    throw Error(Code::kCorrupt, "store '" + name_ + "': its header has an impossible size; " +
                                    "nothing else was read. Restore it from a copy.");
  }
  tier_->continue_run(head_.store);
  memory_ = swap::make_io_buffer(head_.commit_bytes);
  newest_ = async::call(*conductor_, nullptr, [&] {
    return ring.read_newest(head_.store, {memory_.get(), head_.commit_bytes});
  });
}

swap::CommitRecord OpenStore::record() const {
  std::string fault;
  return swap::CommitRecord::read({memory_.get(), head_.commit_bytes}, head_.store, fault);
}

void OpenStore::read(const swap::Extent& extent) {
  async::call(*conductor_, nullptr, [&] {
    return tier_->read(extent, {window_.get(), extent.size_bytes}, swap::Priority::kDemand,
                       {"verify store", &name_, swap::Subject::kNoTile});
  });
}

Verified OpenStore::verify(const std::function<void()>& each_tile) {
  Verified out;
  if (root() == 0) return out;
  for (std::uint32_t t = 0; t < record().head().counts.tiles; ++t) {
    each_tile();
    verify_tile(t, out);
  }
  return out;
}

swap::Extent OpenStore::place_of_record(std::uint32_t t) const {
  const swap::CommitTile& tile = record().tiles()[t];
  return {tile.drive, tile.record_offset[tile.slot & 1], swap::kHeaderBytes};
}

void OpenStore::verify_tile(std::uint32_t t, Verified& out) {
  const swap::CommitTile& tile = record().tiles()[t];
  const swap::Extent at = place_of_record(t);
  ++out.tiles;
  if (at.offset_bytes == 0) {
    ++out.frozen_tiles;
    return;
  }
  std::string fault;
  try {
    read(at);
    swap::RecordHeader header;
    std::memcpy(&header, window_.get(), sizeof header);
    fault = swap::header_fault(header, {head_.store, t, tile.generation, 0});
    if (fault.empty()) fault = verify_streams(t, header, out);
  } catch (const Error& error) {
    if (error.code() == Code::kIoStalled) throw;
    fault = error.what();
  }
  if (!fault.empty())
    out.damage.push_back("tile " + std::to_string(t) + " on " + tier_->place(at) + ": " + fault);
}

// The first fault; chunk by chunk, as they were sealed.
std::string OpenStore::verify_streams(std::uint32_t t, const swap::RecordHeader& header,
                                      Verified& out) {
  const swap::CommitTile tile = record().tiles()[t];
  const std::uint32_t slot = tile.slot & 1;
  if (header.streams > swap::kMaxStreams || header.elements == 0)
    return "its header's sizes are impossible";
  for (std::uint32_t s = 0; s < header.streams; ++s) {
    const swap::StreamEntry& entry = header.stream[s];
    const bool is_weight = (entry.offset_bytes & swap::kElsewhere) != 0;
    const std::uint64_t begin =
        is_weight ? tile.weight_offset[slot] : tile.record_offset[slot] + entry.offset_bytes;
    if (entry.checksums == 0) out.unchecked_bytes += entry.size_bytes;
    const std::uint64_t seed = swap::checksum_seed({head_.store, t, tile.generation, 0},
                                                   is_weight ? swap::kWeightStream : s);
    for (std::uint32_t chunk = 0; chunk < entry.checksums; ++chunk) {
      const auto [done, size] = swap::chunk_place(header, entry, chunk);
      // A chunk of scales is shorter than a page.
      const std::uint64_t start = base::align_down(begin + done, base::kIoAlignment);
      const std::uint64_t lead = begin + done - start;
      const std::uint64_t whole = base::align_up(lead + size, base::kIoAlignment);
      if (size > kWindow || whole > kWindow || entry.first_checksum + chunk >= swap::kMaxChecksums)
        return "its header's sizes are impossible";
      if (size > 0) read({tile.drive, start, whole});
      const std::uint64_t got =
          kernels::xxh3_64({window_.get() + lead, static_cast<std::size_t>(size)}, seed);
      out.verified_bytes += size;
      if (got == header.checksum[entry.first_checksum + chunk]) continue;
      return "stream " + text_of_entry(entry) + ", chunk " + std::to_string(chunk) + ", at " +
             std::to_string(begin + done) + ": the checksum differs from what was written";
    }
  }
  return {};
}
}  // namespace headrace::tools
