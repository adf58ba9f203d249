// SPDX-License-Identifier: Apache-2.0
#include "inspect/swap_inspection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "inspect/file_window.hpp"
#include "kernels/hash.hpp"
#include "swap/record.hpp"

namespace headrace::tools {
namespace fs = std::filesystem;
using swap::RecordHeader;
using swap::StreamEntry;

namespace {
template <std::size_t Size>
std::string padded_text(const char (&text)[Size]) {
  return {text, ::strnlen(text, Size)};
}

swap::RecordIdentity identity_of(const RecordHeader& header) {
  return {header.run, header.record, header.generation, header.slot};
}

// A header that was found, by where it was.
struct Found {
  std::uint64_t offset_bytes = 0;
  RecordHeader header;
  std::optional<std::uint64_t> weight_offset = {};  // in place of the header's own
};

// At a tile that is written anew meanwhile.
constexpr int kLooks = 100;

class Inspecting {
 public:
  Inspecting(const std::string& path, const InspectionProgress& progress)
      : file_(path), progress_(progress) {
    result_.path = path;
    result_.size_bytes = file_.size_bytes();
  }

  SwapInspection run() {
    if (is_store_file(result_.path, file_)) return run_store();
    find_records();
    drop_superseded();
    for (const Found& found : found_) check_record(found);
    if (!found_.empty()) summarize();
    count_lost();
    progress_(result_.size_bytes);
    return std::move(result_);
  }

 private:
  // Of a store the newest commit record says where each tile is.
  SwapInspection run_store() {
    result_.store = read_store(file_);
    const std::uint64_t first = result_.store->commit;
    if (!result_.store->damage.empty())
      note(result_.store->damage_offset, {}, result_.store->damage);
    for (std::size_t i = 0; i < result_.store->tiles.size(); ++i) {
      progress_(result_.size_bytes / result_.store->tiles.size() * i);
      if (!result_.store->tiles[i].frozen) settle_tile(i);
    }
    result_.store->commits_meanwhile = result_.store->commit - first;
    if (!found_.empty()) summarize();
    progress_(result_.size_bytes);
    return std::move(result_);
  }

  // An engine writes to slots that no commit names, and so, two commits later, to the one that is
  // looked at. Then what the newest commit names is looked at instead.
  void settle_tile(std::size_t i) {
    for (int look = 0; look < kLooks; ++look) {
      SwapInspection seen;
      into_ = &seen;
      const std::optional<Found> found = look_at_tile(*result_.store, result_.store->tiles[i]);
      into_ = &result_;
      if (seen.damaged > 0 && went_on()) continue;
      add(seen);
      if (found) found_.push_back(*found);
      return;
    }
    ++result_.store->unsettled_tiles;
  }

  // Whether there is a newer commit than when the records were last read.
  bool went_on() {
    file_.forget();
    StoreFacts now = read_store(file_);
    if (!now.damage.empty() || now.commit <= result_.store->commit) return false;
    now.unsettled_tiles = result_.store->unsettled_tiles;
    result_.store = std::move(now);
    return true;
  }

  void add(SwapInspection& seen) {
    for (const auto& [name, totals] : seen.streams) {
      result_.streams[name].streams += totals.streams;
      result_.streams[name].size_bytes += totals.size_bytes;
    }
    result_.verified_bytes += seen.verified_bytes;
    result_.unchecked_bytes += seen.unchecked_bytes;
    result_.damaged += seen.damaged;
    for (Damage& damage : seen.damage) {
      if (result_.damage.size() < kDamageKept) result_.damage.push_back(std::move(damage));
    }
  }

  // Nothing: its header is damaged.
  std::optional<Found> look_at_tile(const StoreFacts& store, const StoreTile& tile) {
    Found found;
    found.offset_bytes = tile.record_offset[tile.slot];
    found.weight_offset = tile.weight_offset[tile.slot];
    RecordHeader& header = found.header;
    header.record = tile.tile;
    header.generation = tile.generation;
    const bool inside = found.offset_bytes <= file_.size_bytes() &&
                        file_.size_bytes() - found.offset_bytes >= swap::kHeaderBytes;
    std::string fault = "past the file's end; it was cut off";
    if (inside) {
      std::memcpy(&header, file_.at(found.offset_bytes, sizeof header).data(), sizeof header);
      fault = swap::header_fault(header, {store.id, tile.tile, tile.generation, 0});
      if (fault.empty()) fault = bounds_fault(found);
      header.record = tile.tile;
      header.generation = tile.generation;
    }
    if (!fault.empty()) {
      note(found.offset_bytes, header, fault);
      return std::nullopt;
    }
    check_streams(found);
    return found;
  }

