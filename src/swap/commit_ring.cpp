// SPDX-License-Identifier: Apache-2.0
#include "swap/commit_ring.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "headrace/error.hpp"

namespace headrace::swap {
namespace {
constexpr Extent kHeadExtent(std::uint32_t drive) { return {drive, 0, kStoreHeadBytes}; }
}  // namespace

void CommitRing::refuse_other_format(const StoreHead& head, std::uint32_t drive) const {
  if (std::memcmp(head.magic, kStoreMagic, sizeof head.magic) != 0) return;
  if (head.version == kStoreVersion) return;
  throw Error(Code::kUnsupported,
              "store '" + store_ + "': " + tier_.file_path(drive) + " has version " +
                  std::to_string(head.version) + " of the format, and this build reads version " +
                  std::to_string(kStoreVersion) +
                  "; nothing was written. Go on with the release that made it, or name another "
                  "store.");
}

async::Task<StoreHead> CommitRing::read_heads(std::span<std::byte> page, std::uint32_t rank) {
  StoreHead first{};
  for (std::uint32_t d = 0; d < drives_; ++d) {
    co_await tier_.read(kHeadExtent(d), page.first(kStoreHeadBytes), Priority::kDemand,
                        subject("open store"));
    StoreHead head;
    std::memcpy(&head, page.data(), sizeof head);
    refuse_other_format(head, d);
    std::string fault = fault_of(head);
    if (d == 0) first = head;
    if (fault.empty() && head.store != first.store)
      fault = "it is of another store than " + tier_.file_path(0);
    if (fault.empty() && (head.rank != rank || head.drive != d)) {
      fault = "it was made for rank " + std::to_string(head.rank) + ", drive " +
              std::to_string(head.drive);
    }
    if (!fault.empty()) {
      throw Error(Code::kCorrupt,
                  "store '" + store_ + "': " + tier_.file_path(d) + ": " + fault +
                      "; nothing was written. Put the file back that belongs there, or name "
                      "another store.");
    }
  }
  if (first.drives != drives_) {
    throw Error(Code::kNotFound, "store '" + store_ + "' has files on " +
                                     std::to_string(first.drives) +
                                     " drives, and the settings "
                                     "name " +
                                     std::to_string(drives_) +
                                     " paths; nothing was written. Name the paths of all its "
                                     "drives in headrace.nvme_paths, in any order.");
  }
  co_return first;
}

async::Task<> CommitRing::format(const RunBytes& store, std::uint32_t rank,
                                 std::uint32_t world_size, std::span<const std::byte> registration,
                                 std::span<std::byte> memory) {
  for (std::uint32_t d = 0; d < drives_; ++d) {
    std::ranges::fill(memory, std::byte{0});
    for (std::uint32_t place = 0; place < kRingPlaces; ++place) {
      co_await tier_.write_in_place(place_of(place / kCopies, place % kCopies, d, memory.size()),
                                    memory, Priority::kDemand, subject("make store"));
    }
    co_await write_registration(registration, d, memory);
    const StoreHead head =
        make_store_head(store, rank, world_size, d, drives_, memory.size(), registration.size());
    std::ranges::fill(memory, std::byte{0});
    std::memcpy(memory.data(), &head, sizeof head);
    co_await tier_.write_in_place(kHeadExtent(d), memory.first(kStoreHeadBytes), Priority::kDemand,
                                  subject("make store"));
  }
  std::ranges::fill(memory, std::byte{0});
}

// Through the memory of a place, which is aligned.
async::Task<> CommitRing::write_registration(std::span<const std::byte> registration,
                                             std::uint32_t drive, std::span<std::byte> memory) {
  for (std::uint64_t at = 0; at < registration.size(); at += memory.size()) {
    const auto part =
        registration.subspan(at, std::min<std::uint64_t>(memory.size(), registration.size() - at));
    std::ranges::copy(part, memory.begin());
    co_await tier_.write_in_place({drive, registration_offset(memory.size()) + at, part.size()},
                                  memory.first(part.size()), Priority::kDemand,
                                  subject("make store"));
  }
}

template <class Each>
async::Task<> CommitRing::read_all(const RunBytes& store, std::span<std::byte> memory, Each each) {
  for (std::uint32_t d = 0; d < drives_; ++d) {
    for (std::uint32_t place = 0; place < kRingPlaces; ++place) {
      const Extent at = place_of(place / kCopies, place % kCopies, d, memory.size());
      co_await tier_.read(at, memory, Priority::kDemand, subject("open store"));
      std::string fault;
      const CommitRecord record = CommitRecord::read(memory, store, fault);
      each(record, at, place / kCopies, fault);
    }
  }
}

// What the places of the ring hold, on all drives.
struct CommitRing::Survey {
  struct Record {
    std::uint64_t checksum, writer, parent;
    Extent at;
  };
  // Of the copies of a root on one drive.
  struct Place {
    std::uint64_t root = 0;   // the newest whole one
    bool unreadable = false;  // one holds neither a whole record nor zeros
    Extent at;
  };
  using Drive = std::array<Place, kRoots>;

