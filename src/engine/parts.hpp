// SPDX-License-Identifier: Apache-2.0
// parts.hpp: what an engine is made of that tests replace: the conductor, the drives, their queues,
// the threads.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "async/conductor.hpp"
#include "headrace/engine.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::engine {
struct EngineParts {
  std::function<std::unique_ptr<async::Conductor>()> make_conductor;  // null: conductor_asio
  swap::DriveMaker make_drive;                                        // null: a thread per drive
  swap::IoQueueMaker make_queue;  // null: as the settings and HEADRACE_IO_QUEUE say
  std::function<async::Nanoseconds()> pass_takes;   // null: none; with 0 threads, of virtual time
  std::optional<std::uint32_t> update_threads;      // unset: as the settings and the machine say
  std::optional<std::uint64_t> machine_left_bytes;  // unset: what the machine says
};
// An engine with some of them replaced.
Engine engine_with_parts(Settings settings, EngineOptions options, EngineParts parts);
}  // namespace headrace::engine
