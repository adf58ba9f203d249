// SPDX-License-Identifier: Apache-2.0
// late_transport.hpp: a transport that is late, in the place of a network: what arrives too late or
// in another order than threads bring it, a test sees here.
//
// It wraps any transport. A thread of its own begins the calls and ends them, each after a delay;
// which lane comes next is drawn from the seed. Calls of one lane stay in order. What is given is
// read late, and what is taken appears right before the end, so a caller that does not wait for the
// end computes with other bytes. A post passes up to a tenth of a second after it was made.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "headrace/transport.hpp"

namespace headrace::collective {
struct LateOptions {
  std::uint64_t seed = 1;
  // Half of the calls, and of their ends, have no delay at all.
  std::chrono::microseconds call_delay_max = std::chrono::microseconds(300);
  std::chrono::microseconds post_delay_max = std::chrono::milliseconds(100);
};

std::shared_ptr<Transport> make_late_transport(std::shared_ptr<Transport> inner,
                                               const LateOptions& options);
// Over threads of this process, each rank with a seed of its own.
std::vector<std::shared_ptr<Transport>> make_late_transports(std::uint32_t world_size,
                                                             std::uint64_t seed);
// HEADRACE_LATE_SEED, or 1. Says which the first time, so that a failed run can be repeated.
std::uint64_t late_seed();
}  // namespace headrace::collective