  void find_records() {
    std::uint64_t offset = 0;
    while (offset + swap::kHeaderBytes <= file_.size_bytes()) {
      offset += looks_like_record(offset) ? take_header(offset) : swap::kHeaderBytes;
      progress_(offset / 2);  // the other half of the work is to verify
    }
  }
  // By its magic or by what follows it, whichever is whole.
  bool looks_like_record(std::uint64_t offset) {
    struct {
      char magic[sizeof swap::kRecordMagic];
      std::uint32_t version, header_bytes;
    } begin;
    std::memcpy(&begin, file_.at(offset, sizeof begin).data(), sizeof begin);
    return std::memcmp(begin.magic, swap::kRecordMagic, sizeof begin.magic) == 0 ||
           (begin.version == swap::kRecordVersion && begin.header_bytes == swap::kHeaderBytes);
  }

  // Returns how many bytes belong to it.
  std::uint64_t take_header(std::uint64_t offset) {
    Found found;
    found.offset_bytes = offset;
    std::memcpy(&found.header, file_.at(offset, sizeof found.header).data(), sizeof found.header);
    const RecordHeader& header = found.header;
    std::string fault = swap::header_fault(header, identity_of(header));
    if (fault.empty()) fault = bounds_fault(found);
    if (!fault.empty()) {
      note(offset, header, fault);
      ++damaged_headers_;
      return swap::kHeaderBytes;
    }
    std::uint64_t end = swap::kHeaderBytes;
    for (const StreamEntry& entry : entries(header)) {
      if ((entry.offset_bytes & swap::kElsewhere) == 0)
        end = std::max(end, entry.offset_bytes + entry.size_bytes);
    }
    found_.push_back(found);
    return base::align_up(end, base::kIoAlignment);
  }

  static std::span<const StreamEntry> entries(const RecordHeader& header) {
    return std::span(header.stream).first(header.streams);
  }
  std::uint64_t begin_of(const Found& found, const StreamEntry& entry) const {
    if ((entry.offset_bytes & swap::kElsewhere) == 0)
      return found.offset_bytes + entry.offset_bytes;
    return found.weight_offset.value_or(entry.offset_bytes & ~swap::kElsewhere);
  }

  std::string bounds_fault(const Found& found) const {
    for (const StreamEntry& entry : entries(found.header)) {
      const std::uint64_t begin = begin_of(found, entry), end = begin + entry.size_bytes;
      const std::uint64_t chunks = swap::chunks_of(found.header.elements);
      if (end < begin || end > file_.size_bytes())
        return fmt::format("stream {} ends at {}, past the file's end; the file was cut off",
                           padded_text(entry.name), end);
      if (entry.checksums != 0 && (entry.checksums != chunks || chunks > swap::kMaxChecksums))
        return fmt::format("stream {} has {} checksums where {} belong", padded_text(entry.name),
                           entry.checksums, chunks);
      if (entry.first_checksum > swap::kMaxChecksums - entry.checksums)
        return fmt::format("stream {} has checksums {} to {}, of {} that a header holds",
                           padded_text(entry.name), entry.first_checksum,
                           std::uint64_t{entry.first_checksum} + entry.checksums,
                           swap::kMaxChecksums);
    }
    return "";
  }

  // Of several writes of a record, and of several runs, the newest is what the engine reads.
  void drop_superseded() {
    std::map<std::pair<swap::RunBytes, std::uint64_t>, std::uint64_t> newest;
    for (const Found& found : found_) {
      std::uint64_t& generation = newest[{found.header.run, found.header.record}];
      generation = std::max(generation, found.header.generation);
    }
    result_.superseded = std::erase_if(found_, [&](const Found& found) {
      return newest[{found.header.run, found.header.record}] != found.header.generation;
    });
  }

  void check_streams(const Found& found) {
    std::uint32_t number = 0;
    for (const StreamEntry& entry : entries(found.header)) {
      const bool elsewhere = (entry.offset_bytes & swap::kElsewhere) != 0;
      check_stream(found, entry, elsewhere ? swap::kWeightStream : number);
      ++number;
    }
  }

