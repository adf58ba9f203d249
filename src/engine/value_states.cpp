// SPDX-License-Identifier: Apache-2.0
#include "engine/value_states.hpp"

#include <algorithm>
#include <bit>

#include "headrace/error.hpp"

namespace headrace::engine {
ValueStates::ValueStates(const partition::Registry& registry)
    : registry_(registry), states_(registry.groups().size()), half_(registry.parameters().size()) {}

std::uint64_t ValueStates::bookkeeping_bytes(const partition::Registry& registry) noexcept {
  return registry.groups().size() * sizeof(State) + registry.parameters().size();
}

void ValueStates::require_whole(GroupId group, const char* call) const {
  if (states_[group.index] != State::kWhole) refuse(group, call);
}

void ValueStates::require_some(GroupId group, const char* call) const {
  const State state = states_[group.index];
  if (state != State::kWhole && state != State::kHalf) refuse(group, call);
}

void ValueStates::require_moments(ParameterId id, const char* call) const {
  const GroupId group = registry_.parameter(id).group;
  if (states_[group.index] == State::kWritten && half_[id.index] == 0) return;
  require_whole(group, call);
}

bool ValueStates::any() const noexcept {
  return std::ranges::any_of(
      states_, [](const auto& state) { return state != State::kNone && state != State::kBroken; });
}

void ValueStates::begin_load(GroupId group) { states_[group.index] = State::kBroken; }
void ValueStates::end_load(GroupId group) {
  for (const ParameterId id : registry_.group(group).parameters) half_[id.index] = 0;
  states_[group.index] = State::kWhole;
}

void ValueStates::set_half(ParameterId id, std::uint8_t contents) noexcept {
  half_[id.index] = contents;
  const GroupId group = registry_.parameter(id).group;
  if (states_[group.index] == State::kWritten) return;  // meanwhile: it stays so
  const bool half = std::ranges::any_of(registry_.group(group).parameters,
                                        [&](ParameterId other) { return half_[other.index] != 0; });
  states_[group.index] = half ? State::kHalf : State::kWhole;
}

void ValueStates::mark_written(GroupId group, const std::string& cause) {
  const State state = states_[group.index];
  if (state == State::kNone || state == State::kBroken) return;
  const std::lock_guard lock(mutex_);
  written_[group.index] = !cause.empty()
                              ? cause
                              : "the weights of group '" + registry_.group(group).name +
                                    "' were written while they were gathered; load all of it again";
  states_[group.index] = State::kWritten;
}

void ValueStates::refuse(GroupId group, const char* call) const {
  const std::string name = "group '" + registry_.group(group).name + "'";
  const State state = states_[group.index];
  if (state == State::kNone) {
    throw Error(Code::kWrongState,
                std::string(call) + ": " + name + " was never loaded; call load() for it first");
  }
  if (state == State::kBroken) {
    throw Error(Code::kWrongState, std::string(call) + ": the last load() of " + name +
                                       " ended on the way: it has neither its old values nor new "
                                       "ones; load all of it again");
  }
  if (state == State::kWritten) {
    const std::lock_guard lock(mutex_);
    throw Error(Code::kWrongState, std::string(call) + ": " + written_.at(group.index));
  }
  const auto id = std::ranges::find_if(registry_.group(group).parameters,
                                       [&](ParameterId one) { return half_[one.index] != 0; });
  const char* const content = kContentNames[std::countr_zero(half_[id->index])];
  throw Error(Code::kWrongState, std::string(call) + ": a load() of '" +
                                     registry_.parameter(*id).full_name + "', content " + content +
                                     ", ended on the way: it holds new values and old ones; "
                                     "load that content again, or all of " +
                                     name);
}
}  // namespace headrace::engine
