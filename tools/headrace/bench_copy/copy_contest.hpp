// SPDX-License-Identifier: Apache-2.0
// copy_contest.hpp: transfers of every way, memory and size in interleaved rounds.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench_copy/transfers.hpp"
#include "headrace/device.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools {
// One value per round.
struct CopyRow {
  Transfer of = {};
  std::uint64_t count = 0;  // transfers of a round
  std::vector<double> seconds = {};

  // Of one way, or of both together. At least one round.
  MedianInterval bytes_per_second() const;
};

struct CopyContest {
  std::vector<CopyRow> rows = {};
  std::uint32_t rounds = 0;
  double seconds = 0;  // in all
  std::uint64_t seed = 0;
  std::uint64_t verified_bytes = 0;
  std::uint64_t mismatches = 0;     // measurements
  std::string first_mismatch = {};  // of which, and where

  // The link's rate: that of the largest copies of pinned memory, in the best round. Bytes per
  // second; with kBoth, of both ways together.
  double limit(Way way) const;
  // Of the link's limit.
  MedianInterval share(const CopyRow& row) const;
};

struct CopyContestOptions {
  std::vector<std::uint64_t> sizes = {};  // ascending, multiples of 8 bytes
  bool gradients = false;
  std::uint32_t rounds = 9;
  double sample_seconds = 0.05;    // of one measurement; less than one transfer takes is one
  std::uint64_t sample_bytes = 0;  // each way in place of seconds; 0: by seconds
  // The memory over which transfers wander, so that small ones do not come from caches alone.
  std::uint64_t region_bytes = std::uint64_t{64} << 20;
  std::uint64_t gradient_bytes = std::uint64_t{8} << 20;  // of one, in bf16

  std::vector<Transfer> transfers() const;
  std::uint64_t buffer_bytes() const;  // of each of CopyBuffers
  double about_seconds() const;        // of all rounds
};
using CopyProgress = std::function<void(const std::string& what, double share)>;

// A first round warms up, and finds how many transfers a measurement takes. What every measurement
// has carried is compared. Throws headrace::Error: what CopyBuffers and TransferMover throw.
CopyContest measure_copies(Device& device, const CopyContestOptions& options,
                           const CopyProgress& progress);
}  // namespace headrace::tools
