// SPDX-License-Identifier: Apache-2.0
// gauge.hpp: measures a candidate: on the drives, or in tests on a model of them.
#pragma once
#include <cstdint>

#include "tune/candidates.hpp"
#include "tune/goal.hpp"

namespace headrace::tools {
// The bytes that one evaluation moves per drive; 0: none of that kind.
struct Amount {
  std::uint64_t read_bytes = 0;   // alone
  std::uint64_t mixed_bytes = 0;  // read, and as many written
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  // `turn` picks the part of the file; candidates that are compared get the same. Throws
  // headrace::Error: kUnsupported where the queue does not work, kIo, kInterrupted.
  virtual Evaluation take(const Candidate& candidate, const Amount& amount, std::uint32_t turn) = 0;
  virtual double seconds() const = 0;               // since the run began
  virtual std::uint64_t written_bytes() const = 0;  // per drive, so far
};
}  // namespace headrace::tools
