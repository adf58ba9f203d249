// SPDX-License-Identifier: Apache-2.0
#include "tune/candidates.hpp"

#include <algorithm>
#include <array>

#include "base/units.hpp"

namespace headrace::tools {
namespace {
struct Shape {
  std::uint64_t block_kib;
  std::uint32_t depth;
};
// Blocks larger than a record (10 MiB at the default tile) never reach the drive.
constexpr std::array<Shape, 19> kShapes{{{1024, 16},
                                         {256, 16},
                                         {256, 32},
                                         {256, 64},
                                         {512, 16},
                                         {512, 32},
                                         {1024, 4},
                                         {1024, 8},
                                         {1024, 32},
                                         {2048, 2},
                                         {2048, 4},
                                         {2048, 8},
                                         {2048, 16},
                                         {4096, 1},
                                         {4096, 2},
                                         {4096, 4},
                                         {4096, 8},
                                         {8192, 2},
                                         {8192, 4}}};
constexpr std::array<Shape, 6> kFewShapes{
    {{1024, 16}, {256, 32}, {1024, 4}, {2048, 4}, {4096, 4}, {8192, 2}}};

void add_once(std::vector<Candidate>& candidates, const Candidate& candidate) {
  if (std::ranges::find(candidates, candidate) == candidates.end()) candidates.push_back(candidate);
}
}  // namespace

Candidate default_candidate(IoQueueKind queue) {
  const Settings defaults;
  return {.block_bytes = defaults.io_block_bytes,
          .depth = defaults.queue_depth,
          .submit_batch = defaults.submit_batch,
          .queue = queue,
          .register_buffers = defaults.register_buffers == RegisterBuffers::kAuto};
}

std::vector<Candidate> shape_candidates(IoQueueKind queue, std::uint64_t file_bytes, bool few) {
  std::vector<Candidate> candidates{default_candidate(queue)};
  const auto add = [&](const Shape& shape) {
    Candidate candidate = default_candidate(queue);
    candidate.block_bytes = shape.block_kib * base::kKiB;
    candidate.depth = shape.depth;
    if (candidate.in_flight_bytes() <= file_bytes / 4) add_once(candidates, candidate);
  };
  few ? std::ranges::for_each(kFewShapes, add) : std::ranges::for_each(kShapes, add);
  return candidates;
}

std::vector<Candidate> handover_candidates(const Candidate& shape, const std::string& queue_text) {
  std::vector<Candidate> candidates{shape};
  const bool uring = queue_text.starts_with("uring"), aio = queue_text.starts_with("aio");
  // Threads take one request each, so nothing is handed over together.
  if (uring || aio) {
    for (const std::uint32_t batch : {1u, 2u, 4u, 8u}) {
      Candidate other = shape;
      other.submit_batch = std::min(batch, shape.depth);
      add_once(candidates, other);
    }
  }
  if (queue_text.find("registered") != std::string::npos) {
    Candidate other = shape;
    other.register_buffers = false;
    add_once(candidates, other);
  }
  if (shape.queue != IoQueueKind::kAuto) return candidates;  // it was asked for
  Candidate other = shape;
  if (uring) {
    other.queue = IoQueueKind::kAio;
    add_once(candidates, other);
  }
  if (uring || aio) {
    other.queue = IoQueueKind::kThreads;
    add_once(candidates, other);
  }
  return candidates;
}

Workload workload_of(const Candidate& candidate, Pattern pattern) {
  return {.pattern = pattern,
          .block_bytes = candidate.block_bytes,
          .depth = candidate.depth,
          .submit_batch = candidate.submit_batch,
          .register_buffers = candidate.register_buffers,
          .queue = candidate.queue};
}

std::string text_of(const Candidate& candidate) {
  const Workload workload = workload_of(candidate, Pattern::kRead);
  return text_of(workload).substr(name_of(workload.pattern).size() + 1);
}
}  // namespace headrace::tools
