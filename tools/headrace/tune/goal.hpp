// SPDX-License-Identifier: Apache-2.0
// goal.hpp: the criterion by which candidates are compared.
#pragma once
#include <cstdint>
#include <string>

namespace headrace::tools {
enum class Goal : std::uint8_t {
  kStep,   // the time that a training step's bytes take
  kRead,   // reading alone: parameters on their way to forward and backward
  kMixed,  // reading and writing at once: the update
};
std::string name_of(Goal goal);  // "step", "read", "rw"
// "the bytes of a step: 1 read alone for every 6 read or written in the update".
std::string text_of(Goal goal);

// Bytes that a step moves per bf16 parameter with all of it on NVMe: weights are read in forward
// and in backward; the update reads and writes weight, residual and two moments (12 each way).
inline constexpr double kStepReadBytes = 4;
inline constexpr double kStepUpdateBytes = 24;

// The result of one candidate in one round.
struct Evaluation {
  double read_rate = 0, mixed_rate = 0;  // bytes per second; 0: the goal does not need it
  double cpu_per_gb = 0;                 // seconds
  std::string queue = {};                // "uring, registered buffers"

  // Bytes per second of the goal: a step's bytes over the time they take, which is the harmonic
  // mean of both rates, weighted by bytes.
  double rate(Goal goal) const;
};
}  // namespace headrace::tools
