// SPDX-License-Identifier: Apache-2.0
// parts.hpp: the parts of an engine that tests replace: conductor, drives, queues, threads.
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
  std::function<async::Nanoseconds()> pass_takes;     // null: none; with 0 threads: virtual time
  std::optional<std::uint32_t> update_threads;        // no value: settings and machine decide
  std::function<std::uint64_t()> machine_left_bytes;  // null: as the machine reports
};
// Creates an engine with some parts replaced.
Engine engine_with_parts(Settings settings, EngineOptions options, EngineParts parts);
}  // namespace headrace::engine
