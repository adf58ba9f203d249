// SPDX-License-Identifier: Apache-2.0
// store_remains.hpp: what a kill leaves while a store is made: files without their names, or names
// on some of the drives alone.
//
// A rank commits nothing before all files of all ranks have their names. So where a named file is
// missing, and the others are as they were made, there was never a committed epoch, and all of them
// may go. Otherwise the missing file is one that was lost or is not mounted, and nothing goes.
//
// Where no file is missing and the ranks have no epoch in common, a crash has cut their first
// commit off. Some ranks may have it whole. All ranks erase it first, and remove files only then:
// so whenever another crash comes, what it leaves is as it was made, or holds that commit again.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "swap/store_file.hpp"

namespace headrace::swap {
struct RanksOfStore {
  std::uint32_t first = 0, last = ~0u;
  static RanksOfStore one(std::uint32_t rank) { return {rank, rank}; }
};

class StoreRemains {
 public:
  // Takes the locks of all files of these ranks below the paths, until it is destroyed. Throws as
  // StoreFile::hold(): kWrongState while somebody makes the store.
  StoreRemains(std::span<const PathProbe> paths, const std::string& store, RanksOfStore ranks,
               StoreUse use = StoreUse::kWrite);

  bool empty() const noexcept { return files_.empty(); }
  bool has_named() const noexcept;
  // Whether each named file is as it was made, with its header and its first record whole. Of files
  // that are being made nothing is asked: they are of no store yet.
  bool nothing_committed() const;
  // Whether each named file is as it was made, but for what a first commit has written.
  bool at_most_a_first_commit() const;
  // Makes such files as they were made, durably. Throws kIo.
  void erase_first_commit();
  // The bytes that remove() frees on each of the paths.
  const std::vector<std::uint64_t>& bytes_on_paths() const noexcept { return bytes_; }
  // Throws kWrongState unless nothing_committed(), and kIo.
  void remove();

 private:
  std::vector<std::unique_ptr<StoreFile>> files_;
  std::vector<std::uint64_t> bytes_;
};
}  // namespace headrace::swap
