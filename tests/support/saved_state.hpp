// SPDX-License-Identifier: Apache-2.0
// saved_state.hpp: all that an engine has of its parameters, in memory: what a checkpoint holds.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "headrace/engine.hpp"

namespace headrace::testing {
class SavedState {
 public:
  SavedState() = default;
  // `moments`: how many the engine's rule keeps.
  explicit SavedState(Engine& engine, std::uint32_t moments = 2);
  // Master, moments and step count of every parameter; weights follow their masters.
  void into(Engine& engine) const;
  // Of another rank: what is not a rank's is zero here, so it is joined bit by bit.
  void add_shard(const SavedState& other);
  friend bool operator==(const SavedState&, const SavedState&) = default;

 private:
  static constexpr Content kContents[] = {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq};
  struct Parameter {
    std::array<std::vector<std::uint32_t>, 3> values;  // bits of f32
    std::uint64_t steps = 0;
    friend bool operator==(const Parameter&, const Parameter&) = default;
  };
  std::size_t contents_ = 3;                     // masters and moments
  std::map<std::string, Parameter> parameters_;  // by full name
};
}  // namespace headrace::testing