  void check_record(const Found& found) {
    check_streams(found);
    checked_ += 1;
    progress_(result_.size_bytes / 2 + result_.size_bytes / 2 * checked_ / found_.size());
  }

  void check_stream(const Found& found, const StreamEntry& entry, std::uint32_t number) {
    const std::string name = padded_text(entry.name);
    StreamTotals& totals = into_->streams[name];
    ++totals.streams;
    totals.size_bytes += entry.size_bytes;
    if (entry.checksums == 0) {
      into_->unchecked_bytes += entry.size_bytes;
      return;
    }
    const std::uint64_t begin = begin_of(found, entry);
    const std::uint64_t seed = swap::checksum_seed(identity_of(found.header), number);
    for (std::uint32_t chunk = 0; chunk < entry.checksums; ++chunk) {
      const auto [at, size] = swap::chunk_place(found.header, entry, chunk);
      const std::uint64_t got = kernels::xxh3_64(file_.at(begin + at, size), seed);
      const std::uint64_t wanted = found.header.checksum[entry.first_checksum + chunk];
      into_->verified_bytes += size;
      if (got == wanted) continue;
      note(begin + at, found.header,
           fmt::format("stream {}, chunk {}: checksum {:016x} where {:016x} belongs", name, chunk,
                       got, wanted));
    }
  }

  void note(std::uint64_t offset, const RecordHeader& header, std::string what) {
    ++into_->damaged;
    if (into_->damage.size() < kDamageKept)
      into_->damage.push_back({offset, header.record, header.generation, std::move(what)});
  }

  void summarize() {
    result_.records = found_.size();
    result_.first_generation = found_.front().header.generation;
    for (const Found& found : found_) {
      ++result_.runs[swap::run_id_text(found.header.run)];
      result_.numbers.push_back(found.header.record);
      result_.first_generation = std::min(result_.first_generation, found.header.generation);
      result_.last_generation = std::max(result_.last_generation, found.header.generation);
    }
    std::ranges::sort(result_.numbers);
  }

  // Each header says how many there are.
  void count_lost() {
    std::uint64_t& wanted = result_.records_in_file;
    std::set<std::pair<swap::RunBytes, std::uint64_t>> there;
    for (const Found& found : found_) {
      wanted = std::max(wanted, found.header.records_in_file);
      there.emplace(found.header.run, found.header.record);
    }
    const std::uint64_t found = there.size() + damaged_headers_;
    result_.lost_records = wanted > found ? wanted - found : 0;
    result_.damaged += result_.lost_records;
  }

  FileWindow file_;
  const InspectionProgress& progress_;
  std::vector<Found> found_;
  std::uint64_t checked_ = 0, damaged_headers_ = 0;
  SwapInspection result_;
  SwapInspection* into_ = &result_;  // or what one look at a tile has found
};
}  // namespace

SwapInspection inspect_swap_file(const std::string& path, const InspectionProgress& progress) {
  return Inspecting(path, progress).run();
}

namespace {
// A user's directory, a store's, a run's, or one of a run that comes or goes (docs/swap_file.md,
// "Directory").
bool may_hold_swap(const std::string& name) {
  return name.starts_with("headrace-") || name.starts_with("store-") || name.starts_with(".old-") ||
         name.starts_with(".new-") ||
         (name.size() >= 32 && std::all_of(name.begin(), name.begin() + 32,
                                           [](unsigned char c) { return std::isxdigit(c) != 0; }));
}
}  // namespace

std::vector<std::string> find_swap_files(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) throw cannot_open(path, ENOENT);
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> files;
  fs::recursive_directory_iterator entry(path, error), end;
  if (error) throw cannot_open(path, error.value());
  while (entry != end) {
    // nvme_path / headrace-uid / run or store / file
    const std::string name = entry->path().filename().string();
    const bool is_named = name.ends_with(".swap") || name.ends_with(".store");
    if (is_named && entry->symlink_status(error).type() == fs::file_type::regular)
      files.push_back(entry->path().string());
    if (entry.depth() >= 2 || !may_hold_swap(name)) entry.disable_recursion_pending();
    entry.increment(error);
    if (error) throw cannot_open(path, error.value());
  }
  std::ranges::sort(files);
  return files;
}
}  // namespace headrace::tools
