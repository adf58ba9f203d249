// SPDX-License-Identifier: Apache-2.0
// engine_path.hpp: the same bytes by the engine's own path: whole records through conductor,
// coroutines, swap tier and drive threads.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "bench/crew.hpp"
#include "bench/measurement.hpp"
#include "bench/target.hpp"

namespace headrace::tools {
// What one sample covers.
struct Stretch {
  std::uint64_t bytes = 0;  // per drive and direction; 0: as much as `seconds` allow
  double seconds = 0;       // 0: no limit
  std::uint32_t turn = 0;   // which part of the file
  bool per_second = false;  // keep a Second each
};

// Records in memory at once, per drive: enough to keep the workload's depth under way while one is
// handed over.
std::uint32_t engine_slots(const Workload& workload);

class EnginePath {
 public:
  //   memory  of engine_slots() records per drive, filled with bodies; `buffers` holds it
  EnginePath(const std::vector<std::unique_ptr<Target>>& targets, const Workload& workload,
             std::span<std::byte> memory, std::span<const std::span<std::byte>> buffers,
             const Stamps& stamps);
  ~EnginePath();

  // Latencies are of whole records. `result` gets what was compared. Throws headrace::Error.
  TimedSample take(const Stretch& stretch, std::uint32_t generation, Verification& result);
  std::string queue_text() const;
  std::string queue_notes() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
}  // namespace headrace::tools
