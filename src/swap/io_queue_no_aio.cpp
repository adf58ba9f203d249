// SPDX-License-Identifier: Apache-2.0
// Stands in for io_queue_aio.cpp in builds without libaio.
#include "swap/io_queue.hpp"

namespace headrace::swap {
bool built_with_libaio() noexcept { return false; }

std::unique_ptr<IoQueue> make_io_queue_aio(const IoQueueOptions&) {
  throw Error(Code::kUnsupported,
              "this build has no Linux AIO: it was configured with HEADRACE_AIO=OFF or without "
              "libaio; set headrace.io_queue to \"auto\", or build with libaio");
}
}  // namespace headrace::swap
