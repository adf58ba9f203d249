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
    {name_of(IoQueueKind::kAuto), IoQueueKind::kAuto},
    {name_of(IoQueueKind::kUring), IoQueueKind::kUring},
    {name_of(IoQueueKind::kAio), IoQueueKind::kAio},
    {name_of(IoQueueKind::kThreads), IoQueueKind::kThreads}};

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
