// SPDX-License-Identifier: Apache-2.0
// store_opening.hpp: freeze()'s part about the store of a durable engine: finds its files or makes
// them, and reads their commit records. A refusal has written nothing. freeze_meeting.hpp has what
// several ranks tell each other meanwhile.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/epoch_terms.hpp"
#include "engine/freeze_meeting.hpp"
#include "engine/inputs.hpp"
#include "swap/commit_ring.hpp"
#include "swap/store_file.hpp"
#include "swap/store_remains.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::engine {
// For the trainer's thread.
class StoreOpening {
 public:
  // Looks for the store below the paths, and puts these into the order of its drives. Throws
  // kNotFound, kWrongState as headrace.resume says, and where a drive's file is missing or doubled.
  // A store that was cut off while it was made (store_remains.hpp) does not exist. Throws
  // kInvalidArgument where two paths are one directory.
  // With several ranks look() throws that, so that all of them learn of it.
  StoreOpening(const Inputs& inputs, std::vector<swap::PathProbe>& paths);

  bool exists() const noexcept { return exists_; }
  // Makes a tier over the store's files, or over new ones of these sizes.
  std::unique_ptr<swap::SwapTier> open(async::Conductor& conductor, swap::SwapTierOptions options,
                                       const std::vector<std::uint64_t>& drive_bytes);
  // Returns what this rank reports to the other ranks. If `tier` is not null, reads the newest
  // record of its files into `memory`, and compares it with `terms`.
  FreezeMeeting::Found look(async::Conductor& conductor, swap::SwapTier* tier,
                            const EpochTerms& terms, std::span<std::byte> memory);
  // After look(): the record of `epoch`, the newest or the one before. Its root and incarnation are
  // the newest of this rank's, and its writer that root's, or 0 if not all drives have it.
  swap::CommitRecord read(async::Conductor& conductor, swap::SwapTier& tier, std::uint64_t epoch,
                          std::span<std::byte> memory);
  // Whether every byte of that epoch is to be verified.
  bool verify_all() const noexcept { return !newest_.all_readable; }
  // Gives new files their headers, the registration, and the ring its first record. `opening`: of
  // FreezeMeeting::Agreed.
  swap::CommitRecord format(async::Conductor& conductor, swap::SwapTier& tier,
                            const EpochTerms& terms, std::span<const std::byte> registration,
                            std::uint64_t opening, std::span<std::byte> memory);
  // Gives new files their names.
  void publish();
  // Throws kNotFound if headrace.resume asks for a committed step: there is none on any rank.
  void refuse_without_epoch() const;
  // Once the ranks make the store anew: removes what a start that was cut off has left of it.
  void remove_remains();
  // From now on open() makes new files: the ranks have no epoch in common. remove_remains() removes
  // the old ones first, if they hold no more than a first commit, once every rank has called
  // erase_first_commit(). Else they stay until the new ones get their names.
  void forget();
  void erase_first_commit();

 private:
  void refuse_one_directory_twice() const;
  void find_files();
  void put_paths_in_order();
  bool is_half_made();
  void remove_remains_of_more_ranks() const;
  void count_on_remains();
  void refuse_by_resume() const;
  void read_newest(async::Conductor& conductor, swap::SwapTier& tier, const EpochTerms& terms,
                   std::span<std::byte> memory);
  std::optional<swap::StoreRegistration> read_registration(async::Conductor& conductor,
                                                           swap::SwapTier& tier,
                                                           const swap::StoreHead& head) const;
  swap::CommitRing ring(swap::SwapTier& tier) const;
  [[noreturn]] void refuse(Code code, const std::string& what) const;

  const Inputs& in_;
  std::vector<swap::PathProbe>& paths_;
  // A store of that name that comes while this one is made is another engine's.
  swap::Existing existing_ = swap::Existing::kRefuse;
  bool exists_ = false, half_made_ = false;
  std::optional<swap::StoreRemains> remains_;  // of a store that does not exist
  std::exception_ptr refusal_;                 // kept until the ranks meet
  std::uint32_t files_of_rank_ = FreezeMeeting::kNoRank;
  swap::CommitRing::Newest newest_;
  swap::RunBytes id_{};
  std::vector<swap::StoreFile*> made_;  // the tier's
};
}  // namespace headrace::engine
