// SPDX-License-Identifier: Apache-2.0
#include "engine/store_opening.hpp"

#include <algorithm>
#include <utility>

#include "base/random.hpp"
#include "headrace/error.hpp"
#include "swap/io_buffer.hpp"

namespace headrace::engine {
StoreOpening::StoreOpening(const Inputs& inputs, std::vector<swap::PathProbe>& paths)
    : in_(inputs), paths_(paths) {
  try {
    refuse_one_directory_twice();
    find_files();
    refuse_by_resume();
  } catch (const Error&) {
    if (in_.collective->world_size() == 1) throw;
    refusal_ = std::current_exception();
  }
}

// Both files would be there at the next start, and one of them in the other's place.
void StoreOpening::refuse_one_directory_twice() const {
  const std::vector<std::string>& names = in_.settings.nvme_paths;
  for (std::size_t p = 1; p < paths_.size(); ++p) {
    for (std::size_t other = 0; other < p; ++other) {
      if (paths_[p].inode != paths_[other].inode || paths_[p].device != paths_[other].device)
        continue;
      refuse(Code::kInvalidArgument,
             "needs a directory for each of its files, and '" + names[other] + "' and '" +
                 names[p] +
                 "' are one directory; nothing was written. Name it once in "
                 "headrace.nvme_paths.");
    }
  }
}

void StoreOpening::find_files() {
  try {
    put_paths_in_order();
  } catch (const Error& error) {
    if (error.code() != Code::kNotFound || !is_half_made()) throw;
  }
  if (exists_) return;
  if (!half_made_)
    remains_.emplace(paths_, in_.settings.store, swap::RanksOfStore::one(in_.collective->rank()));
  count_on_remains();
}

// Of files of which some are missing: whether a kill while they were made explains that. From then
// on they are held.
bool StoreOpening::is_half_made() {
  remains_.emplace(paths_, in_.settings.store, swap::RanksOfStore::one(in_.collective->rank()));
  half_made_ = remains_->nothing_committed();
  if (!half_made_) remains_.reset();
  exists_ = !half_made_;
  return half_made_;
}

// Files with no more than a first commit go before new ones are made. If they stayed until then, a
// kill between the renames of two drives would leave files of two stores, and the new one would
// need as much room again.
void StoreOpening::forget() {
  exists_ = false;
  remains_.emplace(paths_, in_.settings.store, swap::RanksOfStore::one(in_.collective->rank()));
  if (remains_->at_most_a_first_commit()) return count_on_remains();
  existing_ = swap::Existing::kReplace;
  remains_.reset();
}

void StoreOpening::erase_first_commit() {
  if (remains_) remains_->erase_first_commit();
}

// The plan may count on what will be free.
void StoreOpening::count_on_remains() {
  for (std::size_t p = 0; p < paths_.size(); ++p)
    paths_[p].free_bytes += remains_->bytes_on_paths()[p];
}

void StoreOpening::remove_remains() {
  remove_remains_of_more_ranks();
  if (!remains_) return;
  if (half_made_ && remains_->has_named()) {
    in_.log(LogLevel::kWarning, "store '" + in_.settings.store +
                                    "' was cut off while it was made, and holds no step: its files "
                                    "are removed, and it is made anew");
  }
  remains_->remove();
  remains_.reset();
}

// A store that more ranks made, and of which none has committed a step. `headrace store` would take
// it for one of theirs.
void StoreOpening::remove_remains_of_more_ranks() const {
  if (in_.collective->rank() != 0) return;
  swap::StoreRemains more(paths_, in_.settings.store, {.first = in_.collective->world_size()});
  if (more.nothing_committed()) more.remove();
}

void StoreOpening::refuse_by_resume() const {
  const Settings& s = in_.settings;
  if (exists_ && s.resume == Resume::kNever) {
    refuse(Code::kWrongState,
           "exists, and headrace.resume is \"never\"; nothing was written. Name another store, "
           "remove it with `headrace store remove " +
               s.store + " PATH...`, or set headrace.resume to \"auto\" to continue from it.");
  }
  if (half_made_ && s.resume == Resume::kRequire) {
    refuse(Code::kNotFound,
           "was cut off while it was made and holds no committed step, and headrace.resume is "
           "\"require\"; nothing was written. Set headrace.resume to \"auto\" to begin it anew.");
  }
  if (!exists_ && s.resume == Resume::kRequire) {
    refuse(Code::kNotFound,
           "is on none of the paths, and headrace.resume is \"require\"; nothing was written. "
           "Check headrace.nvme_paths and headrace.store, or set headrace.resume to \"auto\".");
  }
}

void StoreOpening::refuse_without_epoch() const {
  if (!exists_ || in_.settings.resume != Resume::kRequire) return;
  refuse(Code::kNotFound,
         "holds no committed step, and headrace.resume is \"require\"; nothing was written. "
         "Set headrace.resume to \"auto\" to begin it anew.");
}

void StoreOpening::refuse(Code code, const std::string& what) const {
  throw Error(code, "store '" + in_.settings.store + "' " + what);
}

// A drive is known by the number in its file's name, wherever it is mounted now.
void StoreOpening::put_paths_in_order() {
  std::vector<swap::PathProbe> ordered(paths_.size());
  std::vector<bool> found(paths_.size(), false);
  std::size_t drives = 0;
  for (const swap::PathProbe& path : paths_) {
    if (const auto other =
            swap::another_rank_in_store(path, in_.settings.store, in_.collective->rank()))
      files_of_rank_ = std::min(files_of_rank_, *other);
    for (const std::uint32_t drive :
         swap::drives_in_store(path, in_.settings.store, in_.collective->rank())) {
      ++drives;
      if (drive >= paths_.size()) {
        refuse(Code::kNotFound, "has a drive " + std::to_string(drive) + " in " + path.path +
                                    ", and the settings name " + std::to_string(paths_.size()) +
                                    " paths; nothing was written. Name the paths of all its "
                                    "drives in headrace.nvme_paths, in any order.");
      }
      if (found[drive]) {
        refuse(Code::kWrongState, "has two files for drive " + std::to_string(drive) + ", in " +
                                      ordered[drive].path + " and in " + path.path +
                                      "; nothing was written. Leave the one that belongs to it.");
      }
      found[drive] = true;
      ordered[drive] = path;
    }
  }
  exists_ = drives > 0;
  if (!exists_) return;
  const auto missing = std::ranges::find(found, false);
  if (missing != found.end()) {
    refuse(Code::kNotFound,
           "lacks its file of drive " + std::to_string(missing - found.begin()) + " of " +
               std::to_string(paths_.size()) +
               ": it is on none of the paths; nothing was written. Mount that drive and name its "
               "path in headrace.nvme_paths.");
  }
  paths_ = std::move(ordered);
}

std::unique_ptr<swap::SwapTier> StoreOpening::open(async::Conductor& conductor,
                                                   swap::SwapTierOptions options,
                                                   const std::vector<std::uint64_t>& drive_bytes) {
  if (refusal_) std::rethrow_exception(refusal_);
  made_.clear();
  for (std::uint32_t d = 0; d < paths_.size(); ++d) {
    const swap::StoreName name{in_.settings.store, in_.collective->rank(), d};
    auto file = exists_
                    ? swap::StoreFile::open(paths_[d], name)
                    : swap::StoreFile::create(paths_[d], name, drive_bytes[d], existing_, in_.log);
    made_.push_back(file.get());
    options.files.push_back(std::move(file));
  }
  options.paths = paths_;
  options.drive_bytes.clear();
  for (const auto& file : options.files) options.drive_bytes.push_back(file->size_bytes());
  return std::make_unique<swap::SwapTier>(conductor, std::move(options));
}

swap::CommitRing StoreOpening::ring(swap::SwapTier& tier) const {
  return {tier, in_.settings.store, static_cast<std::uint32_t>(paths_.size())};
}

FreezeMeeting::Found StoreOpening::look(async::Conductor& conductor, swap::SwapTier* tier,
                                        const EpochTerms& terms, std::span<std::byte> memory) {
  if (refusal_) std::rethrow_exception(refusal_);
  FreezeMeeting::Found found{
      .has_files = exists_, .half_made = half_made_, .files_of_rank = files_of_rank_};
  if (tier != nullptr) read_newest(conductor, *tier, terms, memory);
  found.epoch = newest_.epoch;
  found.store = id_;
  base::fill_random(std::as_writable_bytes(std::span(found.fresh)));
  return found;
}

void StoreOpening::read_newest(async::Conductor& conductor, swap::SwapTier& tier,
                               const EpochTerms& terms, std::span<std::byte> memory) {
  swap::CommitRing ring = this->ring(tier);
  const swap::StoreHead head = async::call(conductor, nullptr, [&] {
    return ring.read_heads(memory.first(swap::kStoreHeadBytes), in_.collective->rank());
  });
  tier.continue_run(id_ = head.store);
  // With other terms a place may have another size: it is read to say what differs.
  const bool other_size = head.commit_bytes != memory.size();
  if (!swap::is_possible_size(head.commit_bytes))
    refuse(Code::kCorrupt, "has a header with an impossible size; nothing was written.");
  const swap::IoBuffer beside = other_size ? swap::make_io_buffer(head.commit_bytes) : nullptr;
  if (other_size) memory = {beside.get(), static_cast<std::size_t>(head.commit_bytes)};
  newest_ = async::call(conductor, nullptr, [&] { return ring.read_newest(head.store, memory); });
  if (newest_.epoch == 0) {
    if (!newest_.all_readable) {
      in_.log(LogLevel::kWarning, "store '" + in_.settings.store +
                                      "': its first commit did not complete (" +
                                      newest_.first_fault + "), so it holds no step");
    }
    return;
  }
  if (!newest_.all_readable) {
    in_.log(LogLevel::kWarning,
            "store '" + in_.settings.store + "': a commit record is torn or damaged (" +
                newest_.first_fault +
                "), as a power loss leaves it: every byte of the epoch before is verified first");
  }
  std::string fault;
  const swap::CommitRecord record = swap::CommitRecord::read(memory, head.store, fault);
  const std::string difference =
      terms.difference_from(record, [&] { return read_registration(conductor, tier, head); });
  if (!difference.empty() || other_size) {
    refuse(Code::kWrongState,
           "cannot go on in this run: " +
               (difference.empty() ? "the store has records of another size" : difference) +
               "; nothing was written. Give the same model and settings as before, or name "
               "another store.");
  }
}

// The first whole copy: each drive has one.
std::optional<swap::StoreRegistration> StoreOpening::read_registration(
    async::Conductor& conductor, swap::SwapTier& tier, const swap::StoreHead& head) const {
  const std::uint64_t size = head.registration_bytes;
  if (!swap::is_possible_size(size)) return std::nullopt;
  const swap::IoBuffer bytes = swap::make_io_buffer(size);
  const std::span<std::byte> whole{bytes.get(), static_cast<std::size_t>(size)};
  const swap::Subject subject{"open store", &in_.settings.store, swap::Subject::kNoTile};
  for (std::uint32_t d = 0; d < head.drives; ++d) {
    try {
      async::call(conductor, nullptr, [&] {
        return tier.read({d, swap::registration_offset(head.commit_bytes), size}, whole,
                         swap::Priority::kDemand, subject);
      });
    } catch (const Error& error) {
      if (error.code() == Code::kIoStalled) throw;
      continue;
    }
    std::string fault;
    swap::StoreRegistration found = swap::unpacked(whole, head.store, fault);
    if (fault.empty()) return found;
  }
  return std::nullopt;
}

swap::CommitRecord StoreOpening::read(async::Conductor& conductor, swap::SwapTier& tier,
                                      std::uint64_t epoch, std::span<std::byte> memory) {
  swap::CommitRing ring = this->ring(tier);
  if (epoch != newest_.epoch) {
    async::call(conductor, nullptr, [&] { return ring.read_epoch(id_, epoch, memory); });
    in_.log(LogLevel::kInfo, "store '" + in_.settings.store + "': rank " +
                                 std::to_string(in_.collective->rank()) +
                                 " had committed one epoch more than others: it goes on at theirs");
  }
  std::string fault;
  const swap::CommitRecord record = swap::CommitRecord::read(memory, id_, fault);
  record.head().root = newest_.root;
  record.head().writer = newest_.everywhere ? newest_.writer : 0;  // the next one's parent
  record.head().incarnation = newest_.incarnation;
  return record;
}

swap::CommitRecord StoreOpening::format(async::Conductor& conductor, swap::SwapTier& tier,
                                        const EpochTerms& terms,
                                        std::span<const std::byte> registration,
                                        std::uint64_t opening, std::span<std::byte> memory) {
  swap::CommitRing ring = this->ring(tier);
  async::call(conductor, nullptr, [&] {
    return ring.format(tier.run(), in_.collective->rank(), in_.collective->world_size(),
                       registration, memory);
  });
  swap::CommitRecord record = swap::CommitRecord::make(memory, terms.counts(), tier.run());
  terms.describe(record);
  record.head().root = swap::kRootOfMaking;
  record.head().writer = opening;
  record.seal();
  async::call(conductor, nullptr, [&] { return ring.write(record, "make store"); });
  return record;
}

void StoreOpening::publish() {
  for (swap::StoreFile* const file : made_) file->publish();
}
}  // namespace headrace::engine
