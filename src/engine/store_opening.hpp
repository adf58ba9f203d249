// SPDX-License-Identifier: Apache-2.0
// store_opening.hpp: freeze()'s part about the store of a durable engine: finds its files or makes
// them, and reads its newest commit record. A refusal has written nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/epoch_terms.hpp"
#include "engine/inputs.hpp"
#include "swap/commit_ring.hpp"
#include "swap/store_file.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::engine {
// For the trainer's thread.
class StoreOpening {
 public:
  // Looks for the store below the paths, and puts these into the order of its drives. Throws
  // kNotFound, kWrongState as headrace.resume says, and where a drive's file is missing or doubled.
  StoreOpening(const Inputs& inputs, std::vector<swap::PathProbe>& paths);

  bool exists() const noexcept { return exists_; }
  // Makes a tier over the store's files, or over new ones of these sizes.
  std::unique_ptr<swap::SwapTier> open(async::Conductor& conductor, swap::SwapTierOptions options,
                                       const std::vector<std::uint64_t>& drive_bytes);
  // Reads the newest record of an existing store into `memory`, and compares it with `terms`.
  // No value if nothing was ever committed: the store is to be made anew.
  struct Found {
    swap::CommitRecord record;
    bool all_readable = true;
  };
  std::optional<Found> read(async::Conductor& conductor, swap::SwapTier& tier,
                            const EpochTerms& terms, std::span<std::byte> memory);
  // Gives new files their headers and an empty ring, and then their names.
  swap::CommitRecord format(async::Conductor& conductor, swap::SwapTier& tier,
                            const EpochTerms& terms, std::span<std::byte> memory);
  // From now on open() makes new files.
  void forget() noexcept { exists_ = false; }

 private:
  void put_paths_in_order();
  [[noreturn]] void refuse(Code code, const std::string& what) const;

  const Inputs& in_;
  std::vector<swap::PathProbe>& paths_;
  bool exists_ = false;
  std::vector<swap::StoreFile*> made_;  // the tier's
};
}  // namespace headrace::engine
