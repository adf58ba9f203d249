// SPDX-License-Identifier: Apache-2.0
// optimizer_state.hpp: what zero/optimizer_state.pt of a universal directory says for all
// parameters: the rule, and the step counts of ZeRO-3.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/optimizer.hpp"
#include "pickle/tensor_file.hpp"

namespace headrace::tools {
// A whole number, or a tensor that holds one. Throws pickle::Fault naming the file.
std::uint64_t step_of(pickle::TensorFile& file, const pickle::Value& value,
                      const std::string& what);

class OptimizerState {
 public:
  // Reads the pickle alone, not the flat groups of ZeRO-3 in the file. Refuses AMSGrad, whose third
  // moment is not in a universal directory.
  explicit OptimizerState(const std::string& folder);
  // By what torch's optimizer says of its decay.
  std::optional<OptimizerRule> rule() const;
  // Of ZeRO-3, by sub-group; of other stages, as FusedAdam may keep it. nullopt: it has none.
  std::optional<std::uint64_t> step(std::uint64_t sub_group);
  std::vector<std::string> unknown() const {
    return {file_.unknown().begin(), file_.unknown().end()};
  }

 private:
  std::vector<const pickle::Value*> groups() const;

  pickle::TensorFile file_;
};
}  // namespace headrace::tools
