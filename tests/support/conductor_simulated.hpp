// SPDX-License-Identifier: Apache-2.0
// conductor_simulated.hpp: a conductor without a thread or a clock of its own: a seed decides what
// runs next.
#pragma once
#include <cstdint>
#include <memory>

#include "async/conductor.hpp"

namespace headrace::async {
struct SimulatedOptions {
  std::uint64_t seed = 1;
};
// Runs nothing but inside wait(), which only the thread that made it may call. Among the work that
// is ready it picks by the seed; when none is ready it moves the clock to the earliest timer. Posts
// from other threads are refused by a check.
std::unique_ptr<Conductor> make_conductor_simulated(const SimulatedOptions& options);
}  // namespace headrace::async
