// SPDX-License-Identifier: Apache-2.0
#include "support/scripted_trainer.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "kernels/hash.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::testing {
namespace {
constexpr std::int64_t kBias = 40;

// Small values, of both signs, that hang on every bit of `seed`.
std::uint16_t value_of(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + index * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9ull;
  // bf16 of exponent 2^-8 or 2^-7, sign and mantissa drawn.
  return static_cast<std::uint16_t>((z & 0x80ff) | 0x3b00);
}
}  // namespace

const char* name_of(Departure departure) noexcept {
  constexpr const char* kNames[kDepartures] = {
      "none",           "a skipped group", "a group used twice",
      "another order",  "eval before",     "generation before",
      "a frozen group", "a tied group",    "gradients alone",
      "nothing used"};
  return kNames[static_cast<int>(departure)];
}

Script script_of(Departure departure, std::uint32_t groups, bool recompute) {
  using enum ScriptedCall::What;
  Script script;
  if (departure == Departure::kNothing) return script;
  if (departure == Departure::kGradientsAlone) {
    for (std::uint32_t g = groups; g > 0; --g) script.push_back({kGradient, g - 1});
    return script;
  }
  const std::uint32_t odd = groups / 2;  // the group that departs
  const auto forward = [&](std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t g = first; g < end; ++g) {
      if (departure == Departure::kSkippedGroup && g == odd) continue;
      script.push_back({kUse, g});
      if (departure == Departure::kUsedTwice && g == odd) script.push_back({kUse, g});
    }
  };
  if (departure == Departure::kEvalBefore) forward(0, groups);
  if (departure == Departure::kGenerationBefore) {
    for (std::uint32_t token = 0; token < 3; ++token) forward(token % 2, groups - token % 2);
  }
  forward(0, groups);
  if (departure == Departure::kTiedGroup) script.push_back({kUse, 0});
  if (departure == Departure::kTiedGroup) script.push_back({kGradient, 0});
  for (std::uint32_t i = 0; i < groups; ++i) {
    const std::uint32_t g = departure == Departure::kOtherOrder ? i : groups - 1 - i;
    if (departure == Departure::kSkippedGroup && g == odd) continue;
    for (int use = 0; use < (recompute ? 2 : 1); ++use) script.push_back({kUse, g});
    if (departure == Departure::kFrozenGroup && g == odd) continue;
    script.push_back({kGradient, g});
  }
  return script;
}

ScriptedTrainer::ScriptedTrainer(Engine& engine, const std::vector<std::int64_t>& groups,
                                 std::optional<std::uint32_t> tied,
                                 std::optional<std::uint32_t> frozen)
    : engine_(engine),
      seen_(groups.size()),
      state_(groups.size() + 1),
      gradient_(static_cast<std::size_t>(std::ranges::max(groups))),
      bias_gradient_(kBias) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups_.push_back(engine.add_group(
        "group." + std::to_string(g),
        {{"weight", DType::kBf16, {groups[g]}, {}}, {"bias", DType::kF32, {kBias}, {}}}));
  }
  if (tied) engine.expect_repeated_gradients(groups_[*tied]);
  if (frozen) engine.expect_no_gradients(groups_[*frozen]);
  engine.freeze();
  if (const auto resumed = engine.resumed()) {
    take_over(*resumed);
    return;
  }
  for (const GroupId group : groups_) {
    engine.load(group, [&](ParameterId id, std::span<std::byte> out) {
      std::memset(out.data(), 0, out.size());
      if (engine.spec(id).dtype != DType::kBf16) return;
      for (std::size_t e = 0; e < out.size() / 2; ++e) {
        const std::uint16_t value = value_of(id.index + 1, e);
        std::memcpy(out.data() + 2 * e, &value, 2);
      }
    });
  }
}

void ScriptedTrainer::take_over(const Resumed& resumed) {
  if (resumed.trainer_state.size() != state_.size() * sizeof state_[0])
    throw std::runtime_error("the store kept another trainer's state");
  std::memcpy(state_.data(), resumed.trainer_state.data(), resumed.trainer_state.size());
  std::copy_n(state_.begin(), seen_.size(), seen_.begin());
  steps_ = resumed.step + resumed.skipped;
  if (state_.back() != steps_) {
    throw std::runtime_error("the store kept the trainer's state of step " +
                             std::to_string(state_.back()) + " with step " +
                             std::to_string(steps_));
  }
}

void ScriptedTrainer::use(std::uint32_t group) {
  const Gathered lease = engine_.gather(groups_[group]);
  std::uint64_t seen = 0;
  for (const ParameterId id : engine_.parameters(groups_[group])) {
    const DeviceSpan bytes = lease.bytes(id);
    seen = kernels::xxh3_64({static_cast<const std::byte*>(bytes.data), bytes.size_bytes}, seen);
  }
  seen_[group] = seen;
}

void ScriptedTrainer::give_gradient(std::uint32_t group) {
  const auto ids = engine_.parameters(groups_[group]);
  const auto elements = static_cast<std::size_t>(engine_.spec(ids[0]).elements());
  for (std::size_t e = 0; e < elements; ++e) gradient_[e] = value_of(seen_[group], e);
  for (std::size_t e = 0; e < kBias; ++e)
    bias_gradient_[e] = kernels::bf16_to_f32(value_of(seen_[group] + 1, e));
  engine_.add_gradient(ids[0], gradient_.data(), DType::kBf16);
  engine_.add_gradient(ids[1], bias_gradient_.data(), DType::kF32);
}

void ScriptedTrainer::run(const Script& script) {
  for (const ScriptedCall& call : script) {
    call.what == ScriptedCall::What::kUse ? use(call.group) : give_gradient(call.group);
  }
}

StepResult ScriptedTrainer::end_step() {
  std::ranges::copy(seen_, state_.begin());
  state_.back() = steps_ + 1;
  engine_.set_trainer_state(std::as_bytes(std::span(state_)));
  const StepResult result = engine_.step({.learning_rate = 1e-2f, .max_norm = 0.5f});
  ++steps_;
  return result;
}

StepResult ScriptedTrainer::step(const Script& script) {
  run(script);
  return end_step();
}

std::string ScriptedTrainer::hashes() {
  return engine_.hash_parameters() + ' ' + engine_.hash_optimizer_state();
}

std::vector<std::string> hashes_in_memory(
    const std::vector<std::int64_t>& groups, std::uint64_t steps,
    const std::function<void(Engine&, ScriptedTrainer&, std::uint64_t step)>& make_step) {
  Settings settings;
  settings.update_threads = 1;
  Engine engine(settings);
  ScriptedTrainer trainer(engine, groups);
  std::vector<std::string> all = {trainer.hashes()};
  for (std::uint64_t step = 1; step <= steps; ++step) {
    make_step(engine, trainer, step);
    all.push_back(trainer.hashes());
  }
  return all;
}
}  // namespace headrace::testing
