// SPDX-License-Identifier: Apache-2.0
// candidates.hpp: the settings that `headrace tune` chooses among.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/workload.hpp"
#include "headrace/settings.hpp"

namespace headrace::tools {
// The engine's keys of the same names; docs/settings.md.
struct Candidate {
  std::uint64_t block_bytes = 0;  // io_block_bytes
  std::uint32_t depth = 0;        // queue_depth
  std::uint32_t submit_batch = 0;
  IoQueueKind queue = IoQueueKind::kAuto;
  bool register_buffers = true;  // "auto"; else "off"

  std::uint64_t in_flight_bytes() const { return block_bytes * depth; }
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// The engine's defaults, except for the queue.
Candidate default_candidate(IoQueueKind queue);

// Block sizes and depths, the defaults first: 4 to 32 MiB in flight, where drives have their
// plateau, and no more than a quarter of the file. `few`: 6 of them.
std::vector<Candidate> shape_candidates(IoQueueKind queue, std::uint64_t file_bytes, bool few);

// How requests of `shape` are handed over: `shape` itself first, then other batches, queues, and
// without registered buffers; what would be the same in other words is left out.
//   queue_text  what served `shape`: "uring, registered buffers"
std::vector<Candidate> handover_candidates(const Candidate& shape, const std::string& queue_text);

Workload workload_of(const Candidate& candidate, Pattern pattern);
// "1M x 16", with what differs from the defaults: "1M x 16, aio, batch 4".
std::string text_of(const Candidate& candidate);
}  // namespace headrace::tools
