// SPDX-License-Identifier: Apache-2.0
// Stands in for io_queue_uring.cpp in builds without liburing.
#include "swap/io_queue.hpp"

namespace headrace::swap {
std::unique_ptr<IoQueue> make_io_queue_uring(const IoQueueOptions&) {
  throw Error(Code::kUnsupported,
              "this build has no io_uring: it was configured with HEADRACE_URING=OFF or without "
              "liburing; set headrace.io_queue to \"auto\", \"aio\" or \"threads\", or build with "
              "liburing");
}
}  // namespace headrace::swap
