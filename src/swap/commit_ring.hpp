// SPDX-License-Identifier: Apache-2.0
// commit_ring.hpp: the commit records of a store on all its drives. store_format.hpp has the bytes
// and the reason for three roots; this moves them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "async/task.hpp"
#include "swap/store_format.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::swap {
// Conductor only. Throws headrace::Error, naming store and file.
class CommitRing {
 public:
  // `drives`: of the store, all of them in the tier.
  CommitRing(SwapTier& tier, std::string store, std::uint32_t drives)
      : tier_(tier), store_(std::move(store)), drives_(drives) {}

  // Reads the headers of all files into `page` (kStoreHeadBytes, aligned), one after another.
  // Throws kCorrupt for a file that is damaged, or of another store or rank; kUnsupported for one
  // of another format; kNotFound naming the drive that is missing. Returns the first drive's.
  async::Task<StoreHead> read_heads(std::span<std::byte> page, std::uint32_t rank);
  // Writes headers, an empty ring and the registration (whole pages). write() of the first record
  // syncs them. `memory`: place_bytes, aligned.
  async::Task<> format(const RunBytes& store, std::uint32_t rank, std::uint32_t world_size,
                       std::span<const std::byte> registration, std::span<std::byte> memory);

  struct Newest {
    std::uint64_t root = 0;
    std::uint64_t epoch = 0;        // of that root; 0: nothing was ever committed
    std::uint64_t writer = 0;       // of that root
    bool everywhere = false;        // every drive has that root
    std::uint64_t incarnation = 0;  // the largest of any record
    bool all_readable = true;       // false: a place holds neither a whole record nor zeros
    std::string first_fault;        // of such a place
  };
  // Leaves the newest whole record in `memory`. Throws kCorrupt if there is none, or none of a
  // commit where one was damaged that was not the first, which a crash may have torn; and if the
  // files are of different copies of a store.
  async::Task<Newest> read_newest(const RunBytes& store, std::span<std::byte> memory);
  // Leaves the newest record of `epoch` in `memory`, the one before the newest. Throws kCorrupt if
  // there is none.
  async::Task<> read_epoch(const RunBytes& store, std::uint64_t epoch, std::span<std::byte> memory);
  // Writes a sealed record to its places on all drives, and syncs it. What it names is synced.
  // `action`: for errors.
  async::Task<> write(const CommitRecord& record, const char* action = "commit");

 private:
  async::Task<> write_registration(std::span<const std::byte> registration, std::uint32_t drive,
                                   std::span<std::byte> memory);
  void refuse_other_format(const StoreHead& head, std::uint32_t drive) const;
  [[noreturn]] void refuse_without_record(const std::string& fault) const;
  struct Survey;
  void refuse_unlike(const Survey& found) const;
  void compare_with_parents(Survey& found) const;
  // Reads every place: each(record, extent, root's place, fault).
  template <class Each>
  async::Task<> read_all(const RunBytes& store, std::span<std::byte> memory, Each each);
  Subject subject(const char* action) const { return {action, &store_, Subject::kNoTile}; }

  SwapTier& tier_;
  const std::string store_;
  const std::uint32_t drives_;
};
}  // namespace headrace::swap
