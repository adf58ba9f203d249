// SPDX-License-Identifier: Apache-2.0
// value_states.hpp: which groups have values that may be used.
//
// A load that ends on the way leaves old values beside new ones, so what it touched is refused
// until it is loaded again:
//   kNone    never loaded
//   kBroken  load() of the group ended on the way, neither old values nor new ones are there
//   kHalf    load() of one parameter's content ended on the way; half() says of which
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

// Threads: require_whole() any; the rest the trainer's.
class ValueStates {
 public:
  explicit ValueStates(const partition::Registry& registry);

  // Throw kWrongState saying what was not loaded, and what to load.
  void require_whole(GroupId group, const char* call) const;
  void require_some(GroupId group, const char* call) const;
  // Moments and step counts survive mark_written(); weights do not.
  void require_moments(ParameterId id, const char* call) const;

  void begin_load(GroupId group);  // until end_load() it is broken
  void end_load(GroupId group);
  // The contents (bit_of) of the parameter that hold old values beside new ones.
  std::uint8_t half(ParameterId id) const noexcept { return half_[id.index]; }
  void set_half(ParameterId id, std::uint8_t contents) noexcept;
  // `cause`: what require_whole() says; empty: a text of ours. Nothing where there are no values.
  void mark_written(GroupId group, const std::string& cause);

  static std::uint64_t bookkeeping_bytes(const partition::Registry& registry) noexcept;

 private:
  enum class State : std::uint8_t { kNone, kBroken, kWritten, kHalf, kWhole };
  [[noreturn]] void refuse(GroupId group, const char* call) const;

  const partition::Registry& registry_;
  std::vector<std::atomic<State>> states_;  // per group
  std::vector<std::uint8_t> half_;          // per parameter
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::string> written_;  // by group: the cause; under mutex_
};
}  // namespace headrace::engine
