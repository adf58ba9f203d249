// SPDX-License-Identifier: Apache-2.0
// io_queue_names.hpp: the I/O queues by the words that settings and options have for them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::tools {
inline const std::vector<std::pair<std::string, IoQueueKind>> kQueues = {
    {"auto", IoQueueKind::kAuto},
    {"uring", IoQueueKind::kUring},
    {"aio", IoQueueKind::kAio},
    {"threads", IoQueueKind::kThreads}};

inline const std::string& name_of(IoQueueKind queue) {
  for (const auto& [name, kind] : kQueues) {
    if (kind == queue) return name;
  }
  return kQueues.front().first;
}
}  // namespace headrace::tools
