// SPDX-License-Identifier: Apache-2.0
// environment.hpp: the environment variables that override settings. An empty variable counts as
// unset. An invalid value is an error (kSettings), not a default.
#pragma once
#include <cstdint>

#include "headrace/settings.hpp"

namespace headrace::settings {
// HEADRACE_NUM_THREADS, 1 to 1024; else headrace.update_threads.
std::uint32_t update_threads(const Settings& settings);

// HEADRACE_IO_QUEUE: auto, uring, aio or threads; else headrace.io_queue.
IoQueueKind io_queue_kind(const Settings& settings);
}  // namespace headrace::settings
