// SPDX-License-Identifier: Apache-2.0
// load_together.hpp: a call that gives an engine all of its values, on all ranks or on none.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/all_values.hpp"
#include "engine/running.hpp"
#include "headrace/engine.hpp"
#include "ranks/rank_calls.hpp"

namespace headrace::checkpoint {
struct NewValues {
  std::uint64_t identity = 0;  // a hash of what is loaded: equal on all ranks
  engine::RangeSource source;
  std::vector<std::uint64_t> steps;  // by parameter
};

// Calls prepare(), which compares and verifies what it can and changes nothing, then takes the
// values. If one rank fails, all of them throw, and the others' errors name that rank. After an
// error while values are taken, no group has values on any rank.
//   call, path  named in errors
// Throws, beside what prepare() and the source throw, kInvalidArgument naming a rank that loads
// something else, and kWrongState naming a frozen parameter of a
// committed step, which cannot be written again.
void load_together(Engine& engine, ranks::RankCall::Kind kind, const char* call,
                   const std::string& path,
                   const std::function<NewValues(const engine::Running&)>& prepare);
}  // namespace headrace::checkpoint
