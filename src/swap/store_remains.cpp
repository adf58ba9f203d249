// SPDX-License-Identifier: Apache-2.0
#include "swap/store_remains.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "swap/io_buffer.hpp"
#include "swap/store_format.hpp"

namespace headrace::swap {
namespace {
bool read_whole(const StoreFile& file, std::uint64_t at, std::span<std::byte> into) {
  const base::Moved moved = base::read_at(file.fd(), at, into);
  return moved.error == 0 && moved.size_bytes == into.size();
}

// Whether its ring has the record of the making, and no other, nor what was one.
bool is_as_made(const StoreFile& file) {
  IoBuffer memory = make_io_buffer(kStoreHeadBytes);
  if (!read_whole(file, 0, {memory.get(), kStoreHeadBytes})) return false;
  StoreHead head;
  std::memcpy(&head, memory.get(), sizeof head);
  if (!fault_of(head).empty() || !is_possible_size(head.commit_bytes)) return false;
  memory = make_io_buffer(head.commit_bytes);
  const std::span<std::byte> place{memory.get(), static_cast<std::size_t>(head.commit_bytes)};
  std::uint32_t found = 0;
  for (std::uint32_t p = 0; p < kRingPlaces; ++p) {
    if (!read_whole(file, kStoreHeadBytes + p * head.commit_bytes, place)) return false;
    std::string fault;
    const CommitRecord record = CommitRecord::read(place, head.store, fault);
    if (fault == kEmptyPlace) continue;
    if (!fault.empty() || record.head().epoch != 0) return false;
    ++found;
  }
  return found > 0;
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
  return std::ranges::all_of(
      files_, [](const auto& file) { return file->name().being_made || is_as_made(*file); });
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
