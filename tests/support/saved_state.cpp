// SPDX-License-Identifier: Apache-2.0
#include "support/saved_state.hpp"

#include <cstring>

namespace headrace::testing {
SavedState::SavedState(Engine& engine, std::uint32_t moments) : contents_(1 + moments) {
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    Parameter& parameter = parameters_[engine.full_name({i})];
    parameter.steps = engine.step_count({i});
    for (std::size_t c = 0; c < contents_; ++c) {
      std::vector<std::uint32_t>& values = parameter.values[c];
      values.resize(engine.spec({i}).elements());
      engine.store({i}, kContents[c], [&](std::uint64_t first, std::span<const std::byte> stretch) {
        std::memcpy(values.data() + first, stretch.data(), stretch.size());
      });
    }
  }
}

void SavedState::into(Engine& engine) const {
  for (const auto& [name, parameter] : parameters_) {
    const ParameterId id = engine.parameter(name);
    for (std::size_t c = 0; c < contents_; ++c) {
      const std::vector<std::uint32_t>& values = parameter.values[c];
      engine.load(id, kContents[c], [&](std::uint64_t first, std::span<std::byte> stretch) {
        std::memcpy(stretch.data(), values.data() + first, stretch.size());
      });
    }
    engine.set_step_count(id, parameter.steps);
  }
}

void SavedState::add_shard(const SavedState& other) {
  for (auto& [name, parameter] : parameters_) {
    const Parameter& shard = other.parameters_.at(name);
    for (std::size_t c = 0; c < contents_; ++c) {
      for (std::size_t e = 0; e < parameter.values[c].size(); ++e)
        parameter.values[c][e] |= shard.values[c][e];
    }
  }
}
}  // namespace headrace::testing
