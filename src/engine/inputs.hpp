// SPDX-License-Identifier: Apache-2.0
// inputs.hpp: the settings, options and replaced parts that a program gives an engine.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/parts.hpp"
#include "headrace/engine.hpp"
#include "ranks/counted_collective.hpp"

namespace headrace::engine {
struct Inputs {
  // Throws kSettings, kInvalidArgument.
  Inputs(Settings of, EngineOptions options, EngineParts replaced);

  Settings settings;
  std::shared_ptr<Device> device;
  std::shared_ptr<ranks::CountedCollective> collective;
  LogSink log;  // one line at a time, from any thread
  std::function<bool()> poll;
  std::uint64_t trace_events = 0;
  EngineParts parts;
};
}  // namespace headrace::engine
