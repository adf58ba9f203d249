// SPDX-License-Identifier: Apache-2.0
// io_queue_fault.hpp: an I/O queue around another, which fails, delays and throttles as it is told.
#pragma once
#include <cstdint>
#include <memory>

#include "swap/io_queue.hpp"

namespace headrace::swap {
// What happens to the requests that pass through it.
struct FaultPlan {
  std::uint64_t seed = 1;
  // Chance per request, 0..1.
  double short_read = 0, short_write = 0;  // a multiple of 512 bytes less, possibly 0 bytes
  double eio_read = 0, eio_write = 0, eio_sync = 0;
  double eagain = 0, eintr = 0;
  double enospc = 0;
  double flip_bit = 0;  // of what a read brought
  double late = 0;      // held back for a few reaps and passed on out of order
  double lost = 0;      // never completes
  double flush_eagain = 0;
  // The n-th request (counted from 1) fails with this errno, whatever the chances; 0: none.
  std::uint64_t fail_request = 0;
  int fail_errno = 0;
  bool only_writes = false;  // fail_request counts writes only
  // The n-th sync (counted from 1) fails with this errno; 0: none.
  std::uint64_t fail_sync = 0;
  int sync_errno = 0;
  // Says that it uses registered memory until a read or write after the first `skip_requests` fails
  // with this errno, as all of them do until then; 0: says what the wrapped queue does.
  int registered_errno = 0;
  // set-up is refused with this errno before anything else; 0: not.
  int setup_errno = 0;
  std::uint64_t skip_requests = 0;  // this many pass untouched first
  int full_errno = 0;               // what `enospc` fails with, if not ENOSPC: EDQUOT
  // No faster than this, one request after the other; 0: as the wrapped queue is.
  std::uint64_t bytes_per_second = 0;
};
struct FaultCounts {
  std::uint64_t requests = 0, syncs = 0, shorts = 0, errors = 0, flips = 0, late = 0, lost = 0;
};
// Wraps another queue. `counts`, if given, outlives it.
std::unique_ptr<IoQueue> make_io_queue_fault(std::unique_ptr<IoQueue> inner, const FaultPlan& plan,
                                             FaultCounts* counts);
}  // namespace headrace::swap
