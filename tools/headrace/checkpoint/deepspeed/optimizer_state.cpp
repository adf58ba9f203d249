// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/deepspeed/optimizer_state.hpp"

#include <array>
#include <cmath>
#include <cstring>

#include "checkpoint/deepspeed/values.hpp"
#include "pickle/fault.hpp"

namespace headrace::tools {
namespace {
using pickle::Kind;
using pickle::TensorFile;
using pickle::Value;
constexpr double kMostSteps = 9007199254740992.0;  // 2^53: all below are doubles

bool is_true(const Value* value) {
  return value != nullptr && value->is(Kind::kBool) && value->number != 0;
}

double number_in(TensorFile& file, const Value& value, const std::string& what) {
  const pickle::PickledTensor& tensor = file.tensor(value, what);
  if (tensor.elements() != 1) file.refuse(what + " is " + text_of(value));
  std::array<std::byte, 8> bytes{};
  file.read(tensor, 0, std::span(bytes).first(tensor.element_bytes()));
  if (widens(tensor.dtype)) {
    std::vector<float> one;
    widen(tensor.dtype, std::span(bytes).first(tensor.element_bytes()), one);
    return static_cast<double>(one[0]);
  }
  std::int64_t whole = 0;
  std::memcpy(&whole, bytes.data(), sizeof whole);
  if (tensor.dtype == "I64") return static_cast<double>(whole);
  if (tensor.dtype == "I32") return static_cast<double>(static_cast<std::int32_t>(whole));
  file.refuse(what + " is " + text_of(value));
}
}  // namespace

std::uint64_t step_of(TensorFile& file, const Value& value, const std::string& what) {
  double step = -1;
  if (value.is(Kind::kInt))
    step = static_cast<double>(value.number);
  else if (value.is(Kind::kFloat))
    step = value.real;
  else if (value.is(Kind::kTensor))
    step = number_in(file, value, what);
  else
    file.refuse(what + " is " + text_of(value));
  if (!(step >= 0 && step < kMostSteps) || step != std::floor(step))
    file.refuse(what + " is no whole number from 0 on");
  return static_cast<std::uint64_t>(step);
}

OptimizerState::OptimizerState(const std::string& folder)
    : file_(folder + "/zero/optimizer_state.pt") {
  for (const Value* const group : groups()) {
    if (!is_true(group->find("amsgrad"))) continue;
    throw pickle::Fault(file_.path() +
                            ": it is of AMSGrad, whose greatest second moments a "
                            "universal directory does not keep",
                        Code::kUnsupported, "Train with amsgrad false.");
  }
}

std::vector<const Value*> OptimizerState::groups() const {
  std::vector<const Value*> dicts;
  const Value* const groups = file_.root().find("param_groups");
  if (groups == nullptr || !groups->is(Kind::kList)) return dicts;
  for (const Value* const group : groups->items)
    if (group->is(Kind::kDict)) dicts.push_back(group);
  return dicts;
}

std::optional<OptimizerRule> OptimizerState::rule() const {
  for (const Value* const group : groups()) {
    const Value* const decoupled = group->find("decoupled_weight_decay");
    if (decoupled == nullptr || !decoupled->is(Kind::kBool)) continue;
    return decoupled->number != 0 ? OptimizerRule::kAdamW : OptimizerRule::kAdam;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> OptimizerState::step(std::uint64_t sub_group) {
  const Value* const inner = file_.root().find("optimizer_state_dict");
  const Value* const state = inner == nullptr ? nullptr : inner->find("state");
  for (std::size_t i = 0; state != nullptr && state->is(Kind::kDict) && i + 1 < state->items.size();
       i += 2) {
    const Value& key = *state->items[i];
    if (!key.is(Kind::kInt) || key.number != static_cast<std::int64_t>(sub_group)) continue;
    if (const Value* const step = state->items[i + 1]->find("step"))
      return step_of(file_, *step, "its step");
  }
  for (const Value* const group : groups())
    if (const Value* const step = group->find("step")) return step_of(file_, *step, "its step");
  return std::nullopt;
}
}  // namespace headrace::tools
