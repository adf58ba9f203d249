// SPDX-License-Identifier: Apache-2.0
// Stands in for io_queue_uring.cpp in builds without liburing.
#include "swap/io_queue.hpp"

namespace headrace::swap {
bool built_with_liburing() noexcept { return false; }

std::unique_ptr<IoQueue> make_io_queue_uring(const IoQueueOptions&) {
  throw Error(Code::kUnsupported,
              "this build has no io_uring: it was configured with HEADRACE_URING=OFF or without "
              "liburing; set headrace.io_queue to \"auto\", or build with liburing");
}
}  // namespace headrace::swap
