// SPDX-License-Identifier: Apache-2.0
// scripted_trainer.hpp: trains without a model: groups are used, and get gradients, in the order of
// a script. A gradient is a function of the weights that its group was last used with, so one stale
// weight anywhere ends in other bits.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headrace/engine.hpp"

namespace headrace::testing {
struct ScriptedCall {
  enum class What : std::uint8_t { kUse, kGradient } what = What::kUse;
  std::uint32_t group = 0;
};
using Script = std::vector<ScriptedCall>;  // of one step

// What a step does other than forward and backward over all groups.
enum class Departure : std::uint8_t {
  kNone,
  kSkippedGroup,      // without gradient too, and its state and step count stay
  kUsedTwice,         // one group more often than the others, in forward
  kOtherOrder,        // backward in the order of forward
  kEvalBefore,        // a forward pass more
  kGenerationBefore,  // several, each over some of the groups
  kFrozenGroup,       // used, never given a gradient
  kTiedGroup,         // used first and last, and given two gradients: declare them
  kGradientsAlone,    // without a use before them: of weights seen in an earlier step
  kNothing,           // no use at all, no gradient
};
inline constexpr int kDepartures = 10;
const char* name_of(Departure departure) noexcept;
// `recompute`: each group is used once more in backward, as checkpointing does.
Script script_of(Departure departure, std::uint32_t groups, bool recompute);

class ScriptedTrainer {
 public:
  // Elements of each group's bf16 weight; each has an f32 bias of 40 beside it. Registers, freezes,
  // and loads, or goes on where a durable engine does. `tied`: may have two gradients; `frozen`: is
  // declared to have none.
  ScriptedTrainer(Engine& engine, const std::vector<std::int64_t>& groups,
                  std::optional<std::uint32_t> tied = std::nullopt,
                  std::optional<std::uint32_t> frozen = std::nullopt);
  StepResult step(const Script& script);
  void run(const Script& script);  // without the step at its end
  StepResult end_step();
  std::string hashes();

 private:
  void take_over(const Resumed& resumed);
  void use(std::uint32_t group);
  void give_gradient(std::uint32_t group);

  Engine& engine_;
  std::vector<GroupId> groups_;
  std::vector<std::uint64_t> seen_;   // per group: hash of the weights at the last use
  std::vector<std::uint64_t> state_;  // seen_, and the number of the step: what a store keeps
  std::uint64_t steps_ = 0;           // skipped ones too
  std::vector<std::uint16_t> gradient_;
  std::vector<float> bias_gradient_;
};

// The hashes of a run in memory: before its first step, and after each.
std::vector<std::string> hashes_in_memory(
    const std::vector<std::int64_t>& groups, std::uint64_t steps,
    const std::function<void(Engine&, ScriptedTrainer&, std::uint64_t step)>& make_step);
}  // namespace headrace::testing
