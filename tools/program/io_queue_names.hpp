// SPDX-License-Identifier: Apache-2.0
// io_queue_names.hpp: the I/O queues by the words that settings and options have for them.
#pragma once
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "command_line/words.hpp"
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

// An option's word, which may be fio's. Throws command_line::Fault.
inline IoQueueKind queue_in_option(const std::string& name, const std::string& word) {
  if (word == "io_uring") return IoQueueKind::kUring;
  if (word == "libaio") return IoQueueKind::kAio;
  return command_line::to_choice(name, word, kQueues);
}

// HEADRACE_IO_QUEUE, else kAuto. Throws command_line::Fault.
inline IoQueueKind queue_of_environment() {
  const char* const queue = std::getenv("HEADRACE_IO_QUEUE");
  if (queue == nullptr || *queue == '\0') return IoQueueKind::kAuto;
  return command_line::to_choice("HEADRACE_IO_QUEUE", queue, kQueues);
}
}  // namespace headrace::tools
