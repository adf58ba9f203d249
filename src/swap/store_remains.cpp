// SPDX-License-Identifier: Apache-2.0
#include "swap/store_remains.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error_text.hpp"
#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "swap/io_buffer.hpp"
#include "swap/refusal.hpp"
#include "swap/store_format.hpp"

namespace headrace::swap {
namespace {
bool read_whole(const StoreFile& file, std::uint64_t at, std::span<std::byte> into) {
  const base::Moved moved = base::read_at(file.fd(), at, into);
  return moved.error == 0 && moved.size_bytes == into.size();
}

// What a ring holds: the record of the making alone, beside it what a first commit has written, or
// anything else.
enum class Ring { kAsMade, kFirstCommit, kOther };

Ring ring_of(const StoreFile& file, StoreHead& head) {
  IoBuffer memory = make_io_buffer(kStoreHeadBytes);
  if (!read_whole(file, 0, {memory.get(), kStoreHeadBytes})) return Ring::kOther;
  std::memcpy(&head, memory.get(), sizeof head);
  if (!fault_of(head).empty() || !is_possible_size(head.commit_bytes)) return Ring::kOther;
  memory = make_io_buffer(head.commit_bytes);
  const std::span<std::byte> place{memory.get(), static_cast<std::size_t>(head.commit_bytes)};
  bool is_made = false, has_begun = false;
  for (std::uint32_t p = 0; p < kRingPlaces; ++p) {
    if (!read_whole(file, kStoreHeadBytes + p * head.commit_bytes, place)) return Ring::kOther;
    std::string fault;
    const CommitRecord record = CommitRecord::read(place, head.store, fault);
    if (fault == kEmptyPlace) continue;
    const bool is_first = p / kCopies == kFirstCommitRoot % kRoots;
    const bool fits = fault.empty()
                          ? record.head().root == (is_first ? kFirstCommitRoot : kRootOfMaking)
                          : is_first;
    if (!fits) return Ring::kOther;
    (is_first ? has_begun : is_made) = true;
  }
  if (!is_made) return Ring::kOther;
  return has_begun ? Ring::kFirstCommit : Ring::kAsMade;
}

Ring ring_of(const StoreFile& file) {
  StoreHead head;
  return ring_of(file, head);
}

// Both copies: they lie side by side.
void erase_first_commit_of(const StoreFile& file, const StoreHead& head) {
  const std::size_t bytes = kCopies * head.commit_bytes;
  const IoBuffer zeros = make_io_buffer(bytes);
  const base::Moved moved = base::write_at(
      file.fd(), place_of(kFirstCommitRoot, 0, head.drive, head.commit_bytes).offset_bytes,
      {zeros.get(), bytes});
  const int error = moved.error != 0 ? moved.error : ::fsync(file.fd()) != 0 ? errno : 0;
  if (error == 0) return;
  throw Error(code_of(error),
              "could not erase the first commit in " + file.path() + ": " +
                  base::errno_text(error) +
                  "; it did not complete, so the store holds no step, and no file was removed; " +
                  what_helps(error),
              error);
}

std::uint64_t bytes_of(const StoreFile& file) {
  struct stat status {};
  return ::fstat(file.fd(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}
}  // namespace

StoreRemains::StoreRemains(std::span<const PathProbe> paths, const std::string& store,
                           RanksOfStore ranks, StoreUse use)
    : bytes_(paths.size()) {
  for (std::size_t p = 0; p < paths.size(); ++p) {
    for (const StoreName& name : files_of_store(paths[p], store)) {
      if (name.rank < ranks.first || name.rank > ranks.last) continue;
      files_.push_back(StoreFile::hold(paths[p], name, use));
      bytes_[p] += bytes_of(*files_.back());
    }
  }
}

bool StoreRemains::has_named() const noexcept {
  return std::ranges::any_of(files_, [](const auto& file) { return !file->name().being_made; });
}

bool StoreRemains::nothing_committed() const {
  return std::ranges::all_of(files_, [](const auto& file) {
    return file->name().being_made || ring_of(*file) == Ring::kAsMade;
  });
}

bool StoreRemains::at_most_a_first_commit() const {
  return std::ranges::all_of(files_, [](const auto& file) {
    return file->name().being_made || ring_of(*file) != Ring::kOther;
  });
}

void StoreRemains::erase_first_commit() {
  for (const auto& file : files_) {
    StoreHead head;
    if (!file->name().being_made && ring_of(*file, head) == Ring::kFirstCommit)
      erase_first_commit_of(*file, head);
  }
}

void StoreRemains::remove() {
  if (!nothing_committed()) {
    throw Error(Code::kWrongState, "store '" + files_.front()->name().store +
                                       "' has a committed step, or files that cannot be read; "
                                       "nothing was removed. Give all its paths in "
                                       "headrace.nvme_paths, or name another store.");
  }
  for (const auto& file : files_) file->remove();
  files_.clear();
}
}  // namespace headrace::swap
