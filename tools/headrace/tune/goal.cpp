// SPDX-License-Identifier: Apache-2.0
#include "tune/goal.hpp"

namespace headrace::tools {
std::string name_of(Goal goal) {
  return goal == Goal::kStep ? "step" : goal == Goal::kRead ? "read" : "rw";
}

std::string text_of(Goal goal) {
  switch (goal) {
    case Goal::kRead:
      return "reading alone, as for forward and backward";
    case Goal::kMixed:
      return "reading and writing at once, as in the update";
    default:
      return "the bytes of a step: 1 read alone for every 6 read or written in the update";
  }
}

double Evaluation::rate(Goal goal) const {
  if (goal == Goal::kRead) return read_rate;
  if (goal == Goal::kMixed) return mixed_rate;
  const double seconds = kStepReadBytes / read_rate + kStepUpdateBytes / mixed_rate;
  return (kStepReadBytes + kStepUpdateBytes) / seconds;
}
}  // namespace headrace::tools
