// SPDX-License-Identifier: Apache-2.0
// process_facts.hpp: what this process holds, as /proc tells it: threads, descriptors, mappings,
// locks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::testing {
struct Held {
  std::size_t threads = 0;
  std::size_t files = 0;           // without the one that lists them
  std::size_t mappings = 0;        // lines of /proc/self/maps
  std::uint64_t mapped_bytes = 0;  // of the mappings that can be written to
  std::size_t ring_mappings = 0;   // io_uring's
  std::size_t locks = 0;           // flock() and the like, of this process
};
Held what_is_held();
// A thread that was joined may be listed a moment longer: looks again until there are `threads`,
// for ten seconds at most.
Held what_is_held_with(std::size_t threads);
// Before the first engine, or between two: once more than one thread was there (a sanitizer adds
// one of its own to the first) and all that ended are listed no more.
Held what_is_held_at_rest();

// Names of the threads that Headrace has started, in no order: "headrace-upd0".
std::vector<std::string> engine_threads();
}  // namespace headrace::testing