  void add(const CommitRecord& record, const Extent& extent, std::uint32_t root,
           const std::string& fault);
  void note_fault(const Extent& extent, const std::string& fault) {
    newest.all_readable = false;
    if (first_fault.empty()) faulty = extent, first_fault = fault;
  }

  explicit Survey(std::uint32_t count) : drives(count) {}
  Newest newest;
  Extent best;
  std::map<std::uint64_t, Record> records;  // by root
  std::optional<std::pair<Extent, Extent>> unlike;
  std::vector<Drive> drives;
  bool only_first = true;  // what cannot be read lies where the first commit's record belongs
  Extent faulty;
  std::string first_fault;
};

void CommitRing::Survey::add(const CommitRecord& record, const Extent& extent, std::uint32_t root,
                             const std::string& fault) {
  Place& place = drives[extent.file][root];
  place.at = extent;
  if (fault == kEmptyPlace) return;
  if (!fault.empty()) {
    place.unreadable = true;
    only_first &= root == kFirstCommitRoot % kRoots;
    return note_fault(extent, fault);
  }
  const CommitHead& head = record.head();
  place.root = std::max(place.root, head.root);
  const auto [same, is_first] =
      records.try_emplace(head.root, Record{head.checksum, head.writer, head.parent, extent});
  if (!is_first && same->second.checksum != head.checksum) unlike = {same->second.at, extent};
  newest.incarnation = std::max(newest.incarnation, head.incarnation);
  if (head.root <= newest.root) return;
  newest.root = head.root;
  newest.epoch = head.epoch;
  newest.writer = head.writer;
  best = extent;
}

async::Task<CommitRing::Newest> CommitRing::read_newest(const RunBytes& store,
                                                        std::span<std::byte> memory) {
  Survey found(drives_);
  co_await read_all(store, memory,
                    [&](const CommitRecord& record, const Extent& at, std::uint32_t root,
                        const std::string& fault) { found.add(record, at, root, fault); });
  refuse_unlike(found);
  compare_with_parents(found);
  Newest newest = found.newest;
  newest.everywhere = std::ranges::all_of(found.drives, [&](const Survey::Drive& drive) {
    return drive[newest.root % kRoots].root == newest.root;
  });
  if (!found.first_fault.empty())
    newest.first_fault = tier_.place(found.faulty) + ": " + found.first_fault;
  // A first commit that did not complete is no damage: nothing was committed before.
  if (newest.root == 0 || (newest.epoch == 0 && !found.only_first))
    refuse_without_record(newest.first_fault);
  co_await tier_.read(found.best, memory, Priority::kDemand, subject("open store"));
  std::string fault;
  (void)CommitRecord::read(memory, store, fault);
  if (!fault.empty())
    refuse_without_record(tier_.place(found.best) + ": " + fault + " when it was read again");
  co_return newest;
}

void CommitRing::refuse_unlike(const Survey& found) const {
  if (!found.unlike) return;
  const auto& [one, other] = *found.unlike;
  throw Error(Code::kCorrupt, "store '" + store_ + "': " + tier_.place(one) + " and " +
                                  tier_.place(other) +
                                  " have different commit records of one number: the files are "
                                  "of different runs, as two copies are that both went on; "
                                  "nothing was written. Put the files back that belong together, "
                                  "or name another store.");
}

// Whether each drive has, or had, the record before each that names a parent. Where it has a later
// one, its file is of the same copy: the drive lost a write.
void CommitRing::compare_with_parents(Survey& found) const {
  for (const auto& [root, record] : found.records) {
    if (record.parent == 0) continue;
    for (const Survey::Drive& drive : found.drives) {
      const Survey::Place& place = drive[(root - 1) % kRoots];
      if (place.root >= root - 1 || place.unreadable) continue;
      if (place.root == 0 || std::ranges::max(drive, {}, &Survey::Place::root).root >= root) {
        found.note_fault(place.at, "it lacks commit record " + std::to_string(root - 1));
        continue;
      }
      throw Error(Code::kCorrupt,
                  "store '" + store_ + "': " + tier_.file_path(place.at.file) +
                      " is of an older copy than " + tier_.file_path(record.at.file) +
                      ": it lacks commit record " + std::to_string(root - 1) +
                      "; nothing was written. Put the files back that belong together, or name "
                      "another store.");
    }
  }
}

// `fault`: of a record; empty: there are only zeros.
void CommitRing::refuse_without_record(const std::string& fault) const {
  std::string what = "no commit record is whole: " + fault;
  if (fault.empty()) {
    what = "no commit record is left: ";
    for (std::uint32_t d = 0; d < drives_; ++d)
      what += (d == 0 ? "" : " and ") + tier_.file_path(d);
    what += drives_ == 1 ? " has zeros where its ring was" : " have zeros where their rings were";
  }
  throw Error(Code::kCorrupt,
              "store '" + store_ + "': " + what +
                  "; nothing was written. The file was changed or the drive is failing: restore "
                  "the store from a copy, or begin again under another name.");
}

async::Task<> CommitRing::read_epoch(const RunBytes& store, std::uint64_t epoch,
                                     std::span<std::byte> memory) {
  std::uint64_t newest = 0;
  Extent best;
  co_await read_all(
      store, memory,
      [&](const CommitRecord& record, const Extent& at, std::uint32_t, const std::string& fault) {
        if (!fault.empty() || record.head().epoch != epoch || record.head().root <= newest) return;
        newest = record.head().root;
        best = at;
      });
  std::string fault = "no record of it is whole";
  if (newest != 0) {
    co_await tier_.read(best, memory, Priority::kDemand, subject("open store"));
    (void)CommitRecord::read(memory, store, fault);
    if (fault.empty()) co_return;
  }
  throw Error(Code::kCorrupt,
              "store '" + store_ + "': the ranks have epoch " + std::to_string(epoch) +
                  " in common, and in " + tier_.file_path(0) + ": " + fault +
                  "; nothing was written. The file was changed or the drive is failing: restore "
                  "the store from a copy, or begin again under another name.");
}

async::Task<> CommitRing::write(const CommitRecord& record, const char* action) {
  const std::span<const std::byte> bytes = record.place();
  async::TaskGroup writes;
  for (std::uint32_t d = 0; d < drives_; ++d) {
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      writes.spawn(tier_.write_in_place(place_of(record.head().root, copy, d, bytes.size()), bytes,
                                        Priority::kDemand, subject(action)));
    }
  }
  co_await writes.join();
  co_await tier_.sync();
}
}  // namespace headrace::swap
