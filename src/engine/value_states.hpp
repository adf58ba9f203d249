// SPDX-License-Identifier: Apache-2.0
// value_states.hpp: records which groups have usable values.
//
// A load that fails half-way leaves old values beside new ones. So the engine rejects what it
// touched until that is loaded again:
//   kNone    never loaded
//   kBroken  load() of the group failed half-way, so it has neither old nor new values
//   kHalf    load() of one parameter's content failed half-way; half() says which
//   kWritten mark_written(): the weights were written behind the engine's back
//   kWhole   everything may be used
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "partition/registry.hpp"

namespace headrace::engine {
inline constexpr const char* kContentNames[] = {"weight", "master", "exp_avg", "exp_avg_sq"};
constexpr std::uint8_t bit_of(Content content) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(content));
}

// Threads: any for require_whole() and mark_written(); one of the trainer's at a time for the rest.
class ValueStates {
 public:
  explicit ValueStates(const partition::Registry& registry);

  // Throw kWrongState, and say what was not loaded and how to load it.
  void require_whole(GroupId group, const char* call) const;
  void require_some(GroupId group, const char* call) const;
  // Moments and step counts remain usable after mark_written(); weights do not.
  void require_moments(ParameterId id, const char* call) const;

  // Whether any group has values that can be used.
  bool any() const noexcept;

  void begin_load(GroupId group);  // the group is broken until end_load()
  void end_load(GroupId group);
  // The contents (bit_of) of the parameter that mix old and new values.
  std::uint8_t half(ParameterId id) const noexcept { return half_[id.index]; }
  void set_half(ParameterId id, std::uint8_t contents) noexcept;
  // `cause`: what require_whole() throws; empty: a default text. A group without values stays so.
  void mark_written(GroupId group, const std::string& cause);

  static std::uint64_t bookkeeping_bytes(const partition::Registry& registry) noexcept;

 private:
  enum class State : std::uint8_t { kNone, kBroken, kWritten, kHalf, kWhole };
  [[noreturn]] void refuse(GroupId group, const char* call) const;

  const partition::Registry& registry_;
  std::vector<std::atomic<State>> states_;  // per group
  std::vector<std::uint8_t> half_;          // per parameter
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::string> written_;  // by group: the cause; protected by mutex_
};
}  // namespace headrace::engine
